"""The process in which student code runs: `python -m checking.worker`.

It reads one request a line from standard input and answers on what was its standard output, one JSON line a
case, then one line that says how the request ended. Whatever the student's code prints goes to standard error.

    request   {"id": 1, "engine": PATH, "modules": {function: module}, "probe": "module:function", "cases": [...],
               "limit": CPU seconds, "wall": wall-clock seconds}
    answer    {"id": 1, "case": 0, "evidence": ...}   or   {"id": 1, "case": 0, "error": {...}}
    end       {"id": 1, "end": "done" | "timeout" | "died", "code": exit status, "leftovers": bool}

Before all that, once torch is loaded, it says {"ready": true}.

On Linux each request runs in a fork of this process, which has torch loaded already: nothing that one check
leaves behind reaches the next, a crash costs one check, and starting costs milliseconds. Elsewhere the request
runs in this very process, and whoever asked enforces the limit by ending it.
"""

import contextlib
import ctypes
import importlib
import io
import json
import math
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, TextIO

from checking.frames import is_foreign
from checking.student_engine import Engine

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl

MAX_LINE = 16 * 2**20  # a longer answer is refused here, before it is sent
MAX_PRINTED = 2**18  # characters that one request may print; the rest is dropped where it is printed


class Printed(io.TextIOWrapper):
    """Standard output and error of student code: what goes on for ever is cut off, and costs nobody's time."""

    left = MAX_PRINTED

    def write(self, text: str) -> int:
        kept = text[: max(self.left, 0)]
        self.left -= len(text)
        if kept:
            super().write(kept)
        return len(text)


def plain(value: Any) -> Any:
    """`value` if it consists of plain JSON types, exactly; anything else becomes a note of what it was.

    A subclass may redefine `==`, and a tensor or a numpy number is not what the contract asks for.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [plain(item) for item in value] if type(value) is list else {"not_plain": "tuple", "repr": _short(value)}
    if type(value) is dict:
        return {key if type(key) is str else _short(key): plain(item) for key, item in value.items()}
    return {"not_plain": type(value).__qualname__, "repr": _short(value)}


def error_of(error: BaseException, engine: Path, probe: str) -> dict[str, Any]:
    """What went wrong, with the traceback's lines that stand in the student's own files."""
    folder = str(engine.parent if engine.is_file() else engine)
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not is_foreign(f.filename, probe)]
    lines = [f"{Path(f.filename).name}:{f.lineno} in {f.name}: {f.line}" for f in own]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"{Path(error.filename).name}:{error.lineno}: {(error.text or '').strip()}")
    return {
        "type": type(error).__name__,
        "message": _short(error, 2_000),
        "traceback": lines[-12:],
        "not_written": isinstance(error, NotImplementedError) and _raised_by_hand(frames),
        "engine": folder,
    }


def _told(error: BaseException, engine: Path, probe: str) -> dict[str, Any]:
    """`error_of`, or less of it where the student's code has broken what that needs."""
    try:
        return error_of(error, engine, probe)
    except Exception:
        return {"type": type(error).__name__, "message": _short(error, 2_000), "traceback": []}


def _raised_by_hand(frames: traceback.StackSummary) -> bool:
    """Whether the error is a stub's own: PyTorch raises NotImplementedError too, for what an operator cannot do."""
    last = frames[-1] if frames else None
    if last is None or not last.line:
        return True  # no source to look at
    return "site-packages" not in last.filename and "NotImplementedError" in last.line


def run_request(request: dict[str, Any], channel: TextIO) -> None:
    """Run the probe on every case and write an answer for each; an exception is an answer too."""
    engine_path = Path(request["engine"])
    module, function = request["probe"].split(":")
    probe = getattr(importlib.import_module(module), function)
    engine = Engine(engine_path, request["modules"])
    # Should it not come back, it says where it was just before its time is up.
    _say_where_after(0.8 * request["limit"])
    for index, case in enumerate(request["cases"]):
        answer: dict[str, Any] = {"id": request["id"], "case": index}
        stopped = False
        try:
            answer["evidence"] = evidence = plain(probe(engine, case))
            stopped = isinstance(evidence, dict) and evidence.get("stopped") is True
        except BaseException as error:  # SystemExit and KeyboardInterrupt are the student's doing too
            answer["error"] = _told(error, engine_path, module)
        line = json.dumps(answer)
        if len(line) > MAX_LINE:
            found = {"type": "OutputTooLarge", "message": f"the result is {len(line)} characters long"}
            line = json.dumps({"id": request["id"], "case": index, "error": found | {"traceback": []}})
        channel.write(line + "\n")
        channel.flush()
        # What never ends, or is not written, is so for the other inputs too: they would only cost the same again.
        if stopped or answer.get("error", {}).get("not_written"):
            break
    _say_where_after(0.0)


