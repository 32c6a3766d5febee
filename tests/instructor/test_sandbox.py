"""The sandbox holds, and says so when it does not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ai_playground.checkout import repo_root
from checking.supervisor import WorkerBroken
from grading.judging import sandbox, warm
from grading.judging.control_group import ControlGroup, sweep
from grading.judging.sandbox import Sandbox, SandboxError
from grading.judging.sandbox_view import PROCESSES

needs_bubblewrap = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not shutil.which("bwrap"), reason="needs Linux and bubblewrap"
)


@needs_bubblewrap
def test_the_sandbox_holds_and_leaves_nothing_behind() -> None:
    with Sandbox() as box:
        seen = box.check()
        stage = box.stage
    assert "EROFS" in seen["write"]["/usr/new"]
    assert 10 < seen["forks"] < PROCESSES
    assert not stage or not Path(stage).exists()


@needs_bubblewrap
@pytest.mark.parametrize(
    ("flag", "hole"),
    [
        ("--unshare-all", "it reached a port of this machine"),
        ("--disable-userns", "it could make a user namespace"),
        ("--clearenv", "it has the variables ['SECRET']"),
    ],
)
def test_a_weaker_sandbox_stops_the_run(flag: str, hole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sandbox.bubblewrap
    kept = ["--unshare-pid", "--unshare-ipc", "--unshare-uts"] if flag == "--unshare-all" else []

    def weaker(binds: list[tuple[str, str]], parent: bool = False) -> list[str]:
        argv = whole(binds, parent)
        if parent:
            return argv
        at = argv.index(flag)
        return argv[:at] + kept + argv[at + 1 :]

    monkeypatch.setattr(sandbox, "bubblewrap", weaker)
    monkeypatch.setattr(sandbox, "OUTER_ENV", sandbox.OUTER_ENV | {"SECRET": "1"})
    with Sandbox() as box, pytest.raises(SandboxError, match="does not hold") as raised:
        box.check()
    assert hole in str(raised.value)


@needs_bubblewrap
@pytest.mark.parametrize(
    ("line", "instead", "hole"),
    [
        ("    _renounce()\n", "", "it has capabilities"),
        ('    Path("/proc/sys/user/max_user_namespaces").write_text("0")\n', "", "it could make a user namespace"),
        (
            '"/tmp", "tmpfs", _NOSUID | _NODEV, f"size={given[\'tmp_size\']},',
            '"/tmp", "tmpfs", 0, f"',
            "it could fill /tmp",
        ),
    ],
)
def test_a_weaker_child_of_the_warm_parent_stops_the_run(
    line: str, instead: str, hole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = warm.SOURCE.read_text(encoding="utf-8")
    assert text.count(line) == 1
    weaker = tmp_path / "weaker.py"
    weaker.write_text(text.replace(line, instead), encoding="utf-8")
    monkeypatch.setattr(warm, "SOURCE", weaker)
    with Sandbox() as box, pytest.raises(SandboxError, match="in a child of the warm parent, ") as raised:
        box.check()
    assert hole in str(raised.value)


@needs_bubblewrap
def test_a_child_of_the_warm_parent_sees_its_submission_and_no_other() -> None:
    show = "import os; print(os.listdir('/tmp'), os.listdir('assignments/m13'), os.path.exists('/tmp/submissions'))"
    seen = []
    with Sandbox() as box, box.folder() as other:
        for name in ("first.py", "second.py"):
            with box.folder() as folder, ControlGroup() as group:
                (folder / "assignments" / "m13").mkdir(parents=True)
                (folder / "assignments" / "m13" / name).touch()
                child = box.warm_child(folder, group, [sys.executable, "-I", "-c", show])
                with child.stdin, child.stdout, child.stderr:
                    child.wait(timeout=60)
                    seen.append(child.stdout.read().decode().strip() or child.stderr.read().decode())
        assert other.exists()
    below = "[]" if not repo_root().is_relative_to("/tmp") else str([repo_root().relative_to("/tmp").parts[0]])
    assert seen == [f"{below} ['first.py'] False", f"{below} ['second.py'] False"]


@needs_bubblewrap
def test_a_gate_that_is_slower_than_its_first_process_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = warm.SOURCE.read_text(encoding="utf-8")
    line = "    _close_all_but([])\n    os.waitpid(first, 0)\n"
    assert text.count(line) == 1
    slow = tmp_path / "slow.py"
    slow.write_text(text.replace(line, f"    __import__('time').sleep(1)\n{line}"), encoding="utf-8")
    monkeypatch.setattr(warm, "SOURCE", slow)
    program = [sys.executable, "-I", "-c", "import time; time.sleep(2); print('hello')"]
    with Sandbox() as box, ControlGroup() as group, (child := box.warm_child(None, group, program)).stdout:
        child.wait(timeout=60)
        assert (child.stdout.read(), child.stderr.read()) == (b"hello\n", b"")


@needs_bubblewrap
def test_a_warm_parent_that_died_is_replaced_and_one_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = [sys.executable, "-I", "-c", "print('hello')"]
    with Sandbox() as box, ControlGroup() as group:
        for _ in range(2):
            with (child := box.warm_child(None, group, hello)).stdout:
                child.wait(timeout=60)
                assert child.stdout.read() == b"hello\n"
            box._parent.close()
        broken = tmp_path / "broken.py"
        broken.write_text("raise SystemExit('no torch here')")
        monkeypatch.setattr(warm, "SOURCE", broken)
        with pytest.raises(WorkerBroken, match="no torch here"):
            box.warm_child(None, group, hello)


@needs_bubblewrap
def test_where_no_warm_parent_can_be_had_each_worker_starts_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = warm.SOURCE.read_text(encoding="utf-8")
    forbidden = tmp_path / "forbidden.py"
    forbidden.write_text(text.replace('_call("unshare", ', '_call("no_namespaces_in_namespaces", '), encoding="utf-8")
    monkeypatch.setattr(warm, "SOURCE", forbidden)
    with Sandbox() as box, box.folder() as folder:
        assert "no_namespaces_in_namespaces" in box.check()["without_parent"]
        with box.worker(folder) as worker:
            worker.ready()
            assert isinstance(worker.process, subprocess.Popen)


@needs_bubblewrap
def test_an_open_folder_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sandbox.binds_of
    solutions = str(sandbox.repo_root() / "solutions")
    monkeypatch.setattr(sandbox, "binds_of", lambda submission: [*whole(submission), (solutions, solutions)])
    with Sandbox() as box, pytest.raises(SandboxError, match=r"could read .*solutions"):
        box.check()


@needs_bubblewrap
def test_a_sandbox_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "limits", lambda **_: ["no-such-program"])
    with Sandbox() as box, pytest.raises(SandboxError, match="no-such-program"):
        box.check()


@needs_bubblewrap
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="an ordinary user has no other uid to run as")
def test_root_never_runs_student_code_as_root() -> None:
    with Sandbox() as box:
        box.uid = 0
        with pytest.raises(SandboxError, match="uid 0"):
            box.check()


def test_without_bubblewrap_it_refuses_and_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="apt-get install bubblewrap") as raised:
        Sandbox()
    assert "--unsafe" in str(raised.value)
    with Sandbox(unsafe=True) as plain:
        assert plain.check() == {}


def test_what_a_killed_grader_left_is_swept_away(tmp_path: Path) -> None:
    dead, mine, full = (tmp_path / f"course-{pid}-1" for pid in (2**22 + 1, os.getpid(), 2**22 + 2))
    for folder in (dead, mine, full):
        folder.mkdir()
    (full / "file").touch()
    sweep(tmp_path.iterdir())
    assert sorted(tmp_path.iterdir()) == sorted((mine, full))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
def test_a_control_group_is_removed() -> None:
    with ControlGroup() as group:
        folders = list(group.folders.values())
        assert group.kind in ("v1", "v2", "systemd", "none")
        assert all(folder.is_dir() for folder in folders)
    assert not any(folder.exists() for folder in folders)
