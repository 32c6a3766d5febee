"""From wrong tokens to the mistake that makes them.

Each known mistake is replayed: a full forward pass over the engine's own tokens, with just that mistake in it. If
the replay chooses the tokens that the engine chose, right ones and wrong ones alike, that mistake is the likely
cause. A guess that explains nothing is not offered.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ai_playground.models import Transformer
from ai_playground.models.layers import apply_rope, precompute_rope_frequencies


@dataclass
class Pass:
    """One forward pass over prompt and output, open to mistakes.

    Attributes:
        tokens: `(T,)` what is fed in at each place.
        positions: `(T,)` where RoPE puts it.
        visible: `(T, T)` bool, row t marks the keys that token t attends to.
        empty: `(T,)` how many slots that were never written (zero keys and values) it attends to as well.
        steps: `(T,)` bool, the tokens that go through decode steps; the others are the prompt.
        mistakes: names of the mistakes inside the layers.
    """

    tokens: Tensor
    positions: Tensor
    visible: Tensor
    empty: Tensor
    steps: Tensor
    block_size: int
    mistakes: set[str] = field(default_factory=set)

    @property
    def prompt(self) -> int:
        """Number of prompt tokens."""
        return int((~self.steps).sum())


def _shift(by: int) -> Callable[[Pass], None]:
    def apply(run: Pass) -> None:
        run.positions = (run.positions + by * run.steps).clamp(min=0)

    return apply


def _decode_at_zero(run: Pass) -> None:
    run.positions = run.positions * ~run.steps


def _all_at_zero(run: Pass) -> None:
    run.positions = torch.zeros_like(run.positions)


def _restart(run: Pass) -> None:
    run.positions = torch.where(run.steps, run.positions - run.prompt, run.positions)


def _in_block(run: Pass) -> None:
    run.positions = run.positions % run.block_size


def _stale(run: Pass) -> None:
    before = torch.cat((run.tokens[:1], run.tokens[:-1]))
    run.tokens = torch.where(run.steps, before, run.tokens)


def _first_again(run: Pass) -> None:
    if run.prompt < len(run.tokens):
        run.tokens = torch.where(run.steps, run.tokens[run.prompt], run.tokens)


def _prompt_again(run: Pass) -> None:
    run.tokens = torch.where(run.steps, run.tokens[run.prompt - 1], run.tokens)


def _not_itself(empty: int) -> Callable[[Pass], None]:
    def apply(run: Pass) -> None:
        own = torch.eye(len(run.tokens), dtype=torch.bool) & run.steps[:, None]
        run.visible = run.visible & ~own
        run.empty = run.empty + empty * run.steps

    return apply


def _never_written(run: Pass) -> None:
    run.visible = torch.zeros_like(run.visible)
    run.empty = torch.arange(1, len(run.tokens) + 1)


def _written_late(run: Pass) -> None:
    index = torch.arange(len(run.tokens))
    run.visible = run.visible & run.steps[:, None] & (index[:, None] != index[None, :])
    run.empty = torch.where(run.steps, 1, index + 1)


def _nobody_itself(run: Pass) -> None:
    run.visible = run.visible & ~torch.eye(len(run.tokens), dtype=torch.bool)


def _one_ahead(run: Pass) -> None:
    index = torch.arange(len(run.tokens))
    prompt = ~run.steps
    ahead = (index[:, None] + 1 == index[None, :]) & prompt[:, None] & prompt[None, :]
    run.visible = run.visible | ahead
    # The last row of a call sees a slot that nobody has written yet, if the block has one.
    room = (index + 1) % run.block_size > 0
    run.empty = run.empty + (room & (run.steps | (index == run.prompt - 1))).long()


def _slot_of_the_block(run: Pass) -> None:
    index, size = torch.arange(len(run.tokens)), run.block_size
    end = torch.where(run.steps, index, run.prompt - 1)  # what had been written when the row was computed
    last = (index // size * size + size - 1)[None, :].minimum(end[:, None])  # (T, T): the last of the key's block
    block_begun = index[None, :] // size * size <= index[:, None]
    run.visible = (index[None, :] == last) & block_begun
    run.empty = index + 1 - (index // size + 1)


def _no_mask(run: Pass) -> None:
    _see_the_future(run)
    _tail_always(run)


def _misses_last(run: Pass) -> None:
    index = torch.arange(len(run.tokens))
    run.visible = run.visible & ~((index[:, None] - 1 == index) & run.steps[:, None])


def _tail_when_decoding(run: Pass) -> None:
    context = torch.arange(1, len(run.tokens) + 1)
    run.empty = run.empty + (-context % run.block_size) * run.steps


def _tail_always(run: Pass) -> None:
    context = torch.arange(1, len(run.tokens) + 1).clamp(min=run.prompt)  # a prefill writes before it reads
    run.empty = run.empty + -context % run.block_size


def _see_the_future(run: Pass) -> None:
    prompt = ~run.steps
    run.visible = run.visible | (prompt[:, None] & prompt[None, :])


def _see_only(which: str) -> Callable[[Pass], None]:
    def apply(run: Pass) -> None:
        index, size = torch.arange(len(run.tokens)), run.block_size
        row, key = index[:, None], index[None, :]
        kept = {
            "first block": key < size,
            "last block": key // size == row // size,
            "full blocks": key < (row + 1) // size * size,
            "prompt": key < run.prompt,
            "new": (key >= run.prompt) | (row < run.prompt),
            "itself": key == row,
            "no first": key > 0,
            "no partial": (key < (row + 1) // size * size) | (row < size),
        }[which]
        run.visible = run.visible & (kept | ~run.steps[:, None])

    return apply


def _mask_multiplies(run: Pass) -> None:
    _see_the_future(run)
    _tail_always(run)
    run.mistakes.add("mask multiplies")


def _window(width: int) -> Callable[[Pass], None]:
    def apply(run: Pass) -> None:
        index = torch.arange(len(run.tokens))
        run.visible = run.visible & (index[:, None] - index[None, :] < width)

    return apply


def _layer(mistake: str) -> Callable[[Pass], None]:
    return lambda run: run.mistakes.add(mistake)


_POSITION = "RoPE position: "
MISTAKES: tuple[tuple[str, Callable[[Pass], None]], ...] = (
    (_POSITION + "each decoded token is put one position too far; the first one stands at len(prompt)", _shift(1)),
    (_POSITION + "each decoded token is put one position too early; the first one stands at len(prompt)", _shift(-1)),
    (_POSITION + "every decoded token is put at position 0, not behind the tokens in the cache", _decode_at_zero),
    (_POSITION + "counting starts again at 0 with the first decoded token: the prompt's length is ignored", _restart),
    (_POSITION + "the offset in the block is used, not the position in the sequence", _in_block),
    (_POSITION + "every token is put at position 0", _all_at_zero),
    ("the token that is fed in is stale: each decode step must feed the token that the last step made", _stale),
    ("the token that is fed in is stale: every decode step feeds the first new token again", _first_again),
    ("the token that is fed in is stale: every decode step feeds the last prompt token", _prompt_again),
    ("order in a layer: the new token's keys and values are written after the gather, so it does not see itself, "
     "but an empty slot", _not_itself(1)),
    ("order in a layer: keys and values are written after the gather, so a token does not see itself", _written_late),
    ("keys and values never reach the slots that are gathered: the pool itself must be written, not a copy of it, and "
     "in the blocks of the block table (a slot is block * block_size + offset)", _never_written),
    ("slot: all tokens of a block go to one slot of it; a slot is block * block_size + offset", _slot_of_the_block),
    ("mask: a token does not see itself; the one at position p sees 0 to p", _nobody_itself),
    ("mask: a token sees one slot too far, the one behind it", _one_ahead),
    ("mask: there is none, so the prefill is not causal and the unused tail (garbage) is attended to", _no_mask),
    ("attention: a decoded token does not see itself; the context is one token too short", _not_itself(0)),
    ("attention: a decoded token does not see the token before it", _misses_last),
    ("attention: nothing cuts the context to its length, so the unused tail of the last block (garbage) is attended "
     "to when decoding", _tail_when_decoding),
    ("attention: nothing cuts the context to its length, so the unused tail of the last block (garbage) is attended "
     "to", _tail_always),
    ("the prefill's mask is not causal: prompt tokens see the ones behind them", _see_the_future),
    ("block table: decode sees the first block only; it must grow, and be gathered whole", _see_only("first block")),
    ("block table: decode sees the last block only; all blocks of the table must be gathered", _see_only("last block")),
    ("block table: decode sees only full blocks; the last, partly filled one belongs to the context too",
     _see_only("full blocks")),
    ("block table: decode sees only full blocks; the last, partly filled one belongs to the context too",
     _see_only("no partial")),
    ("decode sees the prompt only: the new tokens' keys and values never reach the cache", _see_only("prompt")),
    ("decode does not see the prompt: its keys and values never reach the cache", _see_only("new")),
    ("decode sees only the new token itself: the cache is not read", _see_only("itself")),
    ("attention: a decoded token does not see position 0", _see_only("no first")),
    ("mask: it multiplies the scores, so what it should hide has the score 0 and a share of the attention: select "
     "(masked_fill with -inf) instead", _mask_multiplies),
    ("GQA: key/value heads are repeated as a whole (0 1 0 1); neighbouring query heads share one (0 0 1 1)",
     _layer("repeat")),
    ("GQA: every query head uses key/value head 0", _layer("one head")),
    ("attention: the scores are not scaled by 1 / sqrt(head_dim)", _layer("no scale")),
    ("attention: the scores are scaled by 1 / sqrt(dim), not by 1 / sqrt(head_dim)", _layer("dim scale")),
    ("RoPE is not applied at all", _layer("no rope")),
    ("RoPE is applied to the queries but not to the keys, which go to the pool unrotated", _layer("keys unrotated")),
    ("RoPE is applied to the keys but not to the queries", _layer("queries unrotated")),
    ("RoPE is applied to the values in place of the keys; queries and keys are rotated, values never",
     _layer("values for keys rotated")),
    ("RoPE is applied to the values as well; queries and keys are rotated, values never", _layer("values rotated")),
    ("the keys that are read are all zero: they are never written to the pool", _layer("zero keys")),
    ("the values that are read are all zero: they are never written to the pool", _layer("zero values")),
    ("RoPE is applied to the keys twice: when they are written and when they are read", _layer("keys twice")),
    ("a norm is skipped: attn_norm, before the attention", _layer("no attn_norm")),
    ("a norm is skipped: ffn_norm, before the feed-forward layer", _layer("no ffn_norm")),
    ("a norm is skipped: the final norm, before the head", _layer("no final norm")),
    ("the residual stream: the attention's output must be added to x", _layer("no attention residual")),
    ("the residual stream: the feed-forward layer's output must be added to x", _layer("no ffn residual")),
    ("the feed-forward layer is missing, or its output is dropped", _layer("no ffn")),
    ("the feed-forward layer reads x from before the attention", _layer("parallel ffn")),
    ("gate and up are swapped: silu belongs to the gate", _layer("swapped")),
    ("layer index: every layer reads the keys and values of layer 0", _layer("layer 0")),
    ("layer index: decoding with the last layer's weights throughout", _layer("last layer")),
    ("keys and values are swapped where they are written or read", _layer("keys for values")),
    ("RoPE: the frequencies are not those of the configuration (rope_theta)", _layer("default theta")),
)  # fmt: skip


@torch.no_grad()
def explain_tokens(model: Transformer, prompt: list[int], output: list[int], at: int, block_size: int = 16) -> str:
    """The mistakes of which a replay makes the engine's tokens up to a few behind `at`, the first wrong one.

    Returns:
        Their descriptions, at most two; "" if no replay does, or if too few tokens are there to tell.
    """
    if min(len(output), at + 6) < 4:
        return ""  # so few tokens agree with one of many replays by chance
    agreed = {cause: _agreeing(model, prompt, output, block_size, mistake) for cause, mistake in MISTAKES}
    # The most tokens win: two mistakes can look alike for a while, and some for ever.
    most, needed = max(agreed.values()), min(len(output), at + 6)
    if most >= needed:
        return "; or: ".join([cause for cause, tokens in agreed.items() if tokens == most][:2])
    # Any width can be too narrow; the tokens say which it was.
    windows = {
        width: _agreeing(model, prompt, output, block_size, _window(width)) for width in range(2, len(prompt) + at)
    }
    width = max(windows, key=windows.__getitem__, default=0)
    if windows.get(width, 0) < needed:
        return ""
    cause = f"a token sees the last {width} positions only; the one at position p sees 0 to p"
    if width % block_size == 0:
        return f"mask, or slot: {cause}. Is an earlier block written over? A slot is block * block_size + offset"
    return f"mask: {cause}"


def _agreeing(
    model: Transformer, prompt: list[int], output: list[int], block_size: int, mistake: Callable[[Pass], None]
) -> int:
    """How many tokens from the first on a pass with the mistake chooses as the engine did."""
    length = len(prompt) + len(output) - 1
    index = torch.arange(length)
    run = Pass(
        tokens=torch.tensor((prompt + output)[:length]),
        positions=index,
        visible=index[:, None] >= index[None, :],
        empty=torch.zeros(length, dtype=torch.long),
        steps=index >= len(prompt),
        block_size=block_size,
    )
    mistake(run)
    chosen = _forward(model, run)[len(prompt) - 1 :].argmax(dim=-1).tolist()
    return next((at for at, token in enumerate(output) if chosen[at] != token), len(output))


def _forward(model: Transformer, run: Pass) -> Tensor:
    """`(T, vocab_size)` logits of a pass with its mistakes."""
    config, wrong = model.config, run.mistakes
    freqs = model.rope_frequencies(run.tokens.device)
    if "default theta" in wrong:
        freqs = precompute_rope_frequencies(config.head_dim, config.max_seq_len)
    freqs = freqs[run.positions.clamp(max=config.max_seq_len - 1)]
    x = model.embedding(run.tokens)[None]  # (1, T, dim)
    first: tuple[Tensor, Tensor] | None = None
    for layer in model.layers:
        if "last layer" in wrong:
            layer = model.layers[-1]
        h = x if "no attn_norm" in wrong else layer.attn_norm(x)
        attn = layer.attn
        q, k, v = (w(h).unflatten(-1, (-1, config.head_dim)) for w in (attn.wq, attn.wk, attn.wv))
        rotated_q, rotated_k = apply_rope(q, k, freqs)
        if "no rope" not in wrong:
            q = q if "queries unrotated" in wrong else rotated_q
            k = k if "keys unrotated" in wrong else rotated_k
        if "keys twice" in wrong:
            k = apply_rope(q, k, freqs)[1]
        if "values for keys rotated" in wrong:
            k = attn.wk(h).unflatten(-1, (-1, config.head_dim))
        if wrong & {"values for keys rotated", "values rotated"}:
            v = apply_rope(q, v, freqs)[1]
        k = torch.zeros_like(k) if "zero keys" in wrong else k
        v = torch.zeros_like(v) if "zero values" in wrong else v
        if "keys for values" in wrong:
            k, v = v, k
        first = first or (k, v)
        if "layer 0" in wrong:
            k, v = first
        out = _attend(config, run, q, k, v)
        attended = x + attn.wo(out)
        if "no attention residual" in wrong:
            attended = attn.wo(out)
        h = x if "parallel ffn" in wrong else attended
        h = h if "no ffn_norm" in wrong else layer.ffn_norm(h)
        ffn = layer.ffn
        update = ffn.down(F.silu(ffn.up(h)) * ffn.gate(h)) if "swapped" in wrong else ffn(h)
        x = update if "no ffn residual" in wrong else attended + update
        if "no ffn" in wrong:
            x = attended
    return model.unembed(x if "no final norm" in wrong else model.norm(x))[0]


def _attend(config: Any, run: Pass, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`(1, T, n_heads * head_dim)`."""
    group = config.n_heads // config.n_kv_heads
    heads = torch.arange(config.n_heads)
    used = heads // group
    if "repeat" in run.mistakes:
        used = heads % config.n_kv_heads
    if "one head" in run.mistakes:
        used = torch.zeros_like(heads)
    k, v = k[:, :, used].transpose(1, 2), v[:, :, used].transpose(1, 2)  # (1, n_heads, T, head_dim)
    scale = config.head_dim**-0.5
    if "no scale" in run.mistakes:
        scale = 1.0
    if "dim scale" in run.mistakes:
        scale = config.dim**-0.5
    scores = (q.transpose(1, 2) @ k.transpose(2, 3)).float() * scale  # (1, n_heads, T, T)
    if "mask multiplies" in run.mistakes:
        scores = scores.tril()
    scores = scores.masked_fill(~run.visible, float("-inf"))
    # An empty slot has a zero key, so its score is 0, and a zero value; many of them are one of that much weight.
    nothing = run.empty.log()[:, None].expand(*scores.shape[:-1], 1)
    weights = torch.cat((scores, nothing), dim=-1).softmax(dim=-1)[..., :-1].nan_to_num()
    return (weights.to(v.dtype) @ v).transpose(1, 2).flatten(-2)
