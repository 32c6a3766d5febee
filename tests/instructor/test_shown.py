"""Of a check's failures only the first is shown, so that only its cause is looked for: by every judge that looks."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checking import tokens
from checking.check import Check
from checking.judging import run_check
from checking.supervisor import Answer
from milestones.m13 import m13b, m13c
from milestones.m13.serving import outputs
from milestones.p3 import decoders, p3


def named(checks: tuple[Check, ...], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def wrong_tokens(case: dict[str, Any]) -> dict[str, Any]:
    return {"output": [1, 2] * 40, "not_finite": ""}


def wrong_text(case: dict[str, Any]) -> dict[str, Any]:
    return {"output": [*case["prompt"], *[1, 2] * 40]}


def wrong_report(case: dict[str, Any]) -> dict[str, Any]:
    seen = {"stopped": False, "not_finite": "", "requests_after": [], "lookups": None, "memory": None}
    return {"report": {"outputs": [[1, 2] * 40 for _ in case["requests"]]}, **seen}


@pytest.mark.parametrize(
    ("where", "function", "judged", "evidence"),
    [
        (tokens, "likely_cause", named(m13b.CHECKS, "m13b.shapes"), wrong_tokens),
        (outputs, "_cause_in_a_batch", named(m13c.CHECKS, "m13c.roomy_pool"), wrong_report),
        (decoders, "cause_of", named(p3.CHECKS, "p3.cached_tokens"), wrong_text),
    ],
)
def test_one_cause_is_looked_for(
    where: Any, function: str, judged: Check, evidence: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(where, function, lambda *args: asked.append(args) or "the cause")
    answer = Answer([{"evidence": evidence(case)} for case in judged.cases], "done", 0, "")
    result = run_check(judged, Path("anywhere"), SimpleNamespace(ask=lambda *args: answer))
    assert (result.status, result.passed) == ("failed", 0)
    assert len(judged.cases) > 1 and len(asked) == 1
    assert "the cause" in result.message
