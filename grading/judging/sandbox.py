"""Where student code runs while a class is graded: bubblewrap around `checking.worker`.

    with Sandbox() as sandbox:
        sandbox.check()                       # once, before the class
        with sandbox.worker(submission) as worker:
            run_check(check, sandbox.path(submission, "checkpoints/myllm/src/serve_myllm.py"), worker)

In it there are the system and the Python environment (read-only), the library and the checks, the workspace's files,
one submission, and a small private /tmp. There are no solutions, no other students, no network, no capabilities, no
process from outside. Limits: memory, CPU time, processes, file size, open files.

It is never entered as uid 0, whose file rights bubblewrap alone does not take away: a root grader drops to an
unprivileged uid first. That uid may be unable to reach the files by their paths (a Python below /root), so that root
first binds each of them below one empty folder, in a mount namespace of its own.
"""

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from ai_playground.checkout import repo_root
from checking.supervisor import Worker, WorkerBroken
from grading.judging.control_group import ControlGroup, sweep
from grading.judging.escapes import ESCAPES, holes
from grading.judging.sandbox_view import (
    MIB,
    OUTER_ENV,
    SUBMISSION_FOLDERS,
    TMP_SIZE,
    binds_of,
    bubblewrap,
    limits,
    warm_parent,
)
from grading.judging.warm import SUBMISSIONS, WarmChild, WarmParent

FIRST_UID = 64_100  # this and the next thousand belong to nobody, so that limits a uid are limits a sandbox

INSTALL = """Grading runs student code in bubblewrap, which needs Linux.
  Debian, Ubuntu   sudo apt-get install bubblewrap
  Fedora           sudo dnf install bubblewrap
  Arch             sudo pacman -S bubblewrap
  macOS, Windows   grade in a Linux virtual machine or in a container: docs/instructor.md has the commands
`--unsafe` grades without it: student code then runs as you, and can read and change all that you can."""


class SandboxError(RuntimeError):
    """The sandbox is missing or does not hold. Nothing may be graded, and nobody gets 0 points for it."""


