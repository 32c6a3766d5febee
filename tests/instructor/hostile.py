"""A class of submissions: some right, most broken or hostile. Each says what it must get.

`Student.earns` are the points of M13a and M13b, `says` what its report or notes must have.
"""

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ai_playground.checkout import repo_root
from grading.assignments import released

SOLUTIONS = repo_root() / "solutions" / "m13"
A = (SOLUTIONS / "m13a_load_model.py").read_text(encoding="utf-8")
B = (SOLUTIONS / "m13b_greedy.py").read_text(encoding="utf-8")
NOTEBOOK, CHAPTER = "milestones.ipynb", "mini_vllm.ipynb"  # one has graded cells alone, the other answers too


@dataclass
class Student:
    """One submission: `files` in a folder, or whatever `build` makes at a path without ending."""

    name: str
    earns: tuple[float, float] = (10, 0)
    says: str = ""
    files: dict[str, str | bytes] = field(default_factory=dict)
    build: Callable[[Path], None] | None = None

    def hand_in(self, inbox: Path) -> None:
        if self.build:
            self.build(inbox / self.name)
            return
        (inbox / self.name).mkdir()
        for name, text in self.files.items():
            path = inbox / self.name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))


def modules(b: str | None, **more: str | bytes) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {"m13a_load_model.py": A}
    return files | ({} if b is None else {"m13b_greedy.py": b}) | more


def instead(body: str) -> str:
    """The right module, with the two functions replaced by ones that begin with `body`."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return B + "".join(f"\ndef {f}(prompt_ids, n, *, model=None, block_size=16):\n{lines}\n" for f in
                       ("greedy_reference", "greedy_paged"))  # fmt: skip


def beside(body: str) -> str:
    """The right module, with something done beside it at import."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return f"{B}\ntry:\n{lines}except BaseException:\n    pass\n"


