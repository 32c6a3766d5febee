"""The worker process as its parent sees it: started, asked, limited and ended.

    with Worker() as worker:
        answer = worker.ask(subject, subject.find("assignments"), probe, cases, limit=20.0)

Student code that crashes, hangs or changes what it should not touch costs one check and never the verdict.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ai_playground.checkout import repo_root
from checking.subject import Subject

START_UP_SECONDS = 120.0  # importing torch on a slow, busy machine; not counted against a check's own limit


GRACE_SECONDS = 5.0


WALL = 2.0  # wall-clock seconds that a second of a check's limit may take


MAX_PRINTED = 4 * 2**20  # bytes that a worker may print; then its pipe is closed


MAX_ANSWERS = 32 * 2**20  # bytes that one request may send, all its cases together


class WorkerBroken(RuntimeError):
    """The worker did not start. The machine or the sandbox is at fault, never the student's code."""


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
        command: how to start it; the default is this Python with `checking.worker`. A sandbox puts itself
            in front.
        env: its environment; the default is this process's.
        root: the checkout that it imports from and runs in; the default is this one.
    """

    def __init__(
        self, command: list[str] | None = None, env: dict[str, str] | None = None, root: Path | None = None
    ) -> None:
        self.root = root or repo_root()
        self.command = command or [sys.executable, "-m", "checking.worker"]
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
        self.process = self._launch()
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self.printed: deque[bytes] = deque(maxlen=64)
        self.received = 0
        self.is_ready = False
        threading.Thread(target=self._read_answers, args=(self.process.stdout, self.lines), daemon=True).start()
        threading.Thread(target=_read_prints, args=(self.process.stderr, self.printed), daemon=True).start()

    def _launch(self) -> subprocess.Popen:
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.root,
            start_new_session=os.name == "posix",
            pipesize=2**18,  # fewer switches between the two processes for a large answer
        )

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()

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
        self._kill()
        self.process.wait()
        with contextlib.suppress(OSError):  # the other two are closed by the threads that read them
            self.process.stdin.close()
        self.process = None

    def ask(
        self, subject: Subject, engine: Path, probe: Callable[..., Any], cases: list[dict[str, Any]], limit: float
    ) -> Answer:
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
            "modules": subject.modules,
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


def _read_prints(stream: Any, printed: "deque[bytes]") -> None:
    """The last pieces of what was printed; a line may be endless, so it is read in pieces."""
    left = MAX_PRINTED
    with contextlib.suppress(OSError, ValueError), stream:
        while left > 0 and (piece := stream.readline(4096)):
            printed.append(piece)
            left -= len(piece)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
