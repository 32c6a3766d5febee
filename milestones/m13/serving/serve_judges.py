"""The judges of M13c's checks."""

from typing import Any

from checking.check import CheckFailed
from checking.evidence import judge_refusal
from checking.reference import prompt_ids
from checking.tokens import blame_not_finite
from milestones.m13.serving.history import judge_report
from milestones.m13.serving.outputs import judge_outputs, never_ended
from milestones.m13.serving.passes import judge_memory, judge_seen


def judge_serve(case: dict[str, Any], evidence: Any) -> None:
    """All requests complete with exactly their own tokens, and what was seen of the run agrees with the report."""
    requests = [prompt_ids(prompt) for prompt in case["requests"]]
    report = evidence["report"]
    if evidence.get("stopped"):
        raise never_ended(case, requests, evidence.get("lookups"))
    if type(report) is not dict or "not_plain" in report:
        found = "None" if report is None else str(report)[:100]
        raise CheckFailed("a report: a dict with completed, preemptions, outputs, steps and history", found)
    with blame_not_finite(evidence):
        judge_outputs(case, requests, report.get("outputs"), evidence.get("lookups"))
    judge_report(case, requests, report)
    if evidence.get("requests_after") != requests:
        raise CheckFailed(
            "the caller's prompts as they were",
            "prompts that the engine wrote into",
            "copy a prompt before you extend it: the list belongs to the caller",
        )
    if evidence.get("lookups") is not None:
        judge_seen(case, report, evidence["lookups"])
    if case.get("observe") == "memory":
        judge_memory(case, evidence["memory"])


def judge_static(case: dict[str, Any], evidence: Any) -> None:
    """The same tokens in fewer steps than static batching takes, and in no fewer than possible."""
    judge_serve(case, evidence["continuous"])
    judge_serve(case | {"continuous": False}, evidence["static"])
    continuous, static = (evidence[kind]["report"] for kind in ("continuous", "static"))
    decoded = sum(len(output) - 1 for output in continuous["outputs"])
    least = max(-(-decoded // case.get("max_batch", 8)), max(len(output) for output in continuous["outputs"]) - 1)
    most = len(evidence["static"]["lookups"])
    if continuous["steps"] < least:
        raise CheckFailed(f"at least {least} steps for {decoded} decoded tokens", f"{continuous['steps']} steps")
    if static["steps"] > most:
        raise CheckFailed(f"at most {most} steps with continuous=False: so many passes", f"{static['steps']} steps")
    if continuous["steps"] >= static["steps"]:
        raise CheckFailed(
            f"fewer steps than the {static['steps']} of static batching",
            f"{continuous['steps']} steps with continuous=True",
            "a place in the batch must be filled at the next step, not when the whole batch is done (continuous "
            "batching); with continuous=False only then",
        )


def judge_refused(case: dict[str, Any], evidence: Any) -> None:
    """A ValueError that names the request and the numbers."""
    judge_refusal(evidence, case["names"], case["label"])
