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
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ai_playground.workspace import repo_root
from milestones.engines import ASSIGNMENTS

START_UP_SECONDS = 120.0  # importing torch on a slow, busy machine; not counted against a check's own limit
GRACE_SECONDS = 5.0
WALL = 3.0 if sys.platform == "linux" else 1.0  # wall-clock seconds that a second of a check's limit may take
MAX_ANSWERS = 32 * 2**20  # bytes that one request may send, all its cases together

# Whether the failure of the case that is being judged will be shown. Only the first one of a check is, so that a judge
# need not look for the cause of the others.
will_be_shown: ContextVar[bool] = ContextVar("will_be_shown", default=True)


class WorkerBroken(RuntimeError):
    """The worker did not start. The machine or the sandbox is at fault, never the student's code."""


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
        limit: seconds for all cases together, of CPU time where that can be limited (Linux): a busy machine is
            not the student's fault.
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

    @property
    def assignment(self) -> str:
        """Which of `engines.ASSIGNMENTS` it belongs to."""
        return "p3" if self.milestone == "p3" else "m13"


@dataclass
class Result:
    """What came of a check: `status` is `passed`, `failed` or `not_written`.

    `passed` counts the cases that did; `message` is about the first that did not.
    """

    check: Check
    status: str
    message: str = ""
    seconds: float = 0.0
    passed: int = 0
    timed_out: bool = False
    evidence: list[Any] = field(default_factory=list)


@dataclass
class Answer:
    """What the worker sent for one request."""

    cases: list[dict[str, Any]]  # each has "evidence" or "error"; fewer than asked for if it ended early
    end: str  # "done", "timeout", "died" or "flood"
    code: int
    printed: str


class Worker:
    """A worker process, started on first use and again after it had to be ended.

    Args:
        command: how to start it; the default is this Python with `milestones.worker`. A sandbox puts itself
            in front.
        env: its environment; the default is this process's.
        root: the checkout that it imports from and runs in; the default is this one.
    """

    def __init__(
        self, command: list[str] | None = None, env: dict[str, str] | None = None, root: Path | None = None
    ) -> None:
        self.root = root or repo_root()
        self.command = command or [sys.executable, "-m", "milestones.worker"]
        self.env = dict(os.environ if env is None else env)
        self.env.setdefault("PYTHONUTF8", "1")
        self.env["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(self.root), str(self.root / "src"), self.env.get("PYTHONPATH")])
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
            cwd=self.root,
            start_new_session=os.name == "posix",
            pipesize=2**18,  # fewer switches between the two processes for a large answer
        )
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self.printed: deque[bytes] = deque(maxlen=64)
        self.received = 0
        self.is_ready = False
        threading.Thread(target=self._read_answers, args=(self.process.stdout, self.lines), daemon=True).start()
        threading.Thread(target=_read_prints, args=(self.process.stderr, self.printed), daemon=True).start()

    def ready(self) -> None:
        """Wait until the worker has loaded torch; no student code has run in it before that.

        Raises:
            WorkerBroken: it ended or stayed silent instead.
        """
        self.start()
        if self.is_ready:
            return
        try:
            line = self.lines.get(timeout=START_UP_SECONDS)
        except queue.Empty:
            line = b""
        if line is None or _parse(line) != {"ready": True}:
            state = f"it was silent for {START_UP_SECONDS:g} s" if line == b"" else "it ended"
            time.sleep(0.1)  # for the other thread to read the last words
            said = b"".join(self.printed).decode("utf-8", "replace").strip()[-2_000:]
            self.close()
            raise WorkerBroken(f"expected {self.command[0]} to start a worker; {state}. It said: {said or 'nothing'}")
        self.is_ready = True

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
        with contextlib.suppress(OSError):  # the other two are closed by the threads that read them
            self.process.stdin.close()
        self.process = None

    def ask(self, engine: Path, probe: Callable[..., Any], cases: list[dict[str, Any]], limit: float) -> Answer:
        """Run a probe on cases; never raises for what the student's code does, and never waits for ever.

        Raises:
            WorkerBroken: see `ready`.
        """
        self.ready()
        self.requests += 1
        self.received = 0
        self.printed.clear()
        request = {
            "id": self.requests,
            "engine": str(engine),
            "probe": f"{probe.__module__}:{probe.__qualname__}",
            "cases": cases,
            "limit": limit,
            "wall": limit * WALL,
        }
        deadline = time.monotonic() + limit * WALL + GRACE_SECONDS
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
                return self._ended(answered, "flood" if self.received > MAX_ANSWERS else "died")
            answer = _parse(line)
            if answer.get("id") != self.requests:
                continue  # a blank line, or something that student code wrote into the channel
            if "end" in answer:
                code = answer.get("code")
                result = self._answer(answered, str(answer["end"])[:20], code if type(code) is int else 0)
                if answer.get("leftovers"):
                    self.close()
                return result
            if answer.get("case") == len(answered):
                answered[len(answered)] = answer

    def _read_answers(self, stream: Any, lines: "queue.Queue[bytes | None]") -> None:
        """Lines to the queue until the stream ends or one request sends more than any honest one would."""
        with contextlib.suppress(OSError, ValueError), stream:
            for line in iter(lambda: stream.readline(MAX_ANSWERS), b""):
                self.received += max(len(line), 256)  # a flood of empty lines costs memory too
                if self.received > MAX_ANSWERS:
                    break
                lines.put(line)
        lines.put(None)

    def _ended(self, answered: dict[int, dict[str, Any]], end: str) -> Answer:
        code = self.process.poll() or 0
        answer = self._answer(answered, end, code)
        self.close()
        return answer

    def _answer(self, answered: dict[int, dict[str, Any]], end: str, code: int) -> Answer:
        printed = b"".join(self.printed).decode("utf-8", "replace")[-8_000:]
        return Answer([answered[index] for index in sorted(answered)], end, code, printed)


