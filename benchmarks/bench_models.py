"""The two models that are served, in the form that each peer reads.

A folder for each model and dtype holds a workspace of the course (`final.pt`, ...), `hf/` for transformers and vLLM,
and a GGUF file for llama.cpp, all with the same numbers. The tokenizers are made up: requests are token ids.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from ai_playground.chapter import TOY
from ai_playground.models import Transformer, TransformerConfig
from ai_playground.workspace import load_checkpoint, save_checkpoint

_LAYER = {  # our name: Hugging Face's, GGUF's
    "attn_norm": ("input_layernorm", "attn_norm"),
    "attn.wq": ("self_attn.q_proj", "attn_q"),
    "attn.wk": ("self_attn.k_proj", "attn_k"),
    "attn.wv": ("self_attn.v_proj", "attn_v"),
    "attn.wo": ("self_attn.o_proj", "attn_output"),
    "ffn_norm": ("post_attention_layernorm", "ffn_norm"),
    "ffn.gate": ("mlp.gate_proj", "ffn_gate"),
    "ffn.up": ("mlp.up_proj", "ffn_up"),
    "ffn.down": ("mlp.down_proj", "ffn_down"),
}
_WHOLE = {
    "embedding": ("model.embed_tokens", "token_embd"),
    "norm": ("model.norm", "output_norm"),
    "head": ("lm_head", "output"),
}


def prepare(model: str, dtype: str, workspace: Path | None, cache: Path) -> Path:
    """The folder of a model in a dtype; written once.

    Args:
        model: `toy`, the chapter's model with seed 0, or `smollm2`.
        workspace: where `course import smollm2` wrote that model; not needed for `toy`.
        cache: where the folders go.

    Raises:
        ValueError: `smollm2` without a workspace.
    """
    if model == "smollm2" and workspace is None:
        raise ValueError("w1 serves SmolLM2: `course import smollm2 DIR`, then `course bench --workspace DIR`")
    folder = cache / f"{model}-{dtype}"
    if (folder / "done").is_file():
        return folder
    if model == "toy":
        torch.manual_seed(0)
        config, weights = TOY, Transformer(TOY).state_dict()
    else:
        checkpoint = load_checkpoint(workspace)
        config, weights = checkpoint["config"], checkpoint["model"]
    weights = {name: tensor.to(getattr(torch, dtype)) for name, tensor in weights.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_checkpoint(folder, config, weights)
    _save_hugging_face(folder / "hf", config, weights, dtype)
    _save_gguf(folder / f"model-{dtype}.gguf", config, weights)
    (folder / "done").touch()
    return folder


def _name(ours: str, which: int) -> str:
    parts = ours.removesuffix(".weight").split(".", 2)
    if parts[0] != "layers":
        return f"{_WHOLE[parts[0]][which]}.weight"
    return f"{('model.layers', 'blk')[which]}.{parts[1]}.{_LAYER[parts[2]][which]}.weight"


def _save_hugging_face(folder: Path, config: TransformerConfig, weights: dict[str, Tensor], dtype: str) -> None:
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    tensors = {}
    for name, tensor in weights.items():
        if name.endswith(("wq.weight", "wk.weight")):  # theirs rotates halves of a head, ours neighbours
            tensor = tensor.unflatten(0, (-1, config.head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)
        tensors[_name(name, 0)] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    values = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "dtype": dtype,
        "vocab_size": config.vocab_size, "hidden_size": config.dim, "intermediate_size": config.hidden_dim,
        "num_hidden_layers": config.n_layers, "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads, "head_dim": config.head_dim, "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta, "max_position_embeddings": config.max_seq_len,
        "tie_word_embeddings": config.tie_embeddings, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values, indent=1))


def _save_gguf(path: Path, config: TransformerConfig, weights: dict[str, Tensor]) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_seq_len)
    writer.add_embedding_length(config.dim)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.hidden_dim)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("llama")
    names = [f"<0x{index:02X}>" if index < 256 else f"t{index}" for index in range(config.vocab_size)]
    writer.add_token_list(names)
    writer.add_token_scores([0.0] * config.vocab_size)
    kinds = [gguf.TokenType.BYTE if index < 256 else gguf.TokenType.NORMAL for index in range(config.vocab_size)]
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, tensor in weights.items():
        if tensor.dtype == torch.bfloat16 and tensor.dim() == 2:
            raw = tensor.view(torch.uint16).numpy().view("uint8")
            writer.add_tensor(_name(name, 1), raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(_name(name, 1), tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
