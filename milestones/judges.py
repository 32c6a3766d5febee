"""What the judges of several milestones share: types first, then tokens, then words for what went wrong."""

from pathlib import Path
from typing import Any

import torch

from ai_playground.models import Transformer
from ai_playground.workspace import default_workspace, load_tokenizer
from milestones.diagnose import explain_tokens
from milestones.harness import CheckFailed, will_be_shown
from milestones.reference import TIE_TOLERANCE, build_model, first_divergence, greedy


def token_list(value: Any, what: str, vocab_size: int) -> list[int]:
    """`value` as a plain list of token ids.

    Raises:
        CheckFailed: it is anything else.
    """
    if isinstance(value, dict) and "not_plain" in value:
        raise CheckFailed(
            f"{what} as a plain list of ints",
            f"a {value['not_plain']}: {value.get('repr')}",
            "return `list`, not a tensor",
        )
    if value is None:
        raise CheckFailed(f"{what} as a list of ints", "None", "the function ends without a `return`")
    if type(value) is not list:
        raise CheckFailed(f"{what} as a list of ints", f"a {type(value).__name__}: {str(value)[:80]}")
    for position, token in enumerate(value):
        if type(token) is not int:
            shown = token.get("not_plain") if isinstance(token, dict) else type(token).__name__
            cause = "plain ints in a plain list: use `int(...)`, or `.tolist()`"
            raise CheckFailed(f"{what} as a plain list of ints", f"a {shown} at position {position}", cause)
        if not 0 <= token < vocab_size:
            cause = "is it the model that is passed as model= that is used, and only the row of its own logits?"
            raise CheckFailed(f"{what}: token ids in [0, {vocab_size})", f"{token} at position {position}", cause)
    return value


def judge_tokens(
    model_spec: dict[str, Any],
    prompt: list[int],
    n: int,
    value: Any,
    what: str,
    eos_id: int | None = None,
    tolerance: float = TIE_TOLERANCE,
    block_size: int = 16,
    paged: bool = True,
) -> None:
    """Whether `value` is the greedy continuation of `prompt`: its type, its tokens and its length.

    `block_size` and `paged` (whether a cache is expected) only help to find the likely cause.

    Raises:
        CheckFailed: with the first difference and what is around it.
    """
    model = build_model(model_spec)
    output = token_list(value, what, model.config.vocab_size)
    difference = first_divergence(model, prompt, output[:n], tolerance)
    if difference is not None:
        at = difference.position
        expected = output[:at] + greedy(model, prompt + output[:at], min(n - at, 6), eos_id)
        raise CheckFailed(
            f"{what}: token {difference.expected} at position {at} of the new tokens: "
            f"{around(expected, at)}{in_words(model_spec, expected)}",
            f"token {difference.found}{near_tie(difference.gap)}: {around(output, at)}{in_words(model_spec, output)}",
            likely_cause(model, prompt, output, at, block_size, paged) if will_be_shown.get() else "",
        )
    if len(output) > n:
        one = "one token too many: " if len(output) == n + 1 else "too many tokens: "
        found = f"{len(output)} tokens: {around(output, n)}"
        if output[: len(prompt)] == prompt and len(output) == len(prompt) + n:
            raise CheckFailed(f"{what}: the {n} new tokens", found, "the prompt is in it: return only what is new")
        cause = one + "is a request done as soon as it has its last token, also when a prefill makes that token?"
        raise CheckFailed(f"{what}: {n} tokens", found, cause)
    if eos_id is not None and eos_id in output:
        first = output.index(eos_id)
        if first != len(output) - 1:
            raise CheckFailed(
                f"{what}: nothing after the end token {eos_id} at position {first}",
                f"{len(output) - 1 - first} more",
                "the end token is not noticed where it was made: a prefill can make it too",
            )
    elif len(output) < n:
        short = n - len(output)
        if eos_id is not None and greedy(model, prompt + output, 1) == [eos_id]:
            raise CheckFailed(
                f"{what}: ... and {eos_id}, the end token, as the last of the output",
                f"it stops before: {around(output, len(output) - 1)}",
                "the end token is missing: it ends the request, and it is kept",
            )
        found = f"the first {len(output)} of them; the last {short}: {clip(greedy(model, prompt + output, short))}"
        cause = (
            "one token short: a request is done when its output has max_new tokens, the prefill's and the last one "
            "included (that the last is never cached is another matter)"
            if short == 1
            else "tokens are lost: what was made before a preemption must stay in the output, and a request is done "
            "only with its last token"
        )
        raise CheckFailed(f"{what}: {n} tokens", f"{found}, are missing", cause)


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
    if not paged:
        return "full recompute: feed prompt and all new tokens each time, and take the argmax of the last row"
    if at == 0 and (row := _row_of(model, prompt, output[0])) is not None:
        return (
            f"this is what follows prompt token {row}, not the last one: the next token comes from the logits of the "
            "prefill's last row"
        )
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


