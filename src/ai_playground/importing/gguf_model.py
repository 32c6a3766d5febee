"""A model in a GGUF file, or in the files of a split one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ai_playground.importing.chat import one_template
from ai_playground.importing.families import GGUF, GGUF_ARCHITECTURES, family_of, pieces_of
from ai_playground.importing.gguf_file import Quantised, read_gguf
from ai_playground.importing.refusals import ImportRefused, few, make_config, one_or_several
from ai_playground.importing.rope_scaling import rope_factors
from ai_playground.importing.source import Source
from ai_playground.importing.vocabularies import gguf_tokenizer

_MULTIPLIERS = ("logit_scale", "embedding_scale", "residual_scale", "attention.scale", "attn_logit_softcapping")


def read_gguf_model(path: Path) -> Source:
    """A GGUF file of one of the architectures in `families`; quantised tensors will be dequantised to float32.

    Raises:
        ImportRefused: another architecture, a tokenizer of another kind, or a feature the course's model lacks.
    """
    fields, found = read_gguf(path)
    architecture = fields.get("general.architecture")
    family = family_of(architecture, GGUF_ARCHITECTURES, path)

    def get(name: str, default: Any = None) -> Any:
        return fields.get(f"{architecture}.{name}", default)

    if get("expert_count", 0):
        raise ImportRefused(f"{path}: a mixture of {get('expert_count')} experts cannot be served")
    for name in _MULTIPLIERS:
        if get(name, 1.0) not in (0.0, 1.0):
            raise ImportRefused(f"{path}: {name} = {get(name)} is not supported")
    if "token_embd.weight" not in found:
        raise ImportRefused(f"{path}: the tensors are not those of its family: missing token_embd.weight")
    tokenizer = gguf_tokenizer(fields, path)
    factors_tensor = found.pop("rope_freqs.weight", None)
    longrope = sorted(name for name in found if name.startswith("rope_factors_"))
    if longrope:
        raise ImportRefused(f"{path}: RoPE scaling 'longrope' is not supported, found {few(longrope)}")
    config = make_config(
        path,
        len(found),
        vocab_size=found["token_embd.weight"].shape[0],
        dim=get("embedding_length"),
        n_layers=get("block_count"),
        n_heads=get("attention.head_count"),
        n_kv_heads=get("attention.head_count_kv"),
        head_dim=get("attention.key_length"),
        hidden_dim=get("feed_forward_length"),
        max_seq_len=get("context_length"),
        rope_theta=get("rope.freq_base", 10_000.0),
        norm_eps=get("attention.layer_norm_rms_epsilon", 1e-5),
        tie_embeddings="output.weight" not in found,
        eos_id=one_or_several(
            [
                fields[f"tokenizer.ggml.{name}_token_id"]
                for name in ("eos", "eot", "eom")
                if f"tokenizer.ggml.{name}_token_id" in fields
            ]
        ),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
    )
    for name, wanted in (("rope.dimension_count", "RoPE on"), ("attention.value_length", "values of")):
        if get(name, config.head_dim) != config.head_dim:
            raise ImportRefused(
                f"{path}: {wanted} {get(name)} dimensions, where a head has {config.head_dim}, is not supported"
            )
    window = get("attention.sliding_window", 0)
    if window and window < config.max_seq_len:
        raise ImportRefused(f"{path}: sliding_window = {window} is not supported: each token must see all before it")
    config = replace(config, **_stretched(get, config, factors_tensor, path))
    pieces = pieces_of(config, family, found, GGUF, path)
    tokens = fields["tokenizer.ggml.tokens"]
    named = {}
    for theirs, ours in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        token = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if type(token) is int and 0 <= token < len(tokens):
            named[f"{ours}_token"] = tokens[token]
    template = one_template(fields.get("tokenizer.chat_template"), path)
    return Source(path, config, pieces, tokenizer, template, named)


def _stretched(get: Callable[..., Any], config: Any, tensor: Quantised | None, path: Path) -> dict[str, Any]:
    """RoPE's factors: of a tensor (Llama 3.1 and later), or of the metadata."""
    kind = get("rope.scaling.type", "none")
    settings = {
        "rope_type": "default" if kind == "none" else kind,
        "factor": get("rope.scaling.factor", get("rope.scale_linear")),
        "original_max_position_embeddings": get("rope.scaling.original_context_length"),
    }
    if tensor is None:
        factors, scale = rope_factors(settings, config.head_dim, config.rope_theta, config.max_seq_len, path)
        return {"rope_factors": factors, "rope_scale": scale}
    if kind != "none":
        raise ImportRefused(f"{path}: RoPE scaling {kind!r} on top of rope_freqs.weight is not supported")
    if tensor.shape != (config.head_dim // 2,):
        raise ImportRefused(f"{path}: rope_freqs.weight is {tensor.shape}, expected ({config.head_dim // 2},)")
    return {"rope_factors": tuple(tensor.read().double().tolist())}
