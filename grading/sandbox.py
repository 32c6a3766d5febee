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
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

from ai_playground.checkout import repo_root
from ai_playground.workspace import default_workspace
from checking.supervisor import Worker, WorkerBroken
from grading.assignments import ASSIGNMENTS, CHECKED_WITH
from grading.warm import SUBMISSIONS, WarmChild, WarmParent, config

MIB = 2**20
ADDRESS_SPACE = 4096 * MIB  # of one process; importing torch alone needs 512 to 768 MiB of it
MEMORY = 2048 * MIB  # of everything in one sandbox together, where a control group can be had
PROCESSES = 96  # threads count too
CPU_SECONDS = 120  # of one process; each check is one
FILE_SIZE = 64 * MIB
OPEN_FILES = 256
TMP_SIZE = 96 * MIB
SHM_SIZE = 16 * MIB
FIRST_UID = 64_100  # this and the next thousand belong to nobody, so that limits a uid are limits a sandbox

# What a submission may have, laid out as in the repository.
SUBMISSION_FOLDERS = ("assignments/m13", "checkpoints/myllm/src", "projects/p3_kv_serve")
WORKSPACE_FILES = ("config.json", "tokenizer.json", "final.pt", "metrics.json")

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
        self.stage = self.submissions = ""
        self._parent: WarmParent | None = None
        self._starting = threading.Lock()
        _sweep(Path(tempfile.gettempdir()).glob("course-submissions-*"))
        self.submissions = tempfile.mkdtemp(prefix=f"course-submissions-{os.getpid()}-")
        os.chmod(self.submissions, 0o755)  # the sandbox's uid is another one
        if self.is_root:
            _sweep(Path(tempfile.gettempdir()).glob("course-stage-*"))
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
                program_of_parent = [sys.executable, *_arguments_of_the_parent()]
                self._parent = WarmParent(self.command(None, program_of_parent, parent_of=self.submissions), _OUTER_ENV)
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
        binds = _binds(submission) + ([(parent_of, SUBMISSIONS)] if parent_of else [])
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
        argv = [*_bubblewrap(binds, parent=bool(parent_of)), *_limits(parent=bool(parent_of)), *program]
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
            program = [sys.executable, "-I", "-c", _ESCAPES, json.dumps(asked)]
            seen = self._seen_by(program, group)
            holes = _holes(seen)
            if self.is_root and (uid := self._uid_seen_from_outside()) in (0, None):
                holes.append(f"student code would run as uid {uid}")
            if not holes and not group.prefix:
                found = _holes(self._seen_when_warm(program, group))
                holes += [f"in a child of the warm parent, {hole}" for hole in found]
        holes += [f"it made {path}" for path in new if Path(path).exists()]
        if holes:
            raise SandboxError("the sandbox does not hold, so nothing was graded: " + "; ".join(holes))
        return seen | {"memory_group": group.kind}

    def _seen_by(self, program: list[str], group: "ControlGroup") -> dict[str, Any]:
        """What a program that prints JSON says in a sandbox of its own."""
        try:
            done = subprocess.run(
                self.command(None, program, group), capture_output=True, timeout=60, env=_OUTER_ENV, cwd="/"
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

    def _seen_when_warm(self, program: list[str], group: "ControlGroup") -> dict[str, Any]:
        """What the same program says in a child of the warm parent."""
        try:
            child = self.warm_child(None, group, program)
            with child.stdin, child.stdout, child.stderr:
                uid = _uid_of(child.pid)
                child.wait(timeout=60)
                said = child.stdout.read()  # less than a pipe holds
                seen = json.loads(said)
        except (WorkerBroken, ValueError, subprocess.TimeoutExpired) as error:
            raise SandboxError(f"expected the warm parent's child to check its sandbox; found {error}") from None
        return seen | ({"uid": 0} if self.is_root and uid == 0 else {})

    def _uid_seen_from_outside(self) -> int | None:
        """The real uid of a program in the sandbox, which it cannot know itself."""
        process = subprocess.Popen(
            self.command(None, ["/bin/sh", "-c", "echo up; read _"]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_OUTER_ENV, cwd="/",
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

    It is a child of the warm parent, unless its control group is one that only a new program can join.
    """

    def __init__(self, sandbox: Sandbox, submission: Path) -> None:
        self.sandbox, self.submission, self.group = sandbox, submission, ControlGroup()
        program = [sys.executable, "-s", "-m", "checking.worker"]
        super().__init__(sandbox.command(submission, program, self.group), _OUTER_ENV)

    def _launch(self) -> "subprocess.Popen | WarmChild":
        if self.group.prefix:
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
                    _sweep(parent.glob("course-*"))
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
            _sweep(parent.glob("course-*"))
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


def _sweep(folders: Iterable[Path]) -> None:
    """Remove the empty folders of graders that were killed; their names hold the grader's pid."""
    for folder in folders:
        pid = re.search(r"\d+", folder.name)
        if pid and not Path("/proc", pid[0]).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


# What stands in it ----------------------------------------------------------------------------------------------

# The environment of bubblewrap itself. The first process in the sandbox keeps a copy that student code can read.
_OUTER_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}


def _binds(submission: Path | None) -> list[tuple[str, str]]:
    """(source, destination) of everything but the system, all of it read-only."""
    root, ws = repo_root(), default_workspace().resolve()
    paths = [*_python(), *(root / name for name in CHECKED_WITH), *(ws / name for name in WORKSPACE_FILES)]
    binds = [(str(path), str(path)) for path in paths if path.exists()]
    if submission is not None:
        folders = (name for name in SUBMISSION_FOLDERS if (submission / name).is_dir())
        binds += [(str(submission / name), str(root / name)) for name in folders]
    return binds


def _python() -> list[Path]:
    """The environment and the Python that it stands on, by every name that its links use."""
    found = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.base_prefix).resolve()]
    link = Path(sys.executable)
    while link.is_symlink():
        link = Path(os.path.normpath(link.parent / os.readlink(link)))
        found.append(link.parent.parent)
    return [path for path in dict.fromkeys(found) if not path.is_relative_to("/usr") and path != Path("/")]


