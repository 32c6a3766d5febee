"""What the checks compare with: `ai_playground`'s own Transformer and full recompute.

`first_divergence` is the one comparison of tokens in this project; every check uses it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ai_playground.models import Transformer, TransformerConfig, end_tokens
from ai_playground.models.layers import RMSNorm
from ai_playground.workspace import default_workspace, load_checkpoint, load_tokenizer

TIE_TOLERANCE = 1e-4  # fp32: two correct matmuls can round differently by less than this


def random_model(config: TransformerConfig, seed: int, silent: int = 0, ties: bool = False) -> Transformer:
    """A model with random weights whose greedy text depends on every part of it.

    Norm weights differ from 1, so that a skipped norm shows; queries, keys and values are larger than at
    initialisation, so that attention prefers some positions and a wrong position or mask shows; and embeddings are
    smaller, else the newest token outweighs everything before it.

    Args:
        config: the shape; `silent` needs an untied head.
        seed: fixes the weights.
        silent: the last so many token ids are never written by the model (their logit is always 0). A prompt
            that begins with one of them can be recognised whenever it goes through the model.
        ties: tokens 1, 5, 9, ... have the head's row of the token before them, so that a third of the greedy tokens
            are ties. The rows at the end have no twin: matrix products treat what does not fill a tile apart, and
            round it otherwise.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, RMSNorm):
                    module.weight.uniform_(0.5, 1.5)
            for layer in model.layers:
                layer.attn.wq.weight.mul_(4.0)
                layer.attn.wk.weight.mul_(4.0)
                layer.attn.wv.weight.mul_(3.0)
                layer.ffn.gate.weight.mul_(2.0)
            # A tied one would make the model repeat its newest token for ever.
            model.embedding.weight.mul_(0.02 if config.tie_embeddings else 0.3)
            if silent:
                model.head.weight[-silent:] = 0.0
            if ties:
                first = torch.arange(0, (config.vocab_size - silent) // 16 * 16, 4)
                model.head.weight[first + 1] = model.head.weight[first]
    return model.eval().requires_grad_(False)


def trained_model(ws: Path) -> Transformer:
    """The model of a workspace, loaded without any code of a student's."""
    checkpoint = load_checkpoint(ws)
    model = Transformer(checkpoint["config"])
    model.load_state_dict(checkpoint["model"])
    return model.eval().requires_grad_(False)


def build_model(spec: dict[str, Any]) -> Transformer:
    """The model that a case asks for; the last 128 are kept: all checks together have 85.

    Args:
        spec: `{"workspace": PATH}` is a trained one, `{"config": {...}, "seed": int}` a random one, which may
            have `"silent"` and `"ties"`; both may have a `"dtype"` such as `"bfloat16"`.
    """
    return _build(json.dumps(spec, sort_keys=True))


@lru_cache(maxsize=128)
def _build(text: str) -> Transformer:
    spec = json.loads(text)
    if "workspace" in spec:
        model = trained_model(Path(spec["workspace"]))
    else:
        config = TransformerConfig.from_dict(spec["config"])
        model = random_model(config, spec["seed"], spec.get("silent", 0), spec.get("ties", False))
    return model.to(getattr(torch, spec.get("dtype", "float32")))


def prompt_ids(prompt: list[int] | str) -> list[int]:
    """A case's prompt: token ids, or a text, which the workspace's tokenizer encodes."""
    if not isinstance(prompt, str):
        return list(prompt)
    ws = default_workspace()
    return list(_encoded(ws, (ws / "tokenizer.json").stat().st_mtime_ns, prompt))


@lru_cache(maxsize=256)
def _encoded(ws: Path, _: int, text: str) -> tuple[int, ...]:
    return tuple(load_tokenizer(ws).encode(text))


EndTokens = int | list[int] | tuple[int, ...] | None  # a list is what JSON makes of several


def greedy(model: Callable[[Tensor], Tensor], prompt: list[int], n: int, eos_id: EndTokens = None) -> list[int]:
    """`n` greedy tokens by full recompute, fewer if one of `eos_id` comes first (it is kept).

    The answer is kept too: a model that was asked must not be changed afterwards.
    """
    return list(_greedy(model, tuple(prompt), n, end_tokens(eos_id)))


@lru_cache(maxsize=1024)  # each failure asks again for what its neighbours, and the last submission, asked for
@torch.no_grad()
def _greedy(model: Callable[[Tensor], Tensor], prompt: tuple[int, ...], n: int, ends: tuple[int, ...]) -> list[int]:
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


@dataclass(frozen=True)
class Divergence:
    """The first place where tokens are wrong, seen along the engine's own tokens."""

    position: int  # index into the new tokens
    found: int
    expected: int
    gap: float  # how much larger the reference's logit of `expected` is; 0.0 is a tie, which goes to the first index


def first_divergence(
    model: Callable[[Tensor], Tensor], prompt: list[int], output: list[int], tolerance: float = TIE_TOLERANCE
) -> Divergence | None:
    """Where `output` stops being a greedy continuation of `prompt`; None if it is one throughout.

    One full forward pass over prompt and output gives the reference's logits before every new token. A token
    is right if it is the argmax there, or if its logit is within `tolerance` of the argmax's: two correct
    engines can round differently at a near-tie, and comparison then goes on along the engine's own tokens. Logits
    that are equal to the last bit are another matter, in float32: there the first index is right and no other
    (bfloat16 is so coarse that rounding makes ties of its own). The answer is kept, as in `greedy`.

    Args:
        prompt: at least one token.
        output: the engine's new tokens, each in [0, vocab_size).
        tolerance: largest allowed difference of the two logits.
    """
    return _first_divergence(model, tuple(prompt), tuple(output), tolerance)


@lru_cache(maxsize=4096)  # right submissions all give the same outputs: who comes later costs nothing here
@torch.no_grad()
def _first_divergence(
    model: Callable[[Tensor], Tensor], prompt: tuple[int, ...], output: tuple[int, ...], tolerance: float
) -> Divergence | None:
    if not output:
        return None
    logits = model(torch.tensor([prompt + output[:-1]]))[0, len(prompt) - 1 :]  # (len(output), vocab_size)
    exact = logits.dtype is torch.float32
    logits = logits.float()
    found = torch.tensor(output)
    best, expected = logits.max(dim=-1)
    gap = best - logits.gather(1, found[:, None])[:, 0]
    wrong = ((found != expected) & ((gap > tolerance) | (exact & (gap == 0.0)))).nonzero()
    if len(wrong) == 0:
        return None
    at = int(wrong[0])
    return Divergence(at, output[at], int(expected[at]), float(gap[at]))


def token_pass_flops(config: TransformerConfig, context: int) -> int:
    """Floating-point operations that one new token costs when it attends to `context` tokens.

    Two for each weight of every matrix, the head included, and `4 * n_heads * head_dim * context` for the
    scores and the weighted sum of each layer.
    """
    attention_weights = config.dim * config.head_dim * 2 * (config.n_heads + config.n_kv_heads)
    ffn_weights = 3 * config.dim * config.hidden_dim
    scores = 4 * config.n_heads * config.head_dim * context
    layers = config.n_layers * (2 * (attention_weights + ffn_weights) + scores)
    return layers + 2 * config.dim * config.vocab_size
