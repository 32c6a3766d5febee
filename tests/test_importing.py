"""`course import`: other people's models come out as they were, and what cannot be served is refused by name."""

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from torch import Tensor

from ai_playground.importing import ImportRefused, chat_prompt, import_model
from ai_playground.importing.families import interleave_rotary_rows
from ai_playground.models.layers import apply_rope, precompute_rope_frequencies
from ai_playground.tokenizer import Tokenizer
from ai_playground.workspace import load_tokenizer
from checking.reference import trained_model
from tests.made_models import TEXTS, gguf_file, hugging_face_folder, model


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True}, {"n_kv_heads": 4, "head_dim": 8}])
def test_a_hugging_face_folder_comes_out_as_it_was(tmp_path: Path, changes: dict) -> None:
    source = model(**changes)
    import_model(str(hugging_face_folder(tmp_path, source)), tmp_path / "ws")
    imported = trained_model(tmp_path / "ws")
    assert imported.config == replace(source.config, eos_id=(1, 5))
    for name, tensor in source.state_dict().items():
        assert torch.equal(imported.state_dict()[name], tensor), name
    assert load_tokenizer(tmp_path / "ws").encode("a fox") == Tokenizer.from_file(tmp_path / "tokenizer.json").encode(
        "a fox"
    )
    assert chat_prompt(tmp_path / "ws", "why?") == "<user>why?>"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_keep_their_values(tmp_path: Path, dtype: torch.dtype) -> None:
    source = model()
    import_model(str(hugging_face_folder(tmp_path, source, dtype=dtype)), tmp_path / "ws")
    for name, tensor in source.state_dict().items():
        assert torch.equal(trained_model(tmp_path / "ws").state_dict()[name], tensor.to(dtype).float()), name