class Sandbox:
    """Starts programs in a sandbox; use it as a context manager.

    Args:
        unsafe: run them plainly instead, as the instructor.

    Raises:
        SandboxError: there is no bubblewrap, or no util-linux.
    """

    def __init__(self, unsafe: bool = False) -> None:
        self.unsafe = unsafe
        self.is_root = os.name == "posix" and os.geteuid() == 0
        if unsafe:
            return
        if not sys.platform.startswith("linux") or not shutil.which("bwrap"):
            raise SandboxError(f"expected bubblewrap (the command bwrap); found none.\n{INSTALL}")
        needed = ["prlimit", *(["unshare", "setpriv", "mount"] if self.is_root else [])]
        if missing := [name for name in needed if not shutil.which(name)]:
            raise SandboxError(f"expected the commands {', '.join(needed)}; missing: {', '.join(missing)} (util-linux)")
        self.uid = FIRST_UID + os.getpid() % 1_000 if self.is_root else os.geteuid()
        self.stage = ""
        self.without_parent = ""  # why each worker loads torch itself, where no warm parent can be had
        self._parent: WarmParent | None = None
        self._starting = threading.Lock()
        sweep(Path(tempfile.gettempdir()).glob("course-submissions-*"))
        self.submissions = tempfile.mkdtemp(prefix=f"course-submissions-{os.getpid()}-")
        os.chmod(self.submissions, 0o755)  # the sandbox's uid is another one
        if self.is_root:
            sweep(Path(tempfile.gettempdir()).glob("course-stage-*"))
            self.stage = tempfile.mkdtemp(prefix=f"course-stage-{os.getpid()}-")
            os.chmod(self.stage, 0o755)

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        if self.unsafe:
            return
        if self._parent is not None:
            self._parent.close()
            self._parent = None
        for folder in filter(None, (self.stage, self.submissions)):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(folder)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder for a submission, where a worker of this sandbox finds it."""
        with tempfile.TemporaryDirectory(dir=None if self.unsafe else self.submissions) as name:
            os.chmod(name, 0o755)
            yield Path(name)

    def path(self, submission: Path, name: str | PurePath) -> Path:
        """Where the worker finds a file or folder of a submission, named as in the repository."""
        return (submission if self.unsafe else repo_root()) / name

    def worker(self, submission: Path) -> Worker:
        """A worker that sees this submission and no other; not started yet.

        Args:
            submission: one of `folder`, laid out as the repository, with some of SUBMISSION_FOLDERS.
        """
        if self.unsafe:
            return Worker()
        return SandboxWorker(self, submission)

    def warm_child(self, submission: Path | None, group: "ControlGroup", program: list[str] | None = None) -> WarmChild:
        """A clean child of the warm parent, which is started on first use: it sees `submission` and runs a worker.

        Raises:
            WorkerBroken: there is none to be had.
        """
        with self._starting:
            if self._parent is not None and not self._parent.alive:
                self._parent.close()
                self._parent = None
            if self._parent is None:
                program_of_parent = [sys.executable, *warm_parent()]
                self._parent = WarmParent(self.command(None, program_of_parent, parent_of=self.submissions), OUTER_ENV)
        names = [name for name in SUBMISSION_FOLDERS if submission and (submission / name).is_dir()]
        folders = [(f"{submission.name}/{name}", str(repo_root() / name)) for name in names]
        return self._parent.fork(folders, group.joins, program)

    def command(
        self,
        submission: Path | None,
        program: list[str],
        group: "ControlGroup | None" = None,
        parent_of: str = "",
    ) -> list[str]:
        """The argv that runs `program` in the sandbox; as a warm parent it sees a folder that submissions come to."""
        binds = binds_of(submission) + ([(parent_of, SUBMISSIONS)] if parent_of else [])
        lines = [f"echo $$ > {shlex.quote(str(path))}" for path in (group.joins if group else [])]
        if self.is_root:
            lines.append(f"mount -t tmpfs -o size=1m,mode=755 none {self.stage}")
            staged = []
            for index, (source, destination) in enumerate(binds):
                at = f"{self.stage}/{index}"
                lines.append(f"mkdir {at}" if Path(source).is_dir() else f": > {at}")
                lines.append(f"mount --bind {shlex.quote(source)} {at}")
                staged.append((at, destination))
            binds = staged
        argv = [*bubblewrap(binds, parent=bool(parent_of)), *limits(parent=bool(parent_of)), *program]
        if self.is_root:
            argv = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", *argv]
        script = "set -e\n" + "\n".join(lines) + f"\nexec {shlex.join(argv)}\n"
        outer = ["unshare", "--mount", "--propagation", "private"] if self.is_root else []
        return [*(group.prefix if group else []), *outer, "sh", "-c", script]

    def check(self) -> dict[str, Any]:
        """Try to get out, by a program that does what a hostile student would; returns what it saw.

        Raises:
            SandboxError: the sandbox did not start, or something got through.
        """
        if self.unsafe:
            return {}
        with (
            tempfile.TemporaryDirectory(prefix="course-secret-") as folder,
            socket.create_server(("127.0.0.1", 0)) as server,
            ControlGroup() as group,
        ):
            secret = Path(folder) / "secret"
            secret.write_text("nobody may read this")
            os.chmod(folder, 0o755)
            new = [
                f"{where}/new" for where in (repo_root(), repo_root() / "milestones", folder, sys.prefix, "/usr", "")
            ]
            asked = {
                "secrets": [str(secret), str(repo_root() / "solutions"), str(repo_root() / "grading"), "/etc/shadow"],
                "writes": [*new, "/dev/new", "/proc/sys/kernel/core_pattern"],
                "port": server.getsockname()[1],
                "too_large": TMP_SIZE + 8 * MIB,
            }  # fmt: skip
            program = [sys.executable, "-I", "-c", ESCAPES, json.dumps(asked)]
            seen = self._try_to_escape(program, group)
            found = holes(seen)
            if self.is_root and (uid := self._uid_seen_from_outside()) in (0, None):
                found.append(f"student code would run as uid {uid}")
            if not found and not group.prefix:
                try:
                    warm = holes(self._try_to_escape_when_warm(program, group))
                    found += [f"in a child of the warm parent, {hole}" for hole in warm]
                except WorkerBroken as error:  # some systems forbid namespaces in namespaces: slower, and as safe
                    self.without_parent = str(error)
        found += [f"it made {path}" for path in new if Path(path).exists()]
        if found:
            raise SandboxError("the sandbox does not hold, so nothing was graded: " + "; ".join(found))
        return seen | {"memory_group": group.kind, "without_parent": self.without_parent}

    def _try_to_escape(self, program: list[str], group: ControlGroup) -> dict[str, Any]:
        """What the program saw in a sandbox of its own.

        Raises:
            SandboxError: it did not start, or did not end.
        """
        try:
            done = subprocess.run(
                self.command(None, program, group), capture_output=True, timeout=60, env=OUTER_ENV, cwd="/"
            )
        except subprocess.TimeoutExpired:
            raise SandboxError("expected the sandbox's own check to end within 60 s; it did not") from None
        try:
            return json.loads(done.stdout)
        except ValueError:
            said = done.stderr.decode("utf-8", "replace").strip()[-1_000:]
            raise SandboxError(
                f"expected the sandbox to start; it ended with status {done.returncode} and said: {said}\n"
                "If it speaks of namespaces or permissions, the system forbids them to ordinary programs: on "
                "Ubuntu `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, on Debian "
                "`sudo sysctl -w kernel.unprivileged_userns_clone=1`, in Docker `--security-opt seccomp=unconfined "
                "--security-opt systempaths=unconfined`"
            ) from None

    def _try_to_escape_when_warm(self, program: list[str], group: ControlGroup) -> dict[str, Any]:
        """What the same program saw in a child of the warm parent.

        Raises:
            WorkerBroken: there is no warm parent to be had.
            SandboxError: the program did not end, or said nothing.
        """
        child = self.warm_child(None, group, program)
        with child.stdin, child.stdout, child.stderr:
            uid = _uid_of(child.pid)
            try:
                child.wait(timeout=60)
                seen = json.loads(child.stdout.read())  # less than a pipe holds
            except (ValueError, subprocess.TimeoutExpired) as error:
                raise SandboxError(f"expected the warm parent's child to check its sandbox; found {error}") from None
        return seen | ({"uid": 0} if self.is_root and uid == 0 else {})

    def _uid_seen_from_outside(self) -> int | None:
        """The real uid of a program in the sandbox, which it cannot know itself."""
        process = subprocess.Popen(
            self.command(None, ["/bin/sh", "-c", "echo up; read _"]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=OUTER_ENV, cwd="/",
        )  # fmt: skip
        try:
            if process.stdout.readline() != b"up\n":
                return None
            return _uid_of(process.pid)
        finally:
            process.stdin.close()
            process.stdout.close()
            process.wait()


def _uid_of(pid: int) -> int:
    """The least of a process's user ids, as they are outside."""
    status = Path(f"/proc/{pid}/status").read_text()
    return min(int(uid) for uid in status.split("Uid:")[1].split("\n")[0].split())


class SandboxWorker(Worker):
    """A worker in the sandbox, which knows what it used once it is closed.

    It is a child of the warm parent, unless there is none or its control group is one that only a new program can join.
    """

    def __init__(self, sandbox: Sandbox, submission: Path) -> None:
        self.sandbox, self.submission, self.group = sandbox, submission, ControlGroup()
        program = [sys.executable, "-s", "-m", "checking.worker"]
        super().__init__(sandbox.command(submission, program, self.group), OUTER_ENV)

    def _launch(self) -> "subprocess.Popen | WarmChild":
        if self.group.prefix or self.sandbox.without_parent:
            return super()._launch()
        return self.sandbox.warm_child(self.submission, self.group)

    def _kill(self) -> None:
        if isinstance(self.process, WarmChild):
            self.process.kill()
        else:
            super()._kill()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.group.close()

    def close(self) -> None:
        """End it, with a moment to end by itself, so that the system counts what it used."""
        if self.process is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=1.0)
        super().close()