def run_forked(request: dict[str, Any], channel: TextIO) -> None:
    """`run_request` in a child of its own; write how it ended."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()  # so that whatever it starts can be ended with it
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the worker may be ended first
            _limit_cpu(request["limit"])
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # student code must not eat the next request
            sys.stdout = sys.stderr = Printed(
                os.fdopen(2, "wb", 0), encoding="utf-8", errors="replace", write_through=True
            )
            run_request(request, channel)
        except BaseException:
            with contextlib.suppress(OSError):  # nobody reads it any more
                traceback.print_exc()
            os._exit(1)
        os._exit(0)
    end, done, status = "timeout", 0, 0
    ended = select.poll()
    ended.register(handle := os.pidfd_open(child), select.POLLIN)
    if ended.poll(request["wall"] * 1_000):
        done, status = os.waitpid(child, 0)
        out_of_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
        end = "done" if status == 0 else "timeout" if out_of_time else "died"
    os.close(handle)
    with contextlib.suppress(ProcessLookupError):  # it left nothing behind
        os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
    last = {"id": request["id"], "end": end, "code": os.waitstatus_to_exitcode(status), "leftovers": _leftovers()}
    # A child killed in the middle of a line must not swallow this one.
    channel.write("\n" + json.dumps(last) + "\n")
    channel.flush()


def _limit_cpu(seconds: float) -> None:
    """Let the system end this process when it has used that much CPU time."""
    import resource

    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    limit = math.ceil(seconds)
    if most == resource.RLIM_INFINITY or limit < most:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))


def _adopt_orphans() -> None:
    """Make processes whose parent ends children of this one, so that none is lost sight of."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _leftovers() -> bool:
    """End the processes that the request left behind, daemons too; whether some are still there."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    for _ in range(50):  # each round, what the ended ones had started moves up
        pids = [int(pid) for pid in children.read_text().split()]
        if not pids:
            return False
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return True


def forks() -> bool:
    """Whether each request gets a process of its own; COURSE_FORK=0 does on Linux what is done elsewhere."""
    return sys.platform == "linux" and os.environ.get("COURSE_FORK") != "0"


def load() -> None:
    """Import what every request needs, before any student code and before the forks."""
    import torch

    torch.set_num_threads(int(os.environ.get("COURSE_THREADS", "1")))


def main() -> None:
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # prints of student code go where they can be shown, not into the answers
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    load()
    from checking.observe import warm_up

    forking = forks()
    if forking:
        _adopt_orphans()
    channel.write('{"ready": true}\n')
    channel.flush()
    for line in requests:
        request = json.loads(line)
        if forking:
            importlib.import_module(request["probe"].split(":")[0])  # once, and not in each fork
            if any("observe" in case for case in request["cases"]):
                warm_up()
            run_forked(request, channel)
        else:
            run_request(request, channel)
            channel.write(json.dumps({"id": request["id"], "end": "done", "code": 0, "leftovers": False}) + "\n")
            channel.flush()


def _say_where_after(seconds: float) -> None:
    """Print where the program is after so much time, between two of its own instructions; 0 takes it back.

    Not `faulthandler`: its watchdog reads the frames of a running thread, which can crash it, an honest one too.
    """

    def say(_: int, frame: FrameType | None) -> None:
        lines = [f'  File "{f.f_code.co_filename}", line {line} in {f.f_code.co_name}' for f, line in walk_stack(frame)]
        print("Timeout (most recent call first):", *lines, sep="\n", file=sys.stderr, flush=True)

    if hasattr(signal, "setitimer"):  # not on Windows, where the message does without it
        signal.signal(signal.SIGALRM, say)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _short(value: Any, limit: int = 200) -> str:
    try:
        text = str(value)
    except Exception:
        text = f"<{type(value).__qualname__} whose text cannot be shown>"
    return text if len(text) <= limit else text[:limit] + " ..."


if __name__ == "__main__":
    main()