def archive(path: Path, members: dict[str, str | bytes]) -> None:
    with zipfile.ZipFile(f"{path}.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)


def tar(path: Path) -> None:
    with tarfile.open(f"{path}.tar.gz", "w:gz") as file:
        for name, text in modules(B).items():
            info = tarfile.TarInfo(f"./mywork/assignments/m13/{name}")
            info.size = len(text.encode())
            file.addfile(info, io.BytesIO(text.encode()))
        for kind, name in (
            (tarfile.SYMTYPE, "m13c_serve.py"),
            (tarfile.CHRTYPE, "m13d_finale.py"),
            (tarfile.LNKTYPE, "x"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            file.addfile(info)


def link(target: str) -> Callable[[Path], None]:
    def build(path: Path) -> None:
        path.mkdir()
        (path / "m13a_load_model.py").write_text(A)
        os.symlink(target, path / "m13b_greedy.py")

    return build


def pipe(path: Path) -> None:
    path.mkdir()
    (path / "m13a_load_model.py").write_text(A)
    os.mkfifo(path / "m13b_greedy.py")


def notebook(change: Callable[[list[dict]], object]) -> bytes:
    content = json.loads(released()[NOTEBOOK])
    change(content["cells"])
    return json.dumps(content).encode()


def graded(cells: list[dict]) -> list[dict]:
    return [cell for cell in cells if cell["metadata"].get("nbgrader", {}).get("grade")]


def edit_tests(cells: list[dict]) -> None:
    for cell in graded(cells):
        cell["source"] = ["100.0"]
        cell["metadata"]["nbgrader"]["points"] = 1000


FORGE = """
import json, os, sys
def send(**answer):
    for number in range(1, 400):
        evidence = {"output": [0] * 20, "not_finite": ""}
        line = json.dumps({"id": number, "case": 0, "evidence": evidence} | answer).encode() + b"\\n"
        for fd in range(3, 20):
            try:
                os.write(fd, line)
            except OSError:
                pass
"""
LOOT = f"""
import glob, os
for pattern in ({str(SOLUTIONS)!r} + "/*.py", "/tmp/*/*/m13b_greedy.py", "/tmp/*/assignments/m13/m13b*",
                "/proc/*/cwd/*/*/m13b*", "/proc/*/root/*/*/m13b*",
                {str(repo_root())!r} + "/grading/class/**/m13b_greedy.py", "/home/*/*/m13b_greedy.py"):
    for path in glob.glob(pattern, recursive=True):
        if path.endswith("m13b_greedy.py") and not os.path.samefile(path, __file__):
            exec(open(path).read(), globals())
if os.environ.get("COURSE_TEST_SECRET"):
    raise RuntimeError("the secret is " + os.environ["COURSE_TEST_SECRET"])
"""
EQUAL = """
class Everything(list):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __len__(self): return 20
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
"""
PATCH = """
import sys, json
for name, module in list(sys.modules.items()):
    if name.startswith("milestones"):
        for key, value in list(vars(module).items()):
            if callable(value) and key.startswith(("judge", "first_div", "greedy", "_judge", "explain")):
                setattr(module, key, lambda *a, **k: None)
import torch
torch.equal = torch.allclose = lambda *a, **k: True
"""


NOTES = """
import ctypes, glob, mmap, os, socket
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
ADD_KEY, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(os.uname().machine, (None, None))
found = []
def left_by_another():
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/dev/mqueue", "/run", os.getcwd()):
        if os.path.exists(folder + "/note"):
            found.append(folder)
    if libc.shmget(7777, 4096, 0o600) >= 0:
        found.append("System V shared memory")
    if KEYCTL and libc.syscall(KEYCTL, 10, -3, b"user", b"course-note", 0) >= 0:
        found.append("the session's keyring")
    if KEYCTL and libc.syscall(KEYCTL, 10, -4, b"user", b"course-note", 0) >= 0:
        found.append("the user's keyring")
    with socket.socket(socket.AF_UNIX) as server:
        if server.connect_ex("\\0course-note") == 0:
            found.append("an abstract socket")
    if [pid for pid in glob.glob("/proc/[0-9]*") if b"course-note" in open(pid + "/environ", "rb").read()]:
        found.append("a process")
    if len(os.listdir("/dev/pts")) > 1:
        found.append("a terminal")
def leave():
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/dev/mqueue", "/run", os.getcwd()):
        try:
            open(folder + "/note", "w").write("the answers")
        except OSError:
            pass
    libc.shmget(7777, 4096, 0o1600)
    if KEYCTL:
        libc.syscall(ADD_KEY, b"user", b"course-note", b"answers", 7, -3)
        libc.syscall(ADD_KEY, b"user", b"course-note", b"answers", 7, -4)
    if os.fork() == 0:
        os.setsid()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\\0course-note")
        listener.listen()
        os.open("/dev/ptmx", os.O_RDWR)
        import time
        time.sleep(600)
        os._exit(0)
"""
ONCE = (
    NOTES
    + """
if os.path.exists("/tmp/seen"):  # an earlier check of this very submission
    found = open("/tmp/seen").read().split(",")
else:
    left_by_another()
    leave()
    open("/tmp/seen", "w").write(",".join(found or ["nothing"]))
"""
)
POISON = """
import ctypes, glob, os, signal, socket, sys
parents = []
pid = os.getppid()
while pid > 0:
    parents.append(pid)
    pid = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
for pid in parents:
    try:
        with open(f"/proc/{pid}/mem", "r+b", 0) as memory:
            for line in open(f"/proc/{pid}/maps"):
                if "rw-p" in line and "[heap]" in line:
                    memory.seek(int(line.split("-")[0], 16))
                    memory.write(b"poison" * 1000)
    except OSError:
        pass
for fd in range(3, 256):  # a socket to the grader, should one have been left open
    try:
        socket.socket(fileno=os.dup(fd)).sendmsg([b'{"folders": [], "program": ["/bin/true"]}'])
    except OSError:
        pass
for kind in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
    for pid in parents:
        try:
            os.kill(pid, kind)
        except OSError:
            pass
"""
MARK = "the-work-of-another"
REMEMBER = f"""
import re
def remembered(mark=re.compile(b"[{MARK[0]}]{MARK[1:]}")):  # the brackets keep it from finding itself
    with open("/proc/self/mem", "rb", 0) as memory:
        for line in open("/proc/self/maps"):
            start, end = (int(at, 16) for at in line.split()[0].split("-"))
            if line.split()[1].startswith("rw"):
                try:
                    memory.seek(start)
                    if mark.search(memory.read(end - start)):
                        return True
                except (OSError, ValueError, OverflowError):
                    pass
    return False
"""


def the_class(secret: Path, port: int, results: Path) -> list[Student]:
    """Everybody.

    Args:
        secret: a file that nobody may read.
        port: one that this process listens on.
        results: where the judged results are written.
    """
    right, stub = (10, 25), (10, 0)
    return [
        Student("correct", right, files=modules(f"{B}\n# {MARK}\n")),
        Student("empty", (0, 0), "was not handed in", build=lambda path: path.mkdir()),
        Student("untouched", (0, 0), files=dict(released())),
        Student("syntax_error", stub, "SyntaxError", modules("def greedy_paged(:\n")),
        Student("import_error", stub, "no_such_package", modules("import no_such_package\n" + B)),
        Student("missing_file", stub, "m13b_greedy.py was not handed in", modules(None)),
        Student("loop_at_import", stub, "no answer after 0 of", modules("while True: pass\n")),
        Student("loop_in_call", stub, "no answer after 0 of", modules(instead("while True: pass"))),
        Student("sleeps", stub, "no answer after 0 of", modules(instead("import time\ntime.sleep(10_000)"))),
        Student("memory_bomb", stub, "MemoryError", modules(instead("x = []\nwhile True: x.append(bytearray(2**28))"))),
        Student("memory_bomb_of_many", stub, "", modules(instead(
            "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = b'x' * (700 * 2**20)\n"
            "        time.sleep(60)\ntime.sleep(60)"))),
        Student("fork_bomb", stub, "", modules(instead("import os\nwhile True:\n    os.fork()"))),
        Student("output_100_mb", right, files=modules(beside("print('spam ' * 20_000_000)"))),
        Student("os_exit", stub, "ended by itself", modules(instead("import os\nos._exit(0)"))),
        Student("sys_exit", stub, "SystemExit", modules("import sys\nsys.exit(0)\n" + B)),
        Student("kills_itself", stub, "exit status -9", modules(instead("import os\nos.kill(os.getpid(), 9)"))),
        Student("kills_its_parent", stub, "ended by itself", modules(instead(
            "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(60)"))),
        Student("kills_everybody", stub, "", modules(instead("import os\nos.kill(-1, 9)"))),
        Student("no_tests", right, files=modules(B, **{NOTEBOOK: notebook(
            lambda cells: [cells.remove(cell) for cell in graded(cells)])})),
        Student("edited_tests", right, files=modules(B, **{NOTEBOOK: notebook(edit_tests)})),
        Student("repeated_tests", right, files=modules(B, **{NOTEBOOK: notebook(
            lambda cells: cells.extend(graded(cells)))})),
        Student("broken_notebook", right, "is no notebook", modules(B, **{CHAPTER: b'{"cells": [{'})),
        Student("deep_notebook", right, "is no notebook", modules(B, **{CHAPTER: b"[" * 200_000})),
        Student("renamed_notebook", right, "My copy.ipynb has its cells", modules(B, **{
            "My copy.ipynb": released()[CHAPTER]})),
        Student("link_to_a_secret", stub, "m13b_greedy.py was not handed in", build=link(str(secret))),
        Student("link_to_the_solution", stub, "was not handed in", build=link(str(SOLUTIONS / "m13b_greedy.py"))),
        Student("pipe", stub, "was not handed in", build=pipe),
        Student("huge_file", stub, "larger than 1 MiB", modules(B + "#" * 2**21)),
        Student("thief", stub, "nothing to steal", modules(LOOT + instead("raise RuntimeError('nothing to steal')"))),
        Student("vandal", right, files=modules(beside(
            f"import os, pathlib\nfor p in ({str(results)!r}, {str(repo_root())!r}, '/etc', '/dev/shm/../..'):\n"
            "    try:\n        (pathlib.Path(p) / 'vandal').write_text('was here')\n    except OSError: pass\n"
            f"pathlib.Path({str(secret)!r}).unlink()"))),
        Student("network", right, files=modules(beside(
            f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2).send(b'hello')"))),
        Student("forger", stub, "", modules(FORGE + instead(
            "send()\nsend(end='done', code=0)\nimport os\nos._exit(0)"))),
        Student("malformed_forger", stub, "", modules(FORGE + instead(
            "send(evidence={'not_plain': [], 'repr': {}})\nsend(error=7)\nsend(end=[], code='x')\nos._exit(0)"))),
        Student("equal_to_everything", stub, "plain list of ints", modules(EQUAL + instead("return Everything()"))),
        Student("patches_the_checks", stub, "", modules(PATCH + instead("return [0] * n"))),
        Student("patches_json", stub, "", modules(instead(
            "import json\ndumps = json.dumps\njson.dumps = lambda *a, **k: dumps({'case': 0, 'passed': True})\n"
            "return [0] * n"))),
        Student("patches_tracebacks", stub, "RuntimeError", modules(instead(
            "import sys, traceback\ntraceback.extract_tb = lambda *a: 1 / 0\nsys.excepthook = None\n"
            "raise RuntimeError('x')"))),
        Student("daemon", right, files=modules(beside(
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)\n"
            "    os._exit(0)"))),
        Student("fills_the_disk", stub, "No space left", modules(instead(
            "import itertools\nfor i in itertools.count():\n    open(f'/tmp/{i}', 'wb').write(bytes(2**24))"))),
        Student("script_in_the_message", stub, "<script>", modules(instead(
            "raise RuntimeError('<script>alert(1)</script> \\x1b[2J \\ud800')"))),
        *(Student(f"leaves_notes_{number}", stub, "found nothing", modules(ONCE + instead(
            "raise RuntimeError('found ' + ', '.join(found or ['nothing']))"))) for number in range(4)),
        Student("poisons_its_parents", stub, "", modules(instead(POISON))),
        Student("remembers_others", stub, "remembers nothing", modules(REMEMBER + instead(
            "if not remembered():\n    raise RuntimeError('remembers nothing')"))),
        Student("shadows_torch", right, files=modules(B, **{"torch.py": "raise SystemExit", "json.py": "1 / 0"})),
        Student("one_file", right, files={"serve_myllm.py": A + B.replace("from m13a_load_model ", "# ")}),
        Student("whole_repository", right, build=lambda path: archive(
            path, {f"repo/assignments/m13/{name}": text for name, text in modules(B).items()}
            | {"repo/old/m13b_greedy.py": "1 / 0", "repo/../../../../evil.py": "1", "/evil.py": "1"})),
        Student("zip_bomb", stub, "larger than 1 MiB", build=lambda path: archive(
            path, {"m13a_load_model.py": A, "m13b_greedy.py": bytes(2**28)})),
        Student("no_zip", (0, 0), "cannot be read", build=lambda path: Path(f"{path}.zip").write_bytes(b"PK\3\4 no")),
        Student("tar_with_links", right, build=tar),
    ]  # fmt: skip
