"""A workspace that cannot be used says which file, what is wrong and what to do; nothing recorded is ever lost."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ai_playground.models import TransformerConfig
from ai_playground.tokenizer import EOS, Tokenizer
from ai_playground.workspace import (
    WorkspaceError,
    load_checkpoint,
    load_tokenizer,
    mapped_model,
    read_metrics,
    record_metrics,
    save_checkpoint,
    write_json,
)
from checking.reference import random_model, trained_model
from checking.shapes import SHAPES

CONFIG = TransformerConfig(**SHAPES["gqa"])


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path, CONFIG, random_model(CONFIG, 0).state_dict())
    return tmp_path


def refusal(ws: Path) -> str:
    with pytest.raises(WorkspaceError) as error:
        load_checkpoint(ws)
    assert "uv run course train" in str(error.value), "every message says what to do"
    return str(error.value)


def test_what_was_saved_is_what_is_loaded(ws: Path) -> None:
    model = random_model(CONFIG, 0)
    loaded = trained_model(ws)
    assert loaded.config == CONFIG
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_a_mapped_model_keeps_the_files_precision_unless_asked(ws: Path, dtype: torch.dtype | None) -> None:
    halved = random_model(CONFIG, 0).bfloat16()
    save_checkpoint(ws, CONFIG, halved.state_dict())
    model, tokens = mapped_model(ws, dtype), torch.arange(12).reshape(2, 6)
    assert {p.dtype for p in model.parameters()} == {dtype or torch.bfloat16}
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        assert torch.equal(model(tokens), halved.to(dtype)(tokens))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the process's memory map from /proc")
def test_a_mapped_model_has_no_copy_of_the_weights(ws: Path) -> None:
    model = mapped_model(ws)
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line.split()[0].split("-") for line in lines if line.endswith(str(ws / "final.pt"))]
    for p in model.parameters():
        assert any(int(start, 16) <= p.data_ptr() < int(end, 16) for start, end in mapped)


def test_a_mapped_model_names_the_weights_that_do_not_fit(ws: Path) -> None:
    weights = random_model(CONFIG, 0).state_dict()
    weights["layers.0.ffn.up.weight"] = weights["layers.0.ffn.up.weight"][1:]
    del weights["norm.weight"]
    save_checkpoint(ws, CONFIG, weights)
    with pytest.raises(WorkspaceError, match=r"(?s)norm\.weight.*layers\.0\.ffn\.up\.weight"):
        mapped_model(ws)


def test_a_missing_folder_and_missing_files_are_named(ws: Path) -> None:
    assert "does not exist" in refusal(ws / "nowhere")
    (ws / "final.pt").unlink()
    assert "has no final.pt" in refusal(ws)
    (ws / "config.json").unlink()
    assert "has no config.json" in refusal(ws)
    with pytest.raises(WorkspaceError, match=r"has no tokenizer\.json"):
        load_tokenizer(ws)


@pytest.mark.parametrize("size", [0, 1, 100, 20_000])
def test_a_truncated_checkpoint_is_refused(ws: Path, size: int) -> None:
    whole = (ws / "final.pt").read_bytes()
    (ws / "final.pt").write_bytes(whole[:size])
    assert "truncated" in refusal(ws)


class Runs:
    """Unpickling this runs code."""

    def __reduce__(self):
        return os.mkdir, ("it-ran",)


def test_code_in_a_checkpoint_is_refused_and_never_run(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ws)
    for payload in (Runs(), {"config": CONFIG.to_dict(), "model": {"a": Runs()}}):
        torch.save(payload, ws / "final.pt")
        assert "could run code" in refusal(ws)
    assert not (ws / "it-ran").exists()


def test_other_layouts_are_refused(ws: Path) -> None:
    for content, words in (
        ([1, 2], "found list"),
        ({"model": {}}, "must hold exactly"),
        ({"config": CONFIG.to_dict(), "model": {"a": 1}}, "state dict"),
        ({"config": CONFIG.to_dict(), "model": torch.ones(2)}, "state dict"),
    ):
        torch.save(content, ws / "final.pt")
        assert words in refusal(ws)


def test_a_workspace_from_before_rope_had_factors_still_loads(ws: Path) -> None:
    younger = ("rope_factors", "rope_scale")
    content = torch.load(ws / "final.pt", weights_only=True)
    content["config"] = {name: value for name, value in CONFIG.to_dict().items() if name not in younger}
    torch.save(content, ws / "final.pt")
    write_json(ws / "config.json", content["config"])
    assert load_checkpoint(ws)["config"] == CONFIG
    write_json(ws / "config.json", content["config"] | {"rope_scale": 2.0})
    assert "rope_scale: config.json says 2.0, final.pt says 1.0" in refusal(ws)


def test_rope_factors_come_back_from_both_files(ws: Path) -> None:
    config = replace(CONFIG, rope_factors=(1.0, *[8.0] * (CONFIG.head_dim // 2 - 1)), rope_scale=1.5)
    save_checkpoint(ws, config, load_checkpoint(ws)["model"])
    assert load_checkpoint(ws)["config"] == config
    assert load_checkpoint(ws)["config"].rope_factors[:2] == (1.0, 8.0)


def test_a_config_that_does_not_match_the_weights_names_the_fields(ws: Path) -> None:
    values = CONFIG.to_dict()
    write_json(ws / "config.json", values | {"n_layers": 5, "rope_theta": 7.0})
    message = refusal(ws)
    assert f"n_layers: config.json says 5, final.pt says {CONFIG.n_layers}" in message
    assert "rope_theta" in message
    assert "vocab_size" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a model configuration"),
        ("[]", "found list"),
        ('{"dim": 8}', "missing"),
        (json.dumps(CONFIG.to_dict() | {"colour": 1}), "colour"),
        (json.dumps(CONFIG.to_dict() | {"dim": -1}), "dim must be a positive integer"),
        (json.dumps(CONFIG.to_dict() | {"n_kv_heads": 3}), "multiple of n_kv_heads"),
        ("\xff", "not a model configuration"),
    ],
)
def test_a_broken_config_is_refused(ws: Path, text: str, words: str) -> None:
    (ws / "config.json").write_text(text, encoding="latin-1")
    assert words in refusal(ws)


def test_metrics_accumulate_and_other_keys_stay(ws: Path) -> None:
    record_metrics(ws, "m7_training", {"loss": 1.5})
    record_metrics(ws, "m13_finale", {"text": "a"})
    record_metrics(ws, "m13_finale", {"text": "b"})
    assert read_metrics(ws) == {"m7_training": {"loss": 1.5}, "m13_finale": {"text": "b"}}
    assert not list(ws.glob("*.partial"))


@pytest.mark.parametrize("text", ["{half", "[1]", ""])
def test_corrupt_metrics_are_kept_aside_and_said_so(ws: Path, text: str) -> None:
    (ws / "metrics.json").write_text(text)
    with pytest.warns(UserWarning, match=r"kept as metrics\.corrupt"):
        record_metrics(ws, "m13_finale", {"text": "a"})
    (aside,) = ws.glob("metrics.corrupt-*.json")
    assert aside.read_text() == text
    assert read_metrics(ws) == {"m13_finale": {"text": "a"}}


@pytest.mark.parametrize("value", [{"x": torch.ones(1)}, {"x": float("nan")}])
def test_metrics_that_are_not_json_are_refused_and_the_file_stays(ws: Path, value: dict) -> None:
    record_metrics(ws, "m7_training", {"loss": 1.5})
    with pytest.raises(ValueError, match="m13_finale"):
        record_metrics(ws, "m13_finale", value)
    assert read_metrics(ws) == {"m7_training": {"loss": 1.5}}
    assert not list(ws.glob("*.partial"))


def test_the_tokenizer_gives_back_any_text_and_marks_beginnings(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["Once upon a time there was a fox."] * 4, 300)
    text = "Once upon a time, Zoë 🦊 said:\n\n“hm”"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids[0] == tokenizer.token_id("<|bos|>")
    assert tokenizer.decode([*ids, tokenizer.token_id(EOS)]) == text
    tokenizer.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path).encode(text) == ids
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"token id {wrong} at position 1"):
            tokenizer.decode([0, wrong])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(WorkspaceError, match=r"not a tokenizer\.json"):
        load_tokenizer(tmp_path)
