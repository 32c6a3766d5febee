"""What a check is: the probe that calls the student's code, its cases, and the judge of what came back."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from checking.form import ANY, Form
from checking.subject import Subject

# Whether the failure of the case that is being judged will be shown. Only the first one of a check is, so that a judge
# need not look for the cause of the others.
will_be_shown: ContextVar[bool] = ContextVar("will_be_shown", default=True)


class CheckFailed(Exception):
    """A judge's verdict.

    Args:
        expected: what a right engine gives.
        found: what this one gave.
        cause: the likely reason, if the evidence points to one.
    """

    def __init__(self, expected: str, found: str, cause: str = "") -> None:
        super().__init__(f"expected {expected}; found {found}")
        self.expected, self.found, self.cause = expected, found, cause


@dataclass(frozen=True)
class Check:
    """One thing that a right engine does.

    Attributes:
        name: `milestone.name`, such as `m13b.block_boundaries`.
        claim: one sentence, what passing shows.
        probe: called in the worker as `probe(engine, case)`; a module-level function.
        cases: plain JSON inputs, each with a `"label"`.
        judge: called here as `judge(case, evidence)`; raises `CheckFailed`.
        read: where a student reads about it.
        subject: what it is about: where the student's code stands.
        limit: seconds for all cases together, of CPU time where that can be limited (Linux): a busy machine is
            not the student's fault.
        form: what the probe's evidence looks like (`checking.form`). The judge is asked only where it does.
    """

    name: str
    claim: str
    probe: Callable[..., Any]
    cases: tuple[dict[str, Any], ...]
    judge: Callable[[dict[str, Any], Any], None]
    read: str
    subject: Subject
    limit: float = 10.0
    form: Form = ANY

    @property
    def milestone(self) -> str:
        return self.name.split(".")[0]


@dataclass
class Result:
    """What came of a check: `status` is `passed`, `failed` or `not_written`.

    `passed` counts the cases that did; `message` is about the first that did not. `stumbled` says that a judge raised
    what it should not, on evidence of the right form: the course's fault, which somebody has to look at. `timed_out`
    tells of a case that did not end by itself.
    """

    check: Check
    status: str
    message: str = ""
    seconds: float = 0.0
    passed: int = 0
    timed_out: bool = False
    stumbled: str = ""
    evidence: list[Any] = field(default_factory=list)
