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
from pathlib import Path, PurePath
from typing import Any

from ai_playground.checkout import repo_root
from checking.supervisor import Worker
from grading.judging.control_group import ControlGroup, sweep
from grading.judging.escapes import ESCAPES, holes
from grading.judging.sandbox_view import MIB, OUTER_ENV, TMP_SIZE, binds_of, bubblewrap, limits

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
        if self.is_root:
            sweep(Path(tempfile.gettempdir()).glob("course-stage-*"))
            self.stage = tempfile.mkdtemp(prefix=f"course-stage-{os.getpid()}-")
            os.chmod(self.stage, 0o755)

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.unsafe and self.stage:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(self.stage)

    def path(self, submission: Path, name: str | PurePath) -> Path:
        """Where the worker finds a file or folder of a submission, named as in the repository."""
        return (submission if self.unsafe else repo_root()) / name

    def worker(self, submission: Path) -> Worker:
        """A worker that sees this submission and no other; not started yet.

        Args:
            submission: a folder laid out as the repository, with some of SUBMISSION_FOLDERS.
        """
        if self.unsafe:
            return Worker()
        return SandboxWorker(self, submission)

    def command(self, submission: Path | None, program: list[str], group: ControlGroup | None = None) -> list[str]:
        """The argv that runs `program` in the sandbox."""
        binds = binds_of(submission)
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
        argv = [*bubblewrap(binds), *limits(), *program]
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
            seen = self._try_to_escape(asked, group)
            found = holes(seen) + [f"it made {path}" for path in new if Path(path).exists()]
        if self.is_root:
            uid = self._uid_seen_from_outside()
            if uid in (0, None):
                found.append(f"student code would run as uid {uid}")
        if found:
            raise SandboxError("the sandbox does not hold, so nothing was graded: " + "; ".join(found))
        return seen | {"memory_group": group.kind}

    def _try_to_escape(self, asked: dict[str, Any], group: ControlGroup) -> dict[str, Any]:
        """What ESCAPES saw in the sandbox.

        Raises:
            SandboxError: it did not start, or did not end.
        """
        program = [sys.executable, "-I", "-c", ESCAPES, json.dumps(asked)]
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

    def _uid_seen_from_outside(self) -> int | None:
        """The real uid of a program in the sandbox, which it cannot know itself."""
        process = subprocess.Popen(
            self.command(None, ["/bin/sh", "-c", "echo up; read _"]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=OUTER_ENV, cwd="/",
        )  # fmt: skip
        try:
            if process.stdout.readline() != b"up\n":
                return None
            status = Path(f"/proc/{process.pid}/status").read_text()
            return min(int(uid) for uid in status.split("Uid:")[1].split("\n")[0].split())
        finally:
            process.stdin.close()
            process.stdout.close()
            process.wait()


class SandboxWorker(Worker):
    """A worker in the sandbox, which knows what it used once it is closed."""

    def __init__(self, sandbox: Sandbox, submission: Path) -> None:
        self.group = ControlGroup()
        program = [sys.executable, "-s", "-m", "checking.worker"]
        super().__init__(sandbox.command(submission, program, self.group), OUTER_ENV)

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
