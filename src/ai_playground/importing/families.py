"""The families that are served: LLaMA and those that differ from it by one thing each, and why others are not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ai_playground.importing.refusals import ImportRefused, few
from ai_playground.models import Transformer, TransformerConfig


@dataclass(frozen=True)
class Family:
    """What a family has that LLaMA has not, and in which order its files keep the rows of queries and keys."""

    qkv_bias: bool = False
    qk_norm: bool = False
    fused: bool = False  # one tensor for q, k and v, and one for gate and up
    halves_in_gguf: bool = True  # rotate-half order; llama.cpp turns LLaMA's into neighbouring pairs when it converts


_LLAMA = Family(halves_in_gguf=False)
ARCHITECTURES = {  # of config.json
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "Qwen3ForCausalLM": Family(qk_norm=True),
    "Phi3ForCausalLM": Family(fused=True),
}
GGUF_ARCHITECTURES = {
    "llama": _LLAMA,
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "phi3": Family(fused=True),
}

_REASONS = {  # a part of the architecture's name, in small letters, to what the course's model lacks
    "moe": "a mixture of experts",
    "mixtral": "a mixture of experts",
    "deepseek": "a mixture of experts and latent attention",
    "llama4": "a mixture of experts and layers without RoPE",
    "gemma": "scaled embeddings, norms behind each part and soft-capping",
    "olmo": "norms behind each part, or norms without weights",
    "cohere": "LayerNorm and parts side by side",
    "command": "LayerNorm and parts side by side",
    "granite": "multipliers of embeddings, residuals and logits",
    "smollm3": "layers without RoPE",
    "gptneox": "LayerNorm, and RoPE on a part of each head",
    "gpt2": "learnt positions and LayerNorm",
    "falcon": "LayerNorm and parts side by side",
    "stablelm": "LayerNorm",
    "mamba": "no attention",
    "phi": "LayerNorm and parts side by side",
}


def family_of(architecture: object, known: dict[str, Family], path: Path) -> Family:
    """The family of an architecture.

    Raises:
        ImportRefused: it is none of those that are served; with the reason where it is known.
    """
    if isinstance(architecture, str) and architecture in known:
        return known[architecture]
    name = str(architecture).lower()
    reason = next((f": it has {reason}" for part, reason in _REASONS.items() if part in name), "")
    raise ImportRefused(
        f"{path}: found the architecture {architecture!s:.60}, which cannot be served{reason}; "
        f"can be served: {', '.join(known)}"
    )


class Shelf(Protocol):
    """A tensor in a file."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def read(self) -> Tensor: ...


@dataclass(frozen=True)
class Piece:
    """One tensor of ours, cut from one of theirs when it is read."""

    name: str  # theirs
    shelf: Shelf
    rows: slice = field(default_factory=lambda: slice(None))
    head_dim: int = 0  # if not 0, the rows of each head are put from rotate-half into neighbouring-pair order

    @property
    def shape(self) -> tuple[int, ...]:
        length = len(range(*self.rows.indices(self.shelf.shape[0])))
        return (length, *self.shelf.shape[1:])

    def read(self) -> Tensor:
        values = self.shelf.read()[self.rows]
        return interleave_rotary_rows(values, self.head_dim) if self.head_dim else values.contiguous()


