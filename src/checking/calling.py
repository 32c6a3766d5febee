"""What probes of every subject share: how a student's code is called, watched and stopped."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from checking.observe import Finite, Observer


def refusal(call: Any) -> dict[str, Any]:
    """Whether a call raises ValueError, and what it says."""
    try:
        value = call()
    except ValueError as error:
        return {"raised": "ValueError", "message": str(error)}
    except NotImplementedError:
        raise
    except Exception as error:
        return {"raised": type(error).__name__, "message": str(error)}
    return {"raised": None, "returned": repr(value)[:200]}


def observed(model: nn.Module, call: Callable[[], Any]) -> dict[str, Any]:
    """What a call returns, and what PyTorch sees of it; unwritten memory holds garbage.

    A product of known size is counted before and after: if its cost is missing, the counting is broken
    (`evidence.judge_canaries`).
    """
    canary = torch.ones(8, 16), torch.ones(16, 32)
    with garbage(), Finite(model) as finite, Observer(model) as seen:
        _ = canary[0] @ canary[1]
        before = seen.flops
        output = call()
        after = seen.flops
        _ = canary[0] @ canary[1]
        canaries = [before, seen.flops - after]
    return {
        "output": output,
        "not_finite": finite.first,
        "canaries": canaries,
        "flops": after - before,
        "lookups": seen.calls,
        "memory": seen.memory,
    }


@contextlib.contextmanager
def garbage() -> Iterator[None]:
    """Fill what `torch.empty` gives with NaN inside: memory that nobody has written holds anything, at times that too.

    PyTorch does it itself, for the sake of those who want the same result each time. Its public switch imports the
    compiler first, which takes seconds.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])


class OutOfPatience(BaseException):
    """Raised in an engine that goes on for ever; not an Exception, so that `except Exception` lets it through."""


@contextlib.contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Stop what runs inside after so many seconds of CPU time, so that what was seen until then is not lost.

    This needs POSIX signals; where there are none, whoever waits for the worker ends it.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise OutOfPatience

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
