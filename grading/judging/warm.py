"""The grader's side of `warm_parent.py`: a clean worker for each submission, without loading torch for each."""

import array
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from checking.supervisor import START_UP_SECONDS, WorkerBroken

SUBMISSIONS = "/tmp/submissions"  # where the parent sees the folders of submissions; its children do not
SOURCE = Path(__file__).with_name("warm_parent.py")


class WarmParent:
    """Starts the parent and asks it for children.

    Args:
        command: what runs it in its sandbox.
        env: of the command.
    """

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=self._said, env=env, cwd="/",
                start_new_session=True,
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(
        self, folders: list[tuple[str, str]], joins: Iterable[Path], program: list[str] | None = None
    ) -> "WarmChild":
        """A new child, in namespaces of its own.

        Args:
            folders: (name below SUBMISSIONS, where the child sees it).
            joins: files by which it joins its control group.
            program: what it runs instead of the worker.

        Raises:
            WorkerBroken: the parent did not make it.
        """
        ours, theirs = [], []
        for reads in (False, True, True):
            read, write = os.pipe()
            ours.append(os.fdopen(read, "rb") if reads else os.fdopen(write, "wb"))
            theirs.append(write if reads else read)
        status, said = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.append(said.detach())
        status.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        status.settimeout(START_UP_SECONDS)
        try:
            theirs += [os.open(path, os.O_WRONLY) for path in joins]
            request = {"folders": folders, "program": program}
            with contextlib.suppress(BrokenPipeError):  # then nobody says hello either
                self._control.sendmsg(
                    [json.dumps(request).encode()],
                    [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", theirs))],
                )
        finally:
            for fd in theirs:
                os.close(fd)
        hello, pid = b"", 0
        with contextlib.suppress(TimeoutError):
            hello, ancillary, *_ = status.recvmsg(16, socket.CMSG_SPACE(12))
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    pid = struct.unpack("3i", data)[0]
        if hello != b"up" or not pid:
            os.set_blocking(ours[2].fileno(), False)
            self._said.seek(0)
            why = ((ours[2].read() or b"") + self._said.read()).decode("utf-8", "replace").strip()[-2_000:]
            for file in (*ours, status):
                file.close()
            raise WorkerBroken(f"expected the warm parent to start a worker; it said: {why or 'nothing'}")
        child = WarmChild(pid, *ours)
        status.send(b"g")
        status.close()
        return child

    def close(self) -> None:
        """End it: by itself, so that the system counts what it used; else by force."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._said.close()


class WarmChild:
    """The first process of a child's namespaces, as much like a `subprocess.Popen` as a `Worker` needs.

    It is the parent's child, not this process's, so its exit status stays unknown.
    """

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = pid, stdin, stdout, stderr
        self._pidfd: int | None = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return 0 if self._ended(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it, and with it all in its namespaces, has ended."""
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired("a worker of the warm parent", timeout)
        return 0

    def kill(self) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _ended(self, seconds: float | None) -> bool:
        if self._pidfd is not None:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            if not poller.poll(None if seconds is None else seconds * 1_000):
                return False
            os.close(self._pidfd)
            self._pidfd = None
        return True


def config(modules: Iterable[str], keep: Iterable[str], tmp_size: int, shm_size: int, processes: int) -> list[str]:
    """The arguments of Python that run the parent; its file is not in the sandbox, only its text."""
    given = {"modules": sorted(modules), "keep": list(keep), "tmp_size": tmp_size, "shm_size": shm_size}
    given |= {"processes": processes}
    return ["-s", "-c", SOURCE.read_text(encoding="utf-8"), json.dumps(given)]
