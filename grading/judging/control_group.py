"""Limits on all processes of one sandbox together, and what these used."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from grading.judging.sandbox_view import MEMORY, PROCESSES


class ControlGroup:
    """Limits on all processes of one sandbox together, where the system lets us set them.

    Attributes:
        kind: "v1", "v2", "systemd" or "none".
        joins: files to write a pid into, which makes it a member.
        prefix: a command that starts another one in a group of its own.
    """

    _systemd: list[str] | None = None  # whether systemd-run works is asked once

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}
        self.prefix: list[str] = []
        self.kind = "none"
        self.used: dict[str, int] = {}
        name = f"course-{os.getpid()}-{threading.get_native_id()}-{time.monotonic_ns()}"
        try:
            self._make(name)
        except OSError:
            self.close()
            self.folders, self.kind = {}, "none"
            self.prefix = self._from_systemd()
            if self.prefix:
                self.kind = "systemd"

    def _make(self, name: str) -> None:
        root = Path("/sys/fs/cgroup")
        mine = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        for _, controllers, path in mine:
            for controller in {"memory", "pids", "cpuacct"} & set(controllers.split(",")):
                parent = root / controller / path.lstrip("/")
                if parent.is_dir():
                    sweep(parent.glob("course-*"))
                    (parent / name).mkdir()
                    self.folders[controller] = parent / name
        if "memory" in self.folders:
            self.kind = "v1"
            (self.folders["memory"] / "memory.limit_in_bytes").write_text(str(MEMORY))
        else:
            path = next((path for number, _, path in mine if number == "0"), "/")
            parent = root / path.lstrip("/")
            if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                (parent / "cgroup.subtree_control").write_text("+memory +pids")
            sweep(parent.glob("course-*"))
            (parent / name).mkdir()
            self.folders = {"memory": parent / name, "pids": parent / name, "cpuacct": parent / name}
            self.kind = "v2"
            (parent / name / "memory.max").write_text(str(MEMORY))
        if "pids" in self.folders:
            (self.folders["pids"] / "pids.max").write_text(str(PROCESSES + 16))

    @classmethod
    def _from_systemd(cls) -> list[str]:
        if cls._systemd is None:
            prefix = ["systemd-run", *([] if os.geteuid() == 0 else ["--user"]), "--scope", "--quiet", "--collect"]
            prefix += ["-p", f"MemoryMax={MEMORY}", "-p", "MemorySwapMax=0", "-p", f"TasksMax={PROCESSES + 16}"]
            works = False
            if shutil.which("systemd-run") and Path("/run/systemd/system").is_dir():
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    works = not subprocess.run([*prefix, "true"], capture_output=True, timeout=10).returncode
            cls._systemd = prefix if works else []
        return cls._systemd

    @property
    def joins(self) -> list[Path]:
        return [folder / "cgroup.procs" for folder in dict.fromkeys(self.folders.values())]

    def cpu_seconds(self) -> float:
        """What its processes have used so far; 0 where nobody counts."""
        with contextlib.suppress(OSError, KeyError, ValueError, IndexError):
            if self.kind == "v2":
                usage = (self.folders["cpuacct"] / "cpu.stat").read_text().split("usage_usec ")[1].split()[0]
                return int(usage) / 1e6
            return int((self.folders["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
        return 0.0

    def __enter__(self) -> "ControlGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Note what was used, end what is still in the group, and remove it."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            with contextlib.suppress(OSError, KeyError, ValueError):
                self.used["peak_bytes"] = int((self.folders["memory"] / name).read_text())
        if cpu_seconds := self.cpu_seconds():
            self.used["cpu_ns"] = int(cpu_seconds * 1e9)
        for folder in dict.fromkeys(self.folders.values()):
            for _ in range(200):
                with contextlib.suppress(OSError, ValueError):
                    for pid in (folder / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                    folder.rmdir()
                if not folder.exists():
                    break
                time.sleep(0.01)
        self.folders = {}


def sweep(folders: Iterable[Path]) -> None:
    """Remove the empty folders of graders that were killed; their names hold the grader's pid."""
    for folder in folders:
        pid = re.search(r"\d+", folder.name)
        if pid and not Path("/proc", pid[0]).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