def interleave_rotary_rows(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of a query or key projection from rotate-half RoPE to neighbouring pairs.

    Most models rotate element `i` of a head with element `i + head_dim / 2`, ours `2 i` with `2 i + 1`. The order
    within a head does not matter to the scores, as long as queries and keys agree on it.

    Args:
        weight: `(heads * head_dim, ...)`, a matrix, a bias or the weights of a norm of one head.
        head_dim: an even number.
    """
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))  # (heads, 2, head_dim / 2, ...)
    return halves.transpose(1, 2).flatten(0, 2).contiguous()


# Our names of a layer's modules: in a Hugging Face folder, and in a GGUF file.
_LAYER = {
    "attn_norm": ("input_layernorm", "attn_norm"),
    "attn.wq": ("self_attn.q_proj", "attn_q"),
    "attn.wk": ("self_attn.k_proj", "attn_k"),
    "attn.wv": ("self_attn.v_proj", "attn_v"),
    "attn.wo": ("self_attn.o_proj", "attn_output"),
    "attn.wq.norm": ("self_attn.q_norm", "attn_q_norm"),
    "attn.wk.norm": ("self_attn.k_norm", "attn_k_norm"),
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
_FUSED = {"qkv": ("self_attn.qkv_proj", "attn_qkv"), "gate_up": ("mlp.gate_up_proj", "ffn_up")}
FOLDER, GGUF = 0, 1  # columns of these tables


def pieces_of(
    config: TransformerConfig, family: Family, found: dict[str, Shelf], layout: int, path: Path
) -> dict[str, Piece]:
    """Where each tensor of the course's model comes from; nothing is read.

    Args:
        config: the shape.
        family: what the files have.
        found: the tensors of the files, by their names.
        layout: FOLDER or GGUF.

    Raises:
        ImportRefused: a tensor that is missing, one that no name is known for, or one of another shape.
    """
    with torch.device("meta"):
        expected = Transformer(config).state_dict()
    halves = layout == FOLDER or family.halves_in_gguf
    pieces, missing = {}, []
    for ours in expected:
        theirs, rows = _their_name(ours, config, family, layout)
        if theirs not in found:
            missing.append(theirs)
            continue
        turned = halves and (".wq" in ours or ".wk" in ours)
        pieces[ours] = Piece(theirs, found[theirs], rows, config.head_dim if turned else 0)
    ignored = {_WHOLE["head"][layout] + ".weight"} if config.tie_embeddings else set()  # some store it twice
    used = {piece.name for piece in pieces.values()} | ignored
    unknown = sorted(name for name in set(found) - used if not name.endswith("rotary_emb.inv_freq"))
    if missing or unknown:
        raise ImportRefused(
            f"{path}: the tensors are not those of its family: missing {few(sorted(missing))}; unknown {few(unknown)}"
        )
    wrong = [
        f"{ours} is {piece.shape}, the configuration asks for {tuple(expected[ours].shape)}"
        for ours, piece in pieces.items()
        if piece.shape != expected[ours].shape
    ]
    if wrong:
        raise ImportRefused(f"{path}: {few(wrong)}")
    return pieces


def _their_name(ours: str, config: TransformerConfig, family: Family, layout: int) -> tuple[str, slice]:
    module, _, kind = ours.rpartition(".")
    if not module.startswith("layers."):
        return f"{_WHOLE[module][layout]}.{kind}", slice(None)
    _, index, module = module.split(".", 2)
    prefix = ("model.layers.{}.", "blk.{}.")[layout].format(index)
    if family.fused:
        for fused, parts in (("qkv", _qkv_rows(config)), ("gate_up", _gate_up_rows(config))):
            if module in parts:
                return f"{prefix}{_FUSED[fused][layout]}.{kind}", parts[module]
    return f"{prefix}{_LAYER[module][layout]}.{kind}", slice(None)


def _qkv_rows(config: TransformerConfig) -> dict[str, slice]:
    queries, keys = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    # The last one has no end, so that a tensor with too many rows has the wrong shape.
    return {
        "attn.wq": slice(queries),
        "attn.wk": slice(queries, queries + keys),
        "attn.wv": slice(queries + keys, None),
    }


def _gate_up_rows(config: TransformerConfig) -> dict[str, slice]:
    return {"ffn.gate": slice(config.hidden_dim), "ffn.up": slice(config.hidden_dim, None)}


def read_all(pieces: dict[str, Piece], path: Path, step: Callable[[int], None]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor under our name, one at a time.

    Args:
        step: called with the bytes of each.

    Raises:
        ImportRefused: a number that is not finite, with the tensor's name.
    """
    for ours, piece in pieces.items():
        values = piece.read()
        # In parts, since `isfinite` needs several times the memory of what it looks at.
        if not all(part.isfinite().all() for part in values.flatten().split(2**22)):
            raise ImportRefused(f"{path}: {piece.name} holds NaN or infinity: the file is damaged, download it again")
        yield ours, values
        step(values.nbytes)
        del values