def near_tie(gap: float) -> str:
    """How near a wrong token was to the right one, where that is worth a thought."""
    return f" (nearly a tie: its logit is {gap:.2g} lower)" if gap < 0.01 else ""


def _row_of(model: Transformer, prompt: list[int], token: int) -> int | None:
    """The first place of the prompt, its last aside, after which the token would be right."""
    with torch.no_grad():
        best = model(torch.tensor([prompt]))[0, :-1].argmax(dim=-1).tolist()
    return best.index(token) if token in best else None


def in_words(model_spec: dict[str, Any], tokens: list[int]) -> str:
    """The tokens as text, where the model has a tokenizer."""
    if "workspace" not in model_spec:
        return ""
    tokenizer = load_tokenizer(Path(model_spec["workspace"]))
    return f", {tokenizer.decode([token for token in tokens if token < tokenizer.vocab_size])[:80]!r}"


def around(tokens: list[int], at: int) -> str:
    """The tokens near a position, that one in brackets."""
    shown = [f"[{token}]" if index == at else str(token) for index, token in enumerate(tokens)]
    first, last = max(0, at - 3), at + 5
    return ("... " if first else "") + " ".join(shown[first:last]) + (" ..." if last < len(shown) else "")


def clip(tokens: list[int], most: int = 12) -> str:
    """The first tokens of a list."""
    return " ".join(map(str, tokens[:most])) + (" ..." if len(tokens) > most else "")


def judge_refusal(evidence: Any, words: list[str], what: str) -> None:
    """Whether the engine refused with a ValueError whose message has all of `words`.

    Raises:
        CheckFailed: it did not refuse, raised something else, or did not name the culprit.
    """
    if not isinstance(evidence, dict) or evidence.get("raised") != "ValueError":
        raised = evidence.get("raised") if isinstance(evidence, dict) else None
        found = f"{raised}: {evidence.get('message')}" if raised else f"no error; it returned {evidence}"
        if isinstance(evidence, dict) and evidence.get("stopped"):
            found = "no error; it did not end, and was stopped"
        raise CheckFailed(
            f"a ValueError before any work, because {what}",
            found,
            "what never fits, or cannot be served, is refused first",
        )
    missing = [word for word in words if word not in str(evidence.get("message"))]
    if missing:
        raise CheckFailed(
            f"a message that names {' and '.join(missing)}, because {what}",
            f"ValueError: {evidence.get('message')}",
            "whoever reads the message must find the culprit without a debugger",
        )


def judge_canaries(evidence: dict[str, Any]) -> None:
    """Whether the products of known size in `probes.observed` were counted.

    Raises:
        CheckFailed: they were not.
    """
    if evidence["canaries"] != [2 * 8 * 16 * 32] * 2:
        raise CheckFailed("PyTorch to count work as it does", "a count that was tampered with", "leave torch as it is")


def plain_int(report: dict[str, Any], key: str) -> int:
    """`report[key]`, which must be a plain int.

    Raises:
        CheckFailed: it is missing or something else.
    """
    value = report.get(key)
    if type(value) is not int:
        raise CheckFailed(f"report[{key!r}] as a plain int", f"{value!r}" if key in report else "no such key")
    return value