def run_check(check: Check, engine: Path, worker: Worker) -> Result:
    """Ask the worker for the evidence and judge it, case by case.

    Raises:
        WorkerBroken: see `Worker.ready`.
    """
    start = time.monotonic()
    answer = worker.ask(engine, check.probe, list(check.cases), check.limit)
    result = Result(check, "passed", evidence=[case.get("evidence") for case in answer.cases])
    result.timed_out = answer.end == "timeout"
    for index, case in enumerate(check.cases):
        shown = will_be_shown.set(result.status == "passed")
        try:
            _judge_case(check, case, index, answer)
            result.passed += 1
        except _NotWritten as note:
            result.status, result.message = "not_written", str(note)
            break
        except CheckFailed as failure:
            if result.status == "passed":
                result.status, result.message = "failed", explain(check, case, failure, answer.printed)
        finally:
            will_be_shown.reset(shown)
    if result.status == "passed" and answer.end != "done":
        result.status = "failed"
        result.message = explain(check, {}, _no_answer(check, answer), answer.printed)
    result.seconds = time.monotonic() - start
    return result


class _NotWritten(Exception):
    """The student's code says of itself that this part is still to be written."""


def _judge_case(check: Check, case: dict[str, Any], index: int, answer: Answer) -> None:
    if index >= len(answer.cases):
        raise _no_answer(check, answer)
    error = answer.cases[index].get("error")
    if isinstance(error, dict) and error.get("not_written"):
        lines = error.get("traceback")
        where = str(lines[-1]).split(" in ")[0] if isinstance(lines, list) and lines else "no traceback"
        raise _NotWritten(f"{error.get('message')} ({where})")  # where: the file and the line
    if isinstance(error, dict):
        raise _raised(check, error)
    _judge(check, case, answer.cases[index].get("evidence"))


def _judge(check: Check, case: dict[str, Any], evidence: Any) -> None:
    """The check's judge. Evidence can be forged, so what a judge stumbles over is a failed check, not a crash."""
    try:
        check.judge(case, evidence)
    except CheckFailed:
        raise
    except Exception as error:
        found = f"something else ({type(error).__name__}: {str(error)[:200]})"
        raise CheckFailed("evidence in the form that the probe gives it", found) from error


def explain(check: Check, case: dict[str, Any], failure: CheckFailed, printed: str = "") -> str:
    """What a student reads: expected, found, the input, the likely cause, where to read, how to rerun."""
    printed = _without_traceback(printed)
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
    lines.append(f'  run again:    uv run pytest {ASSIGNMENTS[check.assignment].tests} -k "{milestone} and {name}"')
    if "seed" in case:
        lines.append(f"                with the environment variable COURSE_SEED={case['seed']}, for the same input")
    if printed.strip():
        lines.append("  your code printed:\n" + "\n".join(f"    {line}" for line in printed.strip().splitlines()[-12:]))
    return "\n".join(lines)


