"""`course import`: other people's models come out as they were, and what cannot be served is refused by name."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ai_playground.importing import ImportRefused, chat_prompt, import_model, interleave_rotary_rows
from ai_playground.models import Transformer, TransformerConfig
from ai_playground.models.layers import apply_rope, precompute_rope_frequencies
from ai_playground.tokenizer import Tokenizer
from ai_playground.workspace import load_tokenizer
from checking.reference import random_model, trained_model

TEXTS = ["Once upon a time there was a fox who had 12 red balls."] * 3
SHAPE = TransformerConfig(
    vocab_size=280, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=6, hidden_dim=64, max_seq_len=64
)
GGUF_LAYER = {
    "attn_norm": "attn_norm",
    "attn.wq": "attn_q",
    "attn.wk": "attn_k",
    "attn.wv": "attn_v",
    "attn.wo": "attn_output",
    "ffn_norm": "ffn_norm",
    "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
}
HF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn.wq": "self_attn.q_proj",
    "attn.wk": "self_attn.k_proj",
    "attn.wv": "self_attn.v_proj",
    "attn.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}


def model(**changes: Any) -> Transformer:
    values = SHAPE.to_dict() | {"rope_theta": 500.0, "norm_eps": 1e-3, "eos_id": 1} | changes
    return random_model(TransformerConfig(**values), 3)


def halves(weight: Tensor, head_dim: int) -> Tensor:
    """A projection in rotate-half order: first the even rows of each head, then the odd ones."""
    heads = weight.unflatten(0, (-1, head_dim))
    return torch.cat((heads[:, 0::2], heads[:, 1::2]), dim=1).flatten(0, 1).contiguous()


def hugging_face_folder(folder: Path, source: Transformer, **changes: Any) -> Path:
    config, state = source.config, source.state_dict()
    tensors = {"model.embed_tokens.weight": state["embedding.weight"], "model.norm.weight": state["norm.weight"]}
    if not config.tie_embeddings:
        tensors["lm_head.weight"] = state["head.weight"]
    for index in range(config.n_layers):
        for ours, theirs in HF_LAYER.items():
            tensor = state[f"layers.{index}.{ours}.weight"]
            tensor = halves(tensor, config.head_dim) if ours in ("attn.wq", "attn.wk") else tensor
            tensors[f"model.layers.{index}.{theirs}.weight"] = tensor
    values = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.hidden_dim,
        "max_position_embeddings": config.max_seq_len,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_act": "silu",
        "eos_token_id": [config.eos_id, 5],
    }
    drop = changes.pop("drop", None)
    extra = changes.pop("extra", {})
    tensors = {name: tensor for name, tensor in (tensors | extra).items() if name != drop}
    dtype = changes.pop("dtype", torch.float32)
    names = sorted(tensors)
    for part in range(2):  # large models come in several files
        shard = {name: tensors[name].to(dtype).contiguous() for name in names[part::2]}
        save_file(shard, folder / f"model-{part}.safetensors")
    (folder / "config.json").write_text(json.dumps(values | changes))
    Tokenizer.train(TEXTS, config.vocab_size).save(folder / "tokenizer.json")
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True}, {"n_kv_heads": 4, "head_dim": 8}])
def test_a_hugging_face_folder_comes_out_as_it_was(tmp_path: Path, changes: dict) -> None:
    source = model(**changes)
    import_model(str(hugging_face_folder(tmp_path, source)), tmp_path / "ws")
    imported = trained_model(tmp_path / "ws")
    assert imported.config == source.config
    for name, tensor in source.state_dict().items():
        assert torch.equal(imported.state_dict()[name], tensor), name
    assert load_tokenizer(tmp_path / "ws").encode("a fox") == load_tokenizer(tmp_path).encode("a fox")
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
        ({"architectures": ["MistralForCausalLM"]}, "found MistralForCausalLM"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "RoPE scaling"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "rope_theta": 1e4}}, "RoPE scaling"),
        ({"sliding_window": 4096}, "sliding_window = 4096"),
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


def gguf_file(path: Path, source: Transformer, quantised: bool = False, **changes: Any) -> Path:
    config, state = source.config, source.state_dict()
    backend = json.loads(Tokenizer.train(TEXTS, config.vocab_size).backend.to_str())["model"]
    tokens = sorted(backend["vocab"], key=backend["vocab"].get)
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(config.n_layers)
    writer.add_context_length(config.max_seq_len)
    writer.add_embedding_length(config.dim)
    writer.add_feed_forward_length(config.hidden_dim)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    if "scaling" in changes:
        writer.add_rope_scaling_type(changes["scaling"])
    writer.add_tokenizer_model(changes.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges([" ".join(merge) for merge in backend["merges"]])
    writer.add_eos_token_id(config.eos_id)
    tensors = {"token_embd.weight": state["embedding.weight"], "output_norm.weight": state["norm.weight"]}
    if not config.tie_embeddings:
        tensors["output.weight"] = state["head.weight"]
    for index in range(config.n_layers):
        for ours, theirs in GGUF_LAYER.items():
            tensors[f"blk.{index}.{theirs}.weight"] = state[f"layers.{index}.{ours}.weight"]
    for name, tensor in tensors.items():
        values = tensor.numpy().astype(np.float32)
        if quantised and values.ndim == 2 and values.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
        ({"architecture": "qwen2"}, "found qwen2"),
        ({"scaling": gguf.RopeScalingType.YARN}, "RoPE scaling"),
        ({"tokenizer": "llama"}, "byte-level BPE"),
        ({"pre": "deepseek-llm"}, "'deepseek-llm' is not known"),
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
