"""The check of the sandbox itself: a program that tries to get out, and what it must not have managed."""

from typing import Any

from grading.judging.sandbox_view import ADDRESS_SPACE, CPU_SECONDS, FILE_SIZE, MIB, PROCESSES, TMP_SIZE, inner_env

# Runs inside. It reports what it could do and judges nothing.
ESCAPES = r"""
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


def holes(seen: dict[str, Any]) -> list[str]:
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
    if unexpected := set(seen["environment"]) - set(inner_env()) - {"PWD", "LC_CTYPE"}:
        holes.append(f"it has the variables {sorted(unexpected)}")
    if seen["forks"] >= 400:
        holes.append("it could start 400 processes")
    expected = {"AS": ADDRESS_SPACE, "CPU": CPU_SECONDS, "NPROC": PROCESSES, "FSIZE": FILE_SIZE, "CORE": 0}
    holes += [
        f"the limit {name} is {seen['limits'][name]}" for name in expected if seen["limits"][name] != expected[name]
    ]
    return holes