_SHAPES = "two shapes do not fit: print them where they meet, and compare with the docstring"
_BEYOND = (
    "an index beyond the end: of a block table that is too short for the new token (was the manager asked to reserve "
    "it before the pass, does it grow a table that is there already, does its number of blocks round up?), of the pool "
    "(a slot is block * block_size + offset), or of the positions (max_seq_len)"
)
_RAISED = (  # of M13's engines
    ("IndexError", "pop from empty", "no block is free, and none was asked for: look before you take one. If the pool "
     "should have had some: are blocks given back when a request is done, or are more admitted than fit?"),
    ("IndexError", "", _BEYOND),
    ("RuntimeError", "out of bounds", _BEYOND),
    ("RuntimeError", "shape", _SHAPES),
    ("RuntimeError", "size", _SHAPES),
    ("RuntimeError", "dtype", "the dtype must be the model's: make the pool and the masks from its weights"),
    ("KeyError", "", "a sequence without a block table: given back twice, or used after it was given back?"),
    ("TypeError", "'NoneType' object is not callable", "the model has no such part: with tie_embeddings there is no "
     "head; what does the Transformer do then?"),
    ("ValueError", "", "the engine refuses what can be served: does it count as max_seq_len and the pool do? The last "
     "token is never cached"),
    ("SystemExit", "", "the engine ends Python: a function must return, or raise an error that says why not"),
)  # fmt: skip


def _raised(check: Check, error: dict[str, Any]) -> CheckFailed:
    where = error.get("traceback")
    where = [line for line in where if isinstance(line, str)] if isinstance(where, list) else []
    found = f"{error.get('type')}: {error.get('message')}"
    if where:
        found += "\n" + "\n".join(f"                  {line}" for line in where[-6:])
    message = str(error.get("message"))
    known = _RAISED if check.assignment == "m13" else ()
    cause = next((why for kind, part, why in known if error.get("type") == kind and part in message), "")
    look = "the last line above that names your file is where to look first"
    return CheckFailed("a result", found, f"{cause}; {look}" if cause else look)


def _no_answer(check: Check, answer: Answer) -> CheckFailed:
    done = f"after {len(answer.cases)} of {len(check.cases)} inputs"
    if answer.end == "timeout":
        where = _where_it_was(answer.printed)
        blocks = (
            ", or admit or retire a request? If nobody can get on: are blocks given back when a request is done, and "
            "is a request that never fits refused?"
        )
        return CheckFailed(
            f"an answer to every input within {check.limit:g} s in all",
            f"no answer {done}; it was stopped" + (f" at {where}" if where else ""),
            "a loop that never ends: does every step make a token" + (blocks if check.assignment == "m13" else "?"),
        )
    if answer.end == "flood":
        return CheckFailed(
            "answers of a sensible size",
            f"more than {MAX_ANSWERS // 2**20} MiB {done}; it was stopped",
            "something writes to the channel through which the checks read their answers",
        )
    return CheckFailed(
        "an answer to every input",
        f"the process ended by itself {done}, with exit status {answer.code}",
        "something in the engine ends Python (exit, os._exit) or crashes it, or memory ran out",
    )


def _read_prints(stream: Any, printed: "deque[bytes]") -> None:
    """The last pieces of what was printed; a line may be endless, so it is read in pieces."""
    with contextlib.suppress(OSError, ValueError), stream:
        for piece in iter(lambda: stream.readline(4096), b""):
            printed.append(piece)


_FRAME = re.compile(r'^\s*File "(.+)", line (\d+) in (\S+)$', re.MULTILINE)


def _where_it_was(printed: str) -> str:
    """The engine's lines of the traceback that the worker prints shortly before the time is up."""
    frames = [
        f"{Path(path).name}:{line} in {function}"
        for path, line, function in _FRAME.findall(printed)
        if not path.startswith("<")
        and "site-packages" not in path
        and not {"milestones", "lib"} & set(Path(path).parts)
    ]
    return ", called from ".join(frames[:3])


def _without_traceback(printed: str) -> str:
    start = printed.find("Timeout (")
    return printed if start < 0 else printed[:start]


def _parse(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
