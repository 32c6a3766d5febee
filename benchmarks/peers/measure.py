"""What the peers' scripts share. Each runs in an environment of its own, so this needs nothing but Python and Linux."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ENOUGH = 1.0  # seconds of serving that a measurement takes at least
Serve = Callable[[list[tuple[list[int], int]]], list[list[int]]]


def main(load: Callable[[dict[str, Any]], Serve], packages: tuple[str, ...]) -> None:
    """Load a model, warm up, serve the requests and write what that took; again and again while that is short.

    The job (a JSON file, the first argument) has `model` (a path), `dtype`, `threads`, `max_batch`, `requests`,
    `started` (when this process was started) and `out` (the file to write).

    Args:
        load: takes the job; returns what serves requests and gives the new tokens of each.
        packages: whose versions to note.
    """
    job = json.loads(Path(sys.argv[1]).read_text())
    serve = load(job)
    start_seconds = time.time() - job["started"]
    serve([(prompt, min(new, 4)) for prompt, new in job["requests"][: job["max_batch"]]])
    times, cpu, begin = 0, cpu_seconds(), time.perf_counter()
    while times == 0 or time.perf_counter() - begin < ENOUGH:
        outputs = serve(job["requests"])
        times += 1
    wall, cpu = (time.perf_counter() - begin) / times, (cpu_seconds() - cpu) / times
    lengths = [len(output) for output in outputs]
    if lengths != [new for _, new in job["requests"]]:
        raise SystemExit(f"expected {[new for _, new in job['requests']]} new tokens, found {lengths}")
    record = {
        "start_seconds": round(start_seconds, 3),
        "wall_seconds": round(wall, 4),
        "cpu_seconds": round(cpu, 4),
        "tokens": sum(lengths),
        "peak_mb": round(peak_kb() / 1024),
        "versions": {name: _version(name) for name in packages},
        "outputs": outputs,
    }
    Path(job["out"]).write_text(json.dumps(record))
    sys.stdout.flush()
    for pid in set(family()) - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)  # some peers leave threads behind that do not end


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"


def cpu_seconds() -> float:
    """Of this process and all below it, user and system."""
    ticks = 0
    for pid in family():
        if pid != os.getpid():  # of the others there are only ticks of a hundredth of a second
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def peak_kb() -> int:
    """The largest resident memory of this process and of each below it, added up."""
    total = 0
    for pid in family():
        status = Path(f"/proc/{pid}/status").read_text()
        total += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return total


def family() -> Iterator[int]:
    """This process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        todo += parents.get(pid, [])
        yield pid
