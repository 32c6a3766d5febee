"""What stands in the sandbox: files, environment, limits, as the arguments of bubblewrap and prlimit."""

import os
import sys
from pathlib import Path

from ai_playground.checkout import repo_root
from ai_playground.workspace import default_workspace
from grading.assignments import ASSIGNMENTS, CHECKED_WITH
from grading.judging.warm import config

MIB = 2**20
ADDRESS_SPACE = 4096 * MIB  # of one process; importing torch alone needs 512 to 768 MiB of it
MEMORY = 2048 * MIB  # of everything in one sandbox together, where a control group can be had
PROCESSES = 96  # threads count too
CPU_SECONDS = 120  # of one process; each check is one
FILE_SIZE = 64 * MIB
OPEN_FILES = 256
TMP_SIZE = 96 * MIB
SHM_SIZE = 16 * MIB

# What a submission may have, laid out as in the repository.
SUBMISSION_FOLDERS = ("assignments/m13", "checkpoints/myllm/src", "projects/p3_kv_serve")
WORKSPACE_FILES = ("config.json", "tokenizer.json", "final.pt", "metrics.json")

# The environment of bubblewrap itself. The first process in the sandbox keeps a copy that student code can read.
OUTER_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}


def binds_of(submission: Path | None) -> list[tuple[str, str]]:
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


def bubblewrap(binds: list[tuple[str, str]], parent: bool = False) -> list[str]:
    """The argv of bubblewrap, up to the program, which may be a warm parent; `binds` are (source, destination)."""
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
    for key, value in inner_env().items():
        argv += ["--setenv", key, value]
    return argv


def warm_parent() -> list[str]:
    """The arguments of Python that run the warm parent, with every probe's module loaded."""
    units = [unit for assignment in ASSIGNMENTS.values() for unit in assignment.units()]
    modules = {check.probe.__module__ for unit in units for check, _ in (*unit.visible, *unit.hidden)}
    below_tmp = [destination for _, destination in binds_of(None) if destination.startswith("/tmp/")]
    return config(modules, below_tmp, TMP_SIZE, SHM_SIZE, PROCESSES)


def inner_env() -> dict[str, str]:
    """The environment of student code."""
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


def limits(parent: bool = False) -> list[str]:
    """Set from inside, so that they count in the sandbox's own user namespace.

    A warm parent may have the processes of all its children, each of which has the usual limit in its own namespace.
    """
    processes = PROCESSES * 64 if parent else PROCESSES
    return [
        "prlimit", f"--as={ADDRESS_SPACE}", f"--cpu={CPU_SECONDS}", f"--nproc={processes}", f"--fsize={FILE_SIZE}",
        f"--nofile={OPEN_FILES}", "--core=0", "--",
    ]  # fmt: skip
