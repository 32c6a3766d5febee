"""Judging a class: submissions through an executor, results as they are ready."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from multiprocessing.util import Finalize
from typing import Any

from grading.intake.submission import Submission
from grading.judging.one_submission import clean, judge, key_of
from grading.judging.sandbox import Sandbox


def judge_class(
    submissions: Iterable[Submission],
    make_executor: Callable[[], Executor],
    *,
    unsafe: bool = False,
    window: int = 4,
    on_start: Callable[[str], None] = lambda student: None,
) -> Iterator[dict[str, Any]]:
    """Judge submissions through an executor; results come as they are ready.

    No more than `window` are in flight, so that memory does not grow with the class. A judging process that dies
    takes nobody's points: what it had in hand is judged again, in a new executor, up to three times.

    Args:
        make_executor: `local_pool(jobs)`, or a cluster's.
        on_start: called with a student's id when the submission is handed out.

    Yields:
        results; one that could not be judged, for a reason that is not the student's, has an `"error"` and no points.
    """
    waiting = iter(submissions)
    again: list[tuple[Submission, int]] = []
    while True:
        flying: dict[Future, tuple[Submission, int]] = {}
        with make_executor() as executor:
            try:
                while True:
                    while len(flying) < window:
                        following = again.pop() if again else None
                        if following is None and (submission := next(waiting, None)) is not None:
                            following = submission, 1
                        if following is None:
                            break
                        on_start(following[0].student)
                        try:
                            flying[executor.submit(judge_here, following[0], unsafe)] = following
                        except BrokenExecutor:
                            again.append(following)
                            raise
                    if not flying:
                        return
                    for future in wait(flying, return_when=FIRST_COMPLETED).done:
                        submission, tries = flying.pop(future)
                        yield _outcome(future, submission, tries, again)
            except BrokenExecutor:
                for submission, tries in flying.values():
                    again.append((submission, tries))
            for submission, tries in [pair for pair in again if pair[1] > 3]:
                again.remove((submission, tries))
                yield {"student": submission.student, "error": "the judging process died three times"}


def _outcome(future: Future, submission: Submission, tries: int, again: list[tuple[Submission, int]]) -> dict[str, Any]:
    try:
        result = future.result()
    except BrokenExecutor:
        again.append((submission, tries + 1))
        raise
    except Exception as error:
        return {"student": submission.student, "error": f"{type(error).__name__}: {clean(str(error), 1_500)}"}
    if result["key"] != key_of(submission, result["unsafe"]):
        return {"student": submission.student, "error": "judged by another version of the checks: update that machine"}
    return result


_here: dict[bool, Sandbox] = {}


def judge_here(submission: Submission, unsafe: bool) -> dict[str, Any]:
    """`judge`, in a process that stays: torch and the references are loaded once, the sandbox is checked once."""
    import torch

    torch.set_num_threads(1)
    if unsafe not in _here:
        sandbox = Sandbox(unsafe)
        Finalize(None, sandbox.__exit__, exitpriority=0)  # a pool's process ends without `atexit`
        sandbox.check()
        _here[unsafe] = sandbox
    return judge(submission, _here[unsafe])


def local_pool(jobs: int) -> Executor:
    """Processes that each judge one submission after another."""
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
