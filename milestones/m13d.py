"""M13d: the finale. Your own trained model, served by your own engine, and the paper trail of it."""

import json
from pathlib import Path
from typing import Any

from ai_playground.prompts import FINALE_PROMPTS
from ai_playground.workspace import default_workspace, load_tokenizer, record_metrics
from milestones import probes
from milestones.harness import Check, CheckFailed

READ = "milestones/m13d.md"
SHIPPED = str(default_workspace())
NUMBERS = {
    "tokens_per_sec": (0.0, float("inf")),
    "mean_occupancy": (0.0, 1.0),
    "kv_waste_naive": (0.0, 1.0),
    "kv_waste_paged": (0.0, 1.0),
}


def judge_finale(case: dict[str, Any], evidence: Any) -> None:
    """The text is what the model writes after the first prompt, and the figures are there and possible."""
    from milestones.judges import judge_tokens, plain_int, token_list
    from milestones.reference import build_model

    report = evidence.get("report")
    if type(report) is not dict or "not_plain" in report:
        raise CheckFailed("the report as a dict", "None" if report is None else str(report)[:80])
    ws = Path(case["workspace"])
    spec = case.get("model") or {"workspace": case["workspace"]}
    config, tokenizer = build_model(spec).config, load_tokenizer(ws)
    output = token_list(report.get("output_ids"), "report['output_ids']", config.vocab_size)
    prompt = tokenizer.encode(FINALE_PROMPTS[0])
    judge_tokens(spec, prompt, len(output), output, "report['output_ids']", config.eos_id)
    if len(output) < 32 and output[-1:] != [config.eos_id]:
        raise CheckFailed("a text of at least 32 tokens, or one that ends with the end token", f"{len(output)} tokens")
    text, expected = report.get("text"), tokenizer.decode(output)
    if text != expected:
        starts_with_prompt = type(text) is str and text.startswith(FINALE_PROMPTS[0])
        raise CheckFailed(
            f"report['text'] == tokenizer.decode(report['output_ids']): {expected[:60]!r}",
            f"{str(text)[:60]!r}",
            "the text has the prompt in it" if starts_with_prompt else "the workspace's own tokenizer decodes it",
        )
    for key, (low, high) in NUMBERS.items():
        value = report.get(key)
        if type(value) not in (int, float) or not low < value <= high or value == float("inf"):
            raise CheckFailed(f"report[{key!r}]: a number above {low:g} and at most {high:g}", f"{value!r}")
    if report["kv_waste_paged"] >= report["kv_waste_naive"]:
        raise CheckFailed(
            "less KV memory wasted with blocks than with slabs",
            f"{report['kv_waste_paged']:.0%} with blocks, {report['kv_waste_naive']:.0%} with slabs",
        )
    for key, least in (("steps", len(output)), ("preemptions", 1), ("tokens", len(output))):
        if plain_int(report, key) < least:
            raise CheckFailed(f"report[{key!r}] >= {least}", f"{report[key]}")
    if plain_int(report, "completed") != len(FINALE_PROMPTS):
        raise CheckFailed(f"all {len(FINALE_PROMPTS)} prompts served", f"report['completed'] == {report['completed']}")
    for key in ("engine", "torch_version", "when"):
        if type(report.get(key)) is not str or not report[key]:
            raise CheckFailed(f"report[{key!r}]: a str", f"{report.get(key)!r}")
    judge_metrics(evidence.get("metrics"))


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
        cases=({"label": "finale(a copy of checkpoints/myllm)", "workspace": SHIPPED},),
        judge=judge_finale,
        read=READ,
        limit=60.0,
    ),
)
