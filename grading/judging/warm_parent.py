"""The warm parent: a program in a sandbox of its own that has torch loaded and forks a clean child a submission.

    python -s -c THIS FILE '{"modules": [...], "tmp_size": ..., "shm_size": ..., "processes": ...,
    "keep": [...]}'

Loading torch costs more than most submissions do, so it is done once. The parent runs no student code and keeps
nothing of a submission; each child is used once and goes into new namespaces before it sees student code:

    parent  one for each judging process; in bubblewrap, unprivileged, no network, everything read-only
    `- gate     enters the control group, then new user, mount, process, network, IPC and host-name namespaces
       `- first    process 1 in there: new /tmp, /dev/shm, /dev/pts and /proc, the submission's folders where they
          |        belong, no way to make further user namespaces, no capabilities; when it is killed, so is all else
          `- worker   `checking.worker`, as it runs elsewhere

Requests come through the socket that is this program's standard input: {"folders": [[name below /tmp/submissions,
where it belongs], ...], "program": [...] or null}, with file descriptors: standard input, output and error of the
worker, a socket to say that it is there, and the files by which one joins the control group. `warm.py` beside it is the
other side. It uses the standard library and `checking` alone: nothing else of grading is in the sandbox.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path

_NEW_USER, _NEW_ELSE = 0x10000000, 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # of unshare
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18  # of mount
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522
_KEYCTL = {"x86_64": 250, "aarch64": 219}  # the number of the system call, which libc does not name
_JOIN_SESSION_KEYRING = 1

libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    """A function of libc that returns a negative number when it fails."""
    if getattr(libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    _call("mount", *texts, ctypes.c_ulong(flags), None if data is None else data.encode())


def main() -> None:
    given = json.loads(sys.argv[1])
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    from checking.observe import warm_up
    from checking.worker import load

    load()
    warm_up()
    for name in given["modules"]:
        with contextlib.suppress(ModuleNotFoundError):  # what stands on a submission's files comes with them
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the first collection in each child copies the pages of every object here
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the gates
    while True:
        message, fds, _, _ = socket.recv_fds(control, 65_536, 16)
        if not message:
            return
        if os.fork() == 0:
            try:
                _gate(json.loads(message), fds, given)
            except BaseException:
                os.dup2(fds[2], 2)
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(1)
        for fd in fds:
            os.close(fd)


def _gate(request: dict, fds: list[int], given: dict) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _close_all_but(fds)
    for fd in fds[4:]:
        os.write(fd, b"0")  # this process joins the control group before it needs memory
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", _NEW_USER | _NEW_ELSE)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    first = os.fork()
    if first == 0:
        try:
            _first(request, fds[:4], given)
        except BaseException:
            os.dup2(fds[2], 2)
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)
    _close_all_but([])
    os.waitpid(first, 0)
    os._exit(0)


def _first(request: dict, fds: list[int], given: dict) -> None:
    os.setsid()
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _furnish(request["folders"], given)
    resource.setrlimit(resource.RLIMIT_NPROC, (given["processes"], given["processes"]))
    _renounce()
    status = socket.socket(fileno=fds[3])
    status.send(b"up")  # the socket adds which process this is
    if status.recv(1) != b"g":  # go: the other side can end it now
        return
    worker = os.fork()
    if worker == 0:
        for number in (0, 1, 2):
            os.dup2(fds[number], number)
        _close_all_but([])
        if request["program"]:
            os.execv(request["program"][0], request["program"])
        from checking.worker import main as work

        importlib.invalidate_caches()  # there are more files now
        work()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    _close_all_but([])
    while os.waitpid(-1, 0)[0] != worker:  # whatever loses its parent in here comes to this process
        pass
    os._exit(0)


def _furnish(folders: list[list[str]], given: dict) -> None:
    """The file system that student code sees: what the parent's sandbox has, with nothing that another one wrote."""
    _mount("none", "/", None, _REC | _PRIVATE)
    # What lies below /tmp is taken hold of before a new one hides it.
    kept = [(os.open(path, os.O_PATH), path) for path in given["keep"]]
    kept += [(os.open(f"/tmp/submissions/{name}", os.O_PATH), path) for name, path in folders]
    _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, f"size={given['tmp_size']},mode=1777")
    _mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, f"size={given['shm_size']},mode=1777")
    _mount("devpts", "/dev/pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    for fd, path in kept:
        if Path(f"/proc/self/fd/{fd}").is_dir():
            os.makedirs(path, exist_ok=True)
        elif not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).touch()
        _mount(f"/proc/self/fd/{fd}", path, None, _BIND | _REC)
        os.close(fd)
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    os.chdir(os.getcwd())  # the folder of that name, as it is now
    if os.uname().machine in _KEYCTL:
        # A new keyring, which nobody left a note in; a system without keyrings needs none.
        libc.syscall(_KEYCTL[os.uname().machine], _JOIN_SESSION_KEYRING, None)


def _renounce() -> None:
    """Give up every capability, for good."""
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        _call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _call("capset", header, nothing)


def _close_all_but(kept: list[int]) -> None:
    """Close every descriptor above 2 that is not kept.

    Without /proc: the gate shares its mounts with the first process, whose new /proc does not know the gate.
    """
    start = 3
    for fd in sorted(kept):
        os.closerange(start, fd)
        start = max(start, fd + 1)
    os.closerange(start, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


if __name__ == "__main__":
    main()