def _bubblewrap(binds: list[tuple[str, str]], parent: bool = False) -> list[str]:
    argv = ["bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    argv += [] if parent else ["--disable-userns"]  # a parent gives each child user namespaces and takes them away
    argv += ["--cap-drop", "ALL", "--hostname", "sandbox", "--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(name):
            argv += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            argv += ["--ro-bind", name, name]
    for name in ("/etc/ld.so.cache", "/etc/localtime", "/sys/devices/system/cpu"):
        argv += ["--ro-bind-try", name, name]
    argv += ["--proc", "/proc", "--dev", "/dev", "--size", str(SHM_SIZE), "--tmpfs", "/dev/shm"]
    argv += ["--size", str(TMP_SIZE), "--tmpfs", "/tmp"]  # before the binds: the repository may lie below /tmp
    for source, destination in binds:
        argv += ["--ro-bind", source, destination]
    if parent:
        argv += [word for name in SUBMISSION_FOLDERS for word in ("--dir", str(repo_root() / name))]
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(repo_root()), "--clearenv"]
    for key, value in _inner_env().items():
        argv += ["--setenv", key, value]
    return argv


def _arguments_of_the_parent() -> list[str]:
    units = [unit for assignment in ASSIGNMENTS.values() for unit in assignment.units()]
    modules = {check.probe.__module__ for unit in units for check, _ in (*unit.visible, *unit.hidden)}
    below_tmp = [destination for _, destination in _binds(None) if destination.startswith("/tmp/")]
    return config(modules, below_tmp, TMP_SIZE, SHM_SIZE, PROCESSES)


def _inner_env() -> dict[str, str]:
    root = repo_root()
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "USER": "student",
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{root}:{root / 'src'}",
        "COURSE_WORKSPACE": str(default_workspace().resolve()),
        "COURSE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def _limits(parent: bool = False) -> list[str]:
    """Set from inside, so that they count in the sandbox's own user namespace.

    A warm parent may have the processes of all its children, each of which has the usual limit in its own namespace.
    """
    processes = PROCESSES * 64 if parent else PROCESSES
    return [
        "prlimit", f"--as={ADDRESS_SPACE}", f"--cpu={CPU_SECONDS}", f"--nproc={processes}", f"--fsize={FILE_SIZE}",
        f"--nofile={OPEN_FILES}", "--core=0", "--",
    ]  # fmt: skip


# The check of the sandbox itself --------------------------------------------------------------------------------

# Runs inside. It reports what it could do and judges nothing.
_ESCAPES = r"""
import ctypes, errno, json, os, resource, signal, socket, sys, time
asked = json.loads(sys.argv[1])
seen = {}
def tried(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno, "error")
    return True
def read(path):
    if os.path.isdir(path):
        if os.listdir(path):
            return
        raise OSError(errno.ENOENT, path)
    open(path, "rb").read(1)
def fill():
    with open("/tmp/large", "wb") as file:
        for _ in range(asked["too_large"] // 2**20):
            file.write(bytes(2**20))
def fill_files():
    try:
        for number in range(8):
            with open(f"/tmp/large{number}", "wb") as file:
                for _ in range(asked["too_large"] // 2**20 // 4):
                    file.write(bytes(2**20))
    finally:
        for number in range(8):
            if os.path.exists(f"/tmp/large{number}"):
                os.unlink(f"/tmp/large{number}")
seen["read"] = {path: tried(lambda: read(path)) for path in asked["secrets"]}
seen["write"] = {path: tried(lambda: open(path, "a").write("x")) for path in asked["writes"]}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
seen["large_file"] = tried(fill)
if os.path.exists("/tmp/large"):
    os.unlink("/tmp/large")
seen["full_tmp"] = tried(fill_files)
seen["network"] = tried(lambda: socket.create_connection(("127.0.0.1", asked["port"]), 2).close())
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
seen["capabilities"] = [status["CapEff"], status["CapPrm"], status["CapBnd"]]
seen["no_new_privileges"] = status["NoNewPrivs"]
seen["uid"] = os.getuid()
seen["groups"] = [g for g in os.getgroups() if g not in (os.getgid(), 65534)]
libc = ctypes.CDLL(None, use_errno=True)
seen["user_namespace"] = libc.unshare(0x10000000) == 0
seen["processes"] = sum(name.isdigit() for name in os.listdir("/proc"))
seen["environment"] = sorted(os.environ)
seen["limits"] = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))[0]
                  for name in ("AS", "CPU", "NPROC", "FSIZE", "CORE", "NOFILE")}
children = []
try:
    for _ in range(400):
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        children.append(child)
except OSError:
    pass
seen["forks"] = len(children)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
try:
    memory = bytearray(5 * 2**30)
    seen["memory"] = True
except MemoryError:
    seen["memory"] = "refused"
print(json.dumps(seen))
"""


def _holes(seen: dict[str, Any]) -> list[str]:
    """What the program inside could do and must not."""
    holes = [f"it could read {path}" for path, result in seen["read"].items() if result is True]
    # Below /tmp it writes into its own; whether anything arrived outside is looked at outside.
    written = [path for path, result in seen["write"].items() if result is True and not path.startswith("/tmp/")]
    holes += [f"it could write {path}" for path in written]
    for key, what in (
        ("large_file", f"it could write a file of more than {FILE_SIZE // MIB} MiB"),
        ("full_tmp", f"it could fill /tmp beyond {TMP_SIZE // MIB} MiB"),
        ("network", "it reached a port of this machine"),
        ("user_namespace", "it could make a user namespace"),
        ("memory", "it got 5 GiB of memory"),
    ):
        if seen[key] is True:
            holes.append(what)
    if any(int(mask, 16) for mask in seen["capabilities"]):
        holes.append(f"it has capabilities: {seen['capabilities']}")
    if seen["no_new_privileges"] != "1":
        holes.append("it could gain privileges from a set-uid program")
    if seen["uid"] == 0:
        holes.append("it runs as uid 0")
    if seen["groups"]:
        holes.append(f"it is in the groups {seen['groups']}")
    if seen["processes"] > 8:
        holes.append(f"it sees {seen['processes']} processes")
    if unexpected := set(seen["environment"]) - set(_inner_env()) - {"PWD", "LC_CTYPE"}:
        holes.append(f"it has the variables {sorted(unexpected)}")
    if seen["forks"] >= 400:
        holes.append("it could start 400 processes")
    expected = {"AS": ADDRESS_SPACE, "CPU": CPU_SECONDS, "NPROC": PROCESSES, "FSIZE": FILE_SIZE, "CORE": 0}
    holes += [
        f"the limit {name} is {seen['limits'][name]}" for name in expected if seen["limits"][name] != expected[name]
    ]
    return holes
