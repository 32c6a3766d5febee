"""From p3's wrong tokens to the mistake that makes them, as `checking.replay` does it for M13's engines."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from checking.reference import first_divergence, greedy
from milestones.p3.decoder_probes import variants
from milestones.p3.given_models import build_gpt
from projects.p3_kv_serve.given_model import GPT


def cause_of(case: dict[str, Any], new: list[int], at: int, evidence: dict[str, Any] | None) -> str:
    """The likely mistake: the one that explains every token, or else what becomes right when a part is taken away.

    First each of `_suspects` is tried: does a full pass with just this mistake choose all the tokens that came out?
    Then the outputs for `variants` are looked at.

    Args:
        case: the failing one.
        new: what came after the prompt, at most `n` tokens.
        at: where the first wrong one is.
        evidence: the probe's, with its "variants" if it made them.
    """
    model, prompt, n = build_gpt(case["model"]), case["prompt"], case["n"]
    if n > 2 and new[: n - 1] == greedy(model, prompt, n)[1:]:
        return "the first new token is missing: the logits after the prompt's last token already give one"
    if case["function"] == "generate_full":
        return (
            "full recompute: does the whole sequence, prompt and new tokens, go through `model(...)` each time, and "
            "is the last position's row of logits the one that is used?"
        )
    for cause, positions, bias, scale in _suspects(model, len(prompt), len(prompt) + n):
        if first_divergence(_what_if(model, positions, bias, scale), prompt, new) is None:
            return cause
    found = (evidence or {}).get("variants", {})
    becomes_right = {name for name, changed in variants(case).items() if _is_right(changed, found.get(name))}
    if {"one layer", "same keys and values"} <= becomes_right:
        return (
            "the input of attention in the layers after the first: with one layer the tokens are right. ln_1 "
            "normalises the x that the layer before has left, not a stale one"
        )
    if "one layer" in becomes_right:
        return (
            "layers: with only one of them the tokens are right. Each layer has keys and values of its own, and must "
            "get back those that it stored itself"
        )
    if "same keys and values" in becomes_right:
        return (
            f"the cache: if all keys and values are the same, the tokens are right; here they go wrong at new token "
            f"{at}. What does that step attend to? Each key and value so far, the new token's too, once, in the "
            "order of the positions, and each query with the keys of its own head"
        )
    if "no feed-forward" in becomes_right:
        return (
            "the feed-forward part: without it the tokens are right. ln_2 normalises x after attention was added to "
            "it, not a stale x from before"
        )
    if "no attention" in becomes_right:
        return (
            "the input of attention: without attention the tokens are right, but they are wrong even when what is "
            "cached makes no difference. q, k and v come, in this order, from ln_1(x), in the prefill and in each "
            "decode step"
        )
    if found:
        return (
            f"it is wrong from new token {at} on, also with one layer, without attention and without the feed-forward "
            "part. Check the token that is fed in, each ln, the residual additions and the head, step by step"
        )
    if at == 0:
        return "the very first new token comes from the prefill: its mask, its positions, or its last row"
    return "decode: compare the keys and values in your cache with those of a full forward pass, position by position"


def _is_right(case: dict[str, Any], value: Any) -> bool:
    """Whether a variant came out right; False too where the right text hardly varies and chance may decide."""
    right = greedy(build_gpt(case["model"]), case["prompt"], case["n"])
    return value == case["prompt"] + right and len(set(right)) >= len(right) / 3


def _suspects(model: GPT, prompt: int, length: int) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    """Common mistakes of a cached decoder, each with what it amounts to in a full pass over `length` tokens.

    Yields:
        the cause in words; `(length,)` positions that the tokens get; `(length, length)` what is added to the scores
        (`-inf` hides, `log(m)` makes a position count m times); and what the scores are multiplied with.
    """
    places = torch.arange(length)
    new = places >= prompt
    causal = torch.full((length, length), -math.inf).triu(1)
    scale = model.config.head_dim**-0.5
    last = model.config.max_seq_len - 1
    for given, positions in {
        "one too many": places + new,
        "one too few": places - new.long(),
        "0 each time": places * ~new,
        "the prompt's length each time": places.clamp(max=prompt),
        "a count that begins at 0 again after the prompt": places - prompt * new,
        "a count that begins at 1 again after the prompt": places - (prompt - 1) * new,
    }.items():
        cause = f"positions: the new tokens get {given}. A token's position is the number of tokens before it"
        yield cause, positions.clamp(max=last), causal, scale
    bias = causal.clone()
    bias[:prompt, :prompt] = 0.0
    yield (
        "the causal mask in the prefill: the prompt's tokens see those after them. Position t sees 0 .. t only",
        places,
        bias,
        scale,
    )
    earlier = new[:, None] & new & (places < places[:, None])  # row: a new token; column: a new one before it
    alone = causal.masked_fill(earlier, -math.inf)
    yield (
        "the cache does not grow: a new token sees the prompt and itself, but not the new tokens before it. Add each "
        "step's keys and values",
        places,
        alone,
        scale,
    )
    times = (places - prompt + 1).clamp(min=1).log()
    yield (
        "the cache is not copied: every new token's place holds the keys and values of the newest one. A view of a "
        "buffer that each step writes again is no copy: clone() it, or write into a place of its own",
        places,
        alone + torch.diag(times),
        scale,
    )
    yield (
        "a new token does not see itself: add its own key and value to the cache before attention, not after",
        places,
        causal.masked_fill(torch.diag(new), -math.inf),
        scale,
    )
    yield "the scores are not divided by sqrt(head_dim)", places, causal, 1.0
    yield "the scores are divided by sqrt(dim), not by sqrt(head_dim)", places, causal, model.config.dim**-0.5


def _what_if(model: GPT, positions: Tensor, bias: Tensor, scale: float) -> Callable[[Tensor], Tensor]:
    """The given model's full forward pass with other positions, mask and scale: `(1, T)` to `(1, T, vocab_size)`."""

    def forward(tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = model.token_embedding(tokens) + model.position_embedding(positions[:length])
        for block in model.blocks:
            qkv = block.qkv(block.ln_1(x)).unflatten(-1, (3, model.config.n_heads, -1))  # (1, T, 3, n_heads, head_dim)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[:length, :length], scale=scale)
            x = x + block.proj(mixed.transpose(1, 2).flatten(2))
            x = x + block.down(F.gelu(block.up(block.ln_2(x))))
        return model.head(model.ln_f(x))

    return forward
