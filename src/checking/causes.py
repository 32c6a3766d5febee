"""From wrong tokens to the likely mistake: a replay that makes the same ones, or what their place points to."""

import torch

from ai_playground.models import Transformer
from ai_playground.workspace import default_workspace
from checking.reference import build_model, first_divergence, greedy
from checking.replay import explain_tokens

REPLAYED = "(a replay with just this mistake makes the same tokens as yours)"


def likely_cause(
    model: Transformer, prompt: list[int], output: list[int], at: int, block_size: int = 16, paged: bool = True
) -> str:
    """The mistake that explains the tokens, or else what the place of the first wrong one points to."""
    if output[: len(prompt)] == prompt and at < len(prompt):
        return "the prompt is in it: return only what is new"
    replayed = explain_tokens(model, prompt, output, at, block_size)
    if replayed:
        return f"{replayed} {REPLAYED}"
    shipped = build_model({"workspace": str(default_workspace())})
    if shipped is not model and first_divergence(shipped, prompt, output) is None:
        return "these are the tokens of the workspace's model: use the one that is passed as model="
    right = greedy(model, prompt, at + 6)
    if len(output) > at + 2 and output[: at + 5] == right[1 : at + 6][: len(output)]:
        return "the prefill's token is missing: the prefill makes the first new token already"
    if len(output) > 2 and output[0] == right[0] and output[1 : at + 6] == right[: len(output[1 : at + 6])]:
        return "the first new token comes twice: it is made by the prefill, and the first decode step makes the second"
    for length in range(2, at + 1):
        if output[at : at + length] == output[at - length : at] and len(output[at : at + length]) == length:
            return "a run of tokens comes twice: what was made before a preemption is counted again after it"
    row = _row_of(model, prompt, output) if at == 0 else None
    if row is not None:
        return (
            f"this is what follows prompt token {row}, not the last one: the next token comes from the logits of the "
            "prefill's last row"
        )
    if not paged:
        return "full recompute: feed prompt and all new tokens each time, and take the argmax of the last row"
    if at == 0:
        return (
            "the very first token comes from the prefill, so decode is not the reason: compare with `Transformer`, "
            "layer by layer, first what attention gives (mask, positions, heads), then the norms and the residuals"
        )
    if at == 1:
        return (
            "the first decode step: the position of the new token, the token that is fed in, or which keys and values "
            "it attends to (each layer has its own)"
        )
    if (len(prompt) + at - 1) % block_size == 0:
        return (
            f"it goes wrong at position {len(prompt) + at - 1} of the sequence, where a new block begins (blocks of "
            f"{block_size}): is the block table extended before the token is written, and is its slot "
            "block * block_size + offset?"
        )
    return (
        "decode: compare the keys and values in the pool with those of a full forward pass, layer by layer and slot by "
        "slot (block * block_size + offset)"
    )


def _row_of(model: Transformer, prompt: list[int], output: list[int]) -> int | None:
    """The place of the prompt, its last aside, whose next token comes first, if all that follows is right then.

    One equal token is a coincidence that few words make likely, so too few tokens say nothing. Full recompute that
    looks at the same row each time repeats one token for ever.
    """
    if len(output) < 4:
        return None
    with torch.no_grad():
        best = model(torch.tensor([prompt]))[0, :-1].argmax(dim=-1).tolist()
    if output[0] not in best:
        return None
    goes_on = first_divergence(model, [*prompt, output[0]], output[1:]) is None
    return best.index(output[0]) if goes_on or set(output) == {output[0]} else None
