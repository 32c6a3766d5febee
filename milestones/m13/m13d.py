"""M13d: the finale. Your own trained model, served by your own engine, and the paper trail of it."""

import json
from pathlib import Path
from typing import Any

from ai_playground.prompts import FINALE_PROMPTS
from ai_playground.workspace import default_workspace, load_tokenizer, record_metrics
from checking.check import Check, CheckFailed
from checking.evidence import plain_int
from checking.reference import build_model
from checking.tokens import judge_tokens, token_list
from milestones.m13 import probes
from milestones.subjects import M13

READ = "milestones/m13/m13d.md"
SHIPPED = str(default_workspace())
NUMBERS = {
    "tokens_per_sec": (0.0, float("inf")),
    "mean_occupancy": (0.0, 1.0),
    "kv_waste_naive": (0.0, 1.0),
    "kv_waste_paged": (0.0, 1.0),
}


def judge_finale(case: dict[str, Any], evidence: Any) -> None:
    """The text is what the model writes after the first prompt, and the figures are there and possible."""
    report = evidence.get("report")
    if type(report) is not dict or "not_plain" in report:
        raise CheckFailed("the report as a dict", "None" if report is None else str(report)[:80])
    ws = Path(case["workspace"])
    spec = case.get("model") or {"workspace": case["workspace"]}
    config, tokenizer = build_model(spec).config, load_tokenizer(ws)
    output = token_list(report.get("output_ids"), "report['output_ids']", config.vocab_size)
    prompt = tokenizer.encode(FINALE_PROMPTS[0])
    try:
        judge_tokens(spec, prompt, len(output), output, "report['output_ids']", config.eos_id)
    except CheckFailed as failure:
        failure.cause = (
            "if M13c passes: does the finale serve the trained model that `load_model(ws)` gives, with the prompts of "
            "FINALE_PROMPTS in their order, and report the tokens of the first?"
        )
        raise
    if len(output) < 32 and output[-1:] != [config.eos_id]:
        raise CheckFailed("a text of at least 32 tokens, or one that ends with the end token", f"{len(output)} tokens")
    text, expected = report.get("text"), tokenizer.decode(output)
    if text != expected:
        starts_with_prompt = type(text) is str and text.startswith(FINALE_PROMPTS[0])
        raise CheckFailed(
            f"report['text'] == tokenizer.decode(report['output_ids']): {expected[:60]!r}",
            f"{str(text)[:60]!r}",
            "the text has the prompt in it"
            if starts_with_prompt
            else "the text is what was written after the first prompt, and the workspace's own tokenizer decodes it",
        )
    for key, (low, high) in NUMBERS.items():
        value = report.get(key)
        if type(value) not in (int, float) or not low < value <= high or value == float("inf"):
            raise CheckFailed(f"report[{key!r}]: a number above {low:g} and at most {high:g}", f"{value!r}")
    _judge_clock(report, evidence)
    if report["kv_waste_paged"] >= report["kv_waste_naive"]:
        raise CheckFailed(
            "less KV memory wasted with blocks than with slabs",
            f"{report['kv_waste_paged']:.0%} with blocks, {report['kv_waste_naive']:.0%} with slabs",
        )
    for key, least in (("steps", len(output) - 1), ("preemptions", 1), ("tokens", len(output))):
        if plain_int(report, key) < least:
            cause = "the default pool of `serve` (block_budget=None) forces preemption" if key == "preemptions" else ""
            raise CheckFailed(f"report[{key!r}] >= {least}", f"{report[key]}", cause)
    if plain_int(report, "completed") != len(FINALE_PROMPTS):
        raise CheckFailed(f"all {len(FINALE_PROMPTS)} prompts served", f"report['completed'] == {report['completed']}")
    _judge_tokens_seen(report, evidence, sum(len(tokenizer.encode(text)) for text in FINALE_PROMPTS))
    for key in ("engine", "torch_version", "when"):
        if type(report.get(key)) is not str or not report[key]:
            raise CheckFailed(f"report[{key!r}]: a str", f"{report.get(key)!r}")
    judge_metrics(evidence.get("metrics"))


def _judge_clock(report: dict[str, Any], evidence: Any) -> None:
    seconds, wall, seen = report.get("seconds"), evidence["wall_seconds"], evidence["seconds_seen"]
    # From the first token looked up to the last; a finale that also serves in another way takes longer than it says.
    if type(seconds) is not float or not 0.25 * seen < seconds <= wall:
        raise CheckFailed(
            f"report['seconds']: a float, the time of the serving, of the {wall:.2f} s that the finale took",
            f"{seconds!r}" + (f", where tokens went through the model for {seen:.2f} s" if seen else ""),
            "take the time right before and right after `serve`, in seconds",
        )
    if abs(report["tokens_per_sec"] - report["tokens"] / seconds) > 0.01 * report["tokens_per_sec"]:
        raise CheckFailed(
            f"report['tokens_per_sec']: tokens / seconds, {report['tokens'] / seconds:.1f}",
            f"{report['tokens_per_sec']}",
            "new tokens of all requests, by the seconds of the serving",
        )


def _judge_tokens_seen(report: dict[str, Any], evidence: Any, prompts: int) -> None:
    """Figures against the tokens that went through the model, where these were seen."""
    seen = evidence["tokens_seen"]
    least = prompts + report["tokens"] - len(FINALE_PROMPTS)  # nobody's last token goes through the model
    if seen and not least <= seen:
        raise CheckFailed(
            f"at least {least} tokens through the model: {prompts} of prompts, and all new ones but each last",
            f"{seen}, looked up in the embedding",
            "report['tokens'] counts the new tokens of all requests, and all of them come from the model",
        )
    if seen and 3 * report["tokens"] < seen - prompts:
        raise CheckFailed(
            f"report['tokens']: the new tokens of all requests, of {seen - prompts} that went through the model",
            f"{report['tokens']}",
            "the sum over all requests, not those of one",
        )
    if seen == least:
        raise CheckFailed(
            "at least one preemption: the default pool cannot hold the first batch to its end",
            f"no token was recomputed, and report['preemptions'] == {report['preemptions']}",
            "the default pool of `serve` (block_budget=None) forces preemption",
        )


def judge_metrics(text: Any) -> None:
    """What metrics.json held before the finale is still there after it.

    Raises:
        CheckFailed: it was lost or changed.
    """
    try:
        kept = json.loads(text).get("kept_by_the_check")
    except (TypeError, ValueError, AttributeError):
        kept = None
    if kept != {"value": 1}:
        raise CheckFailed(
            "metrics.json with all it had before",
            "earlier keys lost or changed",
            "the finale returns its report; `record_metrics` adds a key and keeps the others",
        )


def record(evidence: Any, ws: Path) -> None:
    """Write a judged finale to the workspace's paper trail, as `metrics.json["m13_finale"]`."""
    report = {key: value for key, value in evidence["report"].items() if key != "output_ids"}
    record_metrics(ws, "m13_finale", report)


CHECKS = (
    Check(
        name="m13d.finale",
        claim="your trained model writes through your engine, and the report says how it went",
        probe=probes.finale,
        form=probes.FINALE,
        cases=({"label": "finale(a copy of checkpoints/myllm)", "workspace": SHIPPED, "observe": "tokens"},),
        judge=judge_finale,
        read=READ,
        subject=M13,
        limit=60.0,
    ),
)
