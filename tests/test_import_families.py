"""Every family and every stretched RoPE against transformers 5: the same logits; and GGUF against the folder."""

import json
from pathlib import Path

import gguf
import pytest
import torch

from ai_playground.importing import ImportRefused, import_model, read_model
from ai_playground.importing.families import ARCHITECTURES
from ai_playground.importing.safetensors_file import read_safetensors
from ai_playground.tokenizer import Tokenizer
from checking.reference import trained_model
from tests.made_models import TEXTS, gguf_file, hugging_face_folder, model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
ROPES = {
    "plain": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "older_linear": {"type": "linear", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn_with_its_own_growth": YARN | {"attention_factor": 1.3, "beta_fast": 4.0, "beta_slow": 2.0},
}


def theirs(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    places = {name: file.name for file in folder.glob("*.safetensors") for name in read_safetensors(file)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(tokens).logits


def assert_same_logits(folder: Path, ws: Path) -> None:
    tokens = torch.randint(0, 280, (2, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = trained_model(ws)(tokens)
    torch.testing.assert_close(ours, theirs(folder, tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rope", ROPES)
def test_a_stretched_rope_gives_transformers_logits_beyond_the_first_context_too(tmp_path: Path, rope: str) -> None:
    settings = {"rope_scaling": ROPES[rope]} if ROPES[rope] else {}
    folder = hugging_face_folder(tmp_path, model(head_dim=16), **settings)
    import_model(str(folder), tmp_path / "ws")
    assert_same_logits(folder, tmp_path / "ws")


@pytest.mark.parametrize(
    ("architecture", "kind", "shape", "more"),
    [
        ("MistralForCausalLM", "mistral", {}, {"sliding_window": None}),
        ("MistralForCausalLM", "mistral", {}, {"sliding_window": 64}),
        ("Qwen2ForCausalLM", "qwen2", {"qkv_bias": True, "head_dim": 8}, {"use_sliding_window": False}),
        ("Qwen3ForCausalLM", "qwen3", {"qk_norm": True, "head_dim": 16}, {"rope_scaling": YARN}),
        ("Phi3ForCausalLM", "phi3", {"head_dim": 8}, {"pad_token_id": 0}),
    ],
)
def test_a_neighbour_of_llama_gives_transformers_logits(
    tmp_path: Path, architecture: str, kind: str, shape: dict, more: dict
) -> None:
    source = model(**shape)
    folder = hugging_face_folder(tmp_path, source, architectures=[architecture], model_type=kind, **more)
    if ARCHITECTURES[architecture].fused:
        fuse(folder)
    import_model(str(folder), tmp_path / "ws")
    imported = trained_model(tmp_path / "ws")
    assert imported.config.qkv_bias == source.config.qkv_bias and imported.config.qk_norm == source.config.qk_norm
    for name, tensor in source.state_dict().items():
        assert torch.equal(imported.state_dict()[name], tensor), name
    assert_same_logits(folder, tmp_path / "ws")


def fuse(folder: Path) -> None:
    """Rewrite a folder's weights as Phi-3 has them: q, k and v in one tensor, gate and up in another."""
    from safetensors.torch import load_file, save_file

    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
        file.unlink()
    for index in range(2):
        at = f"model.layers.{index}."
        for fused, parts in (
            ("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
        ):
            tensors[f"{at}{fused}.weight"] = torch.cat([tensors.pop(f"{at}{part}.weight") for part in parts])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("architecture", "shape"),
    [("llama", {}), ("qwen2", {"qkv_bias": True}), ("qwen3", {"qk_norm": True})],
)
def test_a_gguf_is_the_model_of_the_folder(tmp_path: Path, architecture: str, shape: dict) -> None:
    source = model(vocab_size=Tokenizer.train(TEXTS, 280).vocab_size, **shape)
    import_model(str(gguf_file(tmp_path / "m.GGUF", source, architecture=architecture)), tmp_path / "ws")
    for name, tensor in source.state_dict().items():
        assert torch.equal(trained_model(tmp_path / "ws").state_dict()[name], tensor), name


def test_rope_freqs_in_a_gguf_are_the_folders_factors(tmp_path: Path) -> None:
    source = model(vocab_size=Tokenizer.train(TEXTS, 280).vocab_size, head_dim=16)
    folder = read_model(str(hugging_face_folder(tmp_path, source, rope_scaling=LLAMA3))).config
    factors = torch.tensor(folder.rope_factors)
    path = gguf_file(tmp_path / "m.gguf", source, extra={"rope_freqs.weight": factors})
    import_model(str(path), tmp_path / "ws")
    found = trained_model(tmp_path / "ws").config.rope_factors
    assert found == pytest.approx(folder.rope_factors, rel=1e-6) and max(found) == 8.0 and min(found) == 1.0
    scaled = gguf_file(tmp_path / "s.gguf", source, scaling=gguf.RopeScalingType.LINEAR, fields={
        "llama.rope.scaling.factor": 4.0
    })  # fmt: skip
    assert read_model(str(scaled)).config.rope_factors == (4.0,) * 8


def test_bfloat16_stays_bfloat16(tmp_path: Path) -> None:
    source = model()
    folder = hugging_face_folder(tmp_path, source, dtype=torch.bfloat16)
    import_model(str(folder), tmp_path / "ws")
    weights = torch.load(tmp_path / "ws" / "final.pt", weights_only=True)["model"]
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert torch.equal(weights["embedding.weight"], source.embedding.weight.bfloat16())


def test_every_end_token_counts(tmp_path: Path) -> None:
    folder = hugging_face_folder(tmp_path, model(), eos_token_id=[4, 1])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 9]}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": {"content": "<|bos|>"}}))
    assert read_model(str(folder)).config.eos_id == (4, 1, 9, 0)
    source = model(vocab_size=Tokenizer.train(TEXTS, 280).vocab_size)
    more = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 1}
    assert read_model(str(gguf_file(tmp_path / "m.gguf", source, fields=more))).config.eos_id == (1, 7)


def test_the_index_says_which_files_count(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = hugging_face_folder(tmp_path, model())
    files = {file.name: load_file(file) for file in folder.glob("*.safetensors")}
    places = {name: file for file, tensors in files.items() for name in tensors}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    save_file({"tok_embeddings.weight": torch.ones(2)}, folder / "consolidated.safetensors")
    assert read_model(str(folder)).config.n_layers == 2
    (folder / "model-1.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(ImportRefused, match="its index names files that it lacks: model-1"):
        read_model(str(folder))
    index.write_text(json.dumps({"weight_map": places | {"x": "../elsewhere"}}))
    with pytest.raises(ImportRefused, match=r"names files outside its folder: \.\./elsewhere"):
        read_model(str(folder))
