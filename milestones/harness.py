"""Running checks: the probe in a worker process, the judge here.

    check = Check(name, claim, probe, cases, judge, read)
    with Worker() as worker:
        result = run_check(check, engine_path("assignments"), worker)

The worker is a process of its own, so that student code that crashes, hangs or changes what it should not
touch costs one check and never the verdict.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ai_playground.workspace import repo_root

START_UP_SECONDS = 120.0  # importing torch on a slow, busy machine; not counted against a check's own limit
GRACE_SECONDS = 5.0


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
        limit: seconds for all cases together.
    """

    name: str
    claim: str
    probe: Callable[..., Any]
    cases: tuple[dict[str, Any], ...]
    judge: Callable[[dict[str, Any], Any], None]
    read: str
    limit: float = 20.0

    @property
    def milestone(self) -> str:
        return self.name.split(".")[0]


@dataclass
class Result:
    """What came of a check: `status` is `passed`, `failed` or `not_written`."""

    check: Check
    status: str
    message: str = ""
    seconds: float = 0.0
    evidence: list[Any] = field(default_factory=list)


@dataclass
class Answer:
    """What the worker sent for one request."""

    cases: list[dict[str, Any]]  # each has "evidence" or "error"; fewer than asked for if it ended early
    end: str  # "done", "timeout" or "died"
    code: int
    printed: str


class Worker:
    """A worker process, started on first use and again after it had to be ended.

    Args:
        command: how to start it; the default is this Python with `milestones.worker`. A sandbox puts itself
            in front.
        env: its environment; the default is this process's.
    """

    def __init__(self, command: list[str] | None = None, env: dict[str, str] | None = None) -> None:
        self.command = command or [sys.executable, "-m", "milestones.worker"]
        self.env = dict(os.environ if env is None else env)
        self.env.setdefault("PYTHONUTF8", "1")
        self.env["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(repo_root()), str(repo_root() / "src"), self.env.get("PYTHONPATH")])
        )
        self.process: subprocess.Popen | None = None
        self.requests = 0

    def __enter__(self) -> "Worker":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin loading torch now, so that it is there when the first request comes."""
        if self.process is not None and self.process.poll() is None:
            return
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=repo_root(),
            start_new_session=os.name == "posix",
        )
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self.printed: deque[bytes] = deque(maxlen=64)
        threading.Thread(target=_pump, args=(self.process.stdout, self.lines.put, True), daemon=True).start()
        threading.Thread(target=_pump, args=(self.process.stderr, self.printed.append, False), daemon=True).start()
        self.fresh = True

    def close(self) -> None:
        """End the worker and whatever it started."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                stream.close()
        self.process = None

    def ask(self, engine: Path, probe: Callable[..., Any], cases: list[dict[str, Any]], limit: float) -> Answer:
        """Run a probe on cases; never raises for what the student's code does, and never waits for ever."""
        self.start()
        self.requests += 1
        self.printed.clear()
        request = {
            "id": self.requests,
            "engine": str(engine),
            "probe": f"{probe.__module__}:{probe.__qualname__}",
            "cases": cases,
            "limit": limit,
        }
        deadline = time.monotonic() + limit + GRACE_SECONDS + (START_UP_SECONDS if self.fresh else 0.0)
        answered: dict[int, dict[str, Any]] = {}
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return self._ended(answered, "died")
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return self._ended(answered, "timeout")
            if line is None:
                return self._ended(answered, "died")
            answer = _parse(line)
            if answer.get("id") != self.requests:
                continue  # a blank line, or something that student code wrote into the channel
            if "end" in answer:
                self.fresh = False
                return self._answer(answered, str(answer["end"]), int(answer.get("code", 0)))
            if answer.get("case") == len(answered):
                answered[len(answered)] = answer

    def _ended(self, answered: dict[int, dict[str, Any]], end: str) -> Answer:
        code = self.process.poll() or 0
        answer = self._answer(answered, end, code)
        self.close()
        return answer

    def _answer(self, answered: dict[int, dict[str, Any]], end: str, code: int) -> Answer:
        printed = b"".join(self.printed).decode("utf-8", "replace")[-2_000:]
        return Answer([answered[index] for index in sorted(answered)], end, code, printed)


def run_check(check: Check, engine: Path, worker: Worker) -> Result:
    """Ask the worker for the evidence and judge it, case by case; the first failure is the verdict."""
    start = time.monotonic()
    answer = worker.ask(engine, check.probe, list(check.cases), check.limit)
    result = Result(check, "passed", evidence=[case.get("evidence") for case in answer.cases])
    case: dict[str, Any] = {}
    try:
        for index, case in enumerate(check.cases):
            if index >= len(answer.cases):
                raise _no_answer(check, answer)
            error = answer.cases[index].get("error")
            if error and error.get("not_written"):
                result.status, result.message = "not_written", str(error.get("message"))
                break
            if error:
                raise _raised(error)
            check.judge(case, answer.cases[index].get("evidence"))
        else:
            if answer.end != "done":
                raise _no_answer(check, answer)
    except CheckFailed as failure:
        result.status = "failed"
        result.message = explain(check, case, failure, answer.printed)
    result.seconds = time.monotonic() - start
    return result


def explain(check: Check, case: dict[str, Any], failure: CheckFailed, printed: str = "") -> str:
    """What a student reads: expected, found, the input, the likely cause, where to read, how to rerun."""
    lines = [
        f"{check.name}: {check.claim}",
        f"  expected:     {failure.expected}",
        f"  found:        {failure.found}",
        f"  input:        {case.get('label', '')}",
    ]
    if failure.cause:
        lines.append(f"  likely cause: {failure.cause}")
    milestone, name = check.name.split(".")
    lines.append(f"  read:         {check.read}")
    lines.append(f'  run again:    uv run pytest tests/milestones -k "{milestone} and {name}"')
    if printed.strip():
        lines.append("  your code printed:\n" + "\n".join(f"    {line}" for line in printed.strip().splitlines()[-12:]))
    return "\n".join(lines)


def _raised(error: dict[str, Any]) -> CheckFailed:
    where = error.get("traceback") or []
    found = f"{error.get('type')}: {error.get('message')}"
    if where:
        found += "\n" + "\n".join(f"                  {line}" for line in where[-6:])
    return CheckFailed("a result", found, "the last line above that names your file is where to look first")


def _no_answer(check: Check, answer: Answer) -> CheckFailed:
    done = f"after {len(answer.cases)} of {len(check.cases)} inputs"
    if answer.end == "timeout":
        return CheckFailed(
            f"an answer to every input within {check.limit:g} s in all",
            f"no answer {done}; it was stopped",
            "a loop that never ends: does every step either make a token or admit or retire a request?",
        )
    return CheckFailed(
        "an answer to every input",
        f"the process ended by itself {done}, with exit status {answer.code}",
        "something in the engine ends Python (exit, os._exit) or crashes it, or memory ran out",
    )


def _pump(stream: Any, put: Callable[[Any], None], mark_end: bool) -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in iter(lambda: stream.readline(32 * 2**20), b""):
            put(line)
    if mark_end:
        put(None)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