def test_both_orders_of_rope_give_the_same_scores() -> None:
    """Rotate-half attention on the original rows equals neighbouring-pair attention on the reordered ones."""
    torch.manual_seed(0)
    head_dim, length = 8, 5
    wq, wk, x = torch.randn(2 * head_dim, 16), torch.randn(head_dim, 16), torch.randn(1, length, 16)
    freqs = precompute_rope_frequencies(head_dim, length, 100.0)

    def rotate_half(vectors: Tensor) -> Tensor:
        cos, sin = (torch.cat((part, part), -1)[:, None] for part in (freqs.real, freqs.imag))
        first, second = vectors.chunk(2, dim=-1)
        return vectors * cos + torch.cat((-second, first), dim=-1) * sin

    q, k = ((x @ w.T).unflatten(-1, (-1, head_dim)) for w in (wq, wk))
    expected = torch.einsum("bthd,bsgd->bhts", rotate_half(q), rotate_half(k))
    q, k = ((x @ interleave_rotary_rows(w, head_dim).T).unflatten(-1, (-1, head_dim)) for w in (wq, wk))
    q, k = apply_rope(q, k, freqs)
    torch.testing.assert_close(torch.einsum("bthd,bsgd->bhts", q, k), expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["MixtralForCausalLM"]},
            "found the architecture MixtralForCausalLM, which cannot be served",
        ),
        ({"architectures": ["Gemma2ForCausalLM"]}, "it has scaled embeddings, norms behind each part"),
        ({"num_local_experts": 8}, "num_local_experts = 8"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "quantised with gptq: get the unquantised model, or a GGUF",
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'llama3' cannot be computed"),
        ({"rope_scaling": {"type": "dynamic", "factor": 8.0}}, "'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "'longrope' is not supported"),
        ({"sliding_window": 32}, "sliding_window = 32"),
        ({"eos_token_id": [1, 280]}, "eos_id must be in [0, 280), got 280"),
        ({"num_hidden_layers": 10**9}, "n_layers = 1,000,000,000"),
        ({"max_position_embeddings": 10**12}, "max_seq_len = 1,000,000,000,000"),
        ({"extra": {"model.norm.weight": torch.tensor([float("nan")] + [1.0] * 31)}}, "model.norm.weight holds NaN"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"num_hidden_layers": None}, "n_layers must be a positive integer"),
        ({"intermediate_size": 65}, "layers.0.ffn.gate.weight is (64, 32), the configuration asks for (65, 32)"),
        ({"drop": "model.layers.1.mlp.up_proj.weight"}, "missing model.layers.1.mlp.up_proj.weight"),
        (
            {"extra": {"model.layers.0.self_attn.q_norm.weight": torch.ones(6)}},
            "unknown model.layers.0.self_attn.q_norm",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(tmp_path: Path, changes: dict, words: str) -> None:
    folder = hugging_face_folder(tmp_path, model(), **changes)
    with pytest.raises(ImportRefused) as error:
        import_model(str(folder), tmp_path / "ws")
    assert words in str(error.value)
    assert not (tmp_path / "ws").exists()


@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_file_comes_out_as_it_was(tmp_path: Path, tied: bool) -> None:
    source = model(tie_embeddings=tied, vocab_size=Tokenizer.train(TEXTS, 280).vocab_size)
    import_model(str(gguf_file(tmp_path / "m.gguf", source)), tmp_path / "ws")
    imported = trained_model(tmp_path / "ws")
    assert {**imported.config.to_dict(), "norm_eps": 0} == {**source.config.to_dict(), "norm_eps": 0}
    assert imported.config.norm_eps == pytest.approx(source.config.norm_eps)
    for name, tensor in source.state_dict().items():
        assert torch.equal(imported.state_dict()[name], tensor), name
    tokenizer = load_tokenizer(tmp_path / "ws")
    text = "a fox, 123 Zoë"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([0, 1]) == "", "control tokens are special"
    with pytest.raises(ImportRefused, match="no chat_template"):
        chat_prompt(tmp_path / "ws", "why?")


def test_quantised_tensors_are_dequantised(tmp_path: Path) -> None:
    source = model(vocab_size=Tokenizer.train(TEXTS, 280).vocab_size)
    import_model(str(gguf_file(tmp_path / "m.gguf", source, quantised=True)), tmp_path / "ws")
    imported = trained_model(tmp_path / "ws").state_dict()["layers.0.attn.wq.weight"]
    original = source.state_dict()["layers.0.attn.wq.weight"]
    assert not torch.equal(imported, original)
    torch.testing.assert_close(imported, original, atol=float(original.abs().max()) / 127, rtol=0.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "gemma2"}, "found the architecture gemma2"),
        ({"scaling": gguf.RopeScalingType.LONGROPE}, "RoPE scaling 'longrope'"),
        ({"tokenizer": "bert"}, "the tokenizer 'bert' is not known"),
        ({"pre": "deepseek-llm"}, "'deepseek-llm' is not known"),
        ({"fields": {"llama.expert_count": 8}}, "a mixture of 8 experts"),
        ({"fields": {"tokenizer.ggml.eot_token_id": 9999}}, "got 9999"),
        ({"fields": {"llama.logit_scale": 0.5}}, "logit_scale = 0.5"),
        ({"extra": {"rope_factors_long.weight": torch.ones(3)}}, "'longrope'"),
        ({"extra": {"rope_freqs.weight": torch.ones(4)}}, r"rope_freqs.weight is \(4,\), expected \(3,\)"),
        ({"extra": {"output_norm.weight": torch.full((32,), torch.inf)}}, "output_norm.weight holds NaN or infinity"),
    ],
)
def test_gguf_files_that_cannot_be_served_are_refused_by_name(tmp_path: Path, changes: dict, words: str) -> None:
    source = model(vocab_size=Tokenizer.train(TEXTS, 280).vocab_size)
    path = gguf_file(tmp_path / "m.gguf", source, **changes)
    with pytest.raises(ImportRefused, match=words):
        import_model(str(path), tmp_path / "ws")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"not one" * 10)
    for name, words in (
        (tmp_path / "m.gguf", "expected a GGUF file"),
        (tmp_path / "none", "expected a Hugging Face folder"),
    ):
        with pytest.raises(ImportRefused, match=words):
            import_model(str(name), tmp_path / "ws")


def test_the_command_describes_without_writing_and_imports(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from course.cli import app

    folder = hugging_face_folder(tmp_path, model())
    described = CliRunner().invoke(app, ["import", str(folder), str(tmp_path / "ws"), "--check", "--blocks", "1000"])
    assert described.exit_code == 0 and not (tmp_path / "ws").exists()
    for words in ("34,976, torch.float32", "1, 5", "1000 blocks of 16 tokens"):
        assert words in described.output
    assert CliRunner().invoke(app, ["import", str(folder), str(tmp_path / "ws")]).exit_code == 0
    assert (tmp_path / "ws" / "final.pt").is_file()
