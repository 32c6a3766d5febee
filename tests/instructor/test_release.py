"""The generated tree and the student's half: made from a small course of the same layout, and from this one."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
import typer
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from traitlets.config import Config, PyFileConfigLoader
from typer.testing import CliRunner, Result

from ai_playground.checkout import repo_root
from grading import instructor_commands
from grading.release.leaks import leaks
from grading.release.markers import ReleaseError
from grading.release.student_half import release_to, student_half
from grading.release.student_tree import regenerate, stale

ROOT = repo_root()

MODULE = '''\
"""M13b: greedy decoding."""

from ai_playground.models import Transformer


def greedy_paged(prompt_ids: list[int], n: int) -> list[int]:
    """The `n` new tokens."""
    ### BEGIN SOLUTION
    engine = make_the_paged_engine(prompt_ids)
    engine.warm_up_the_block_pool()
    return [engine.decode_one_more() for _ in range(n)]
    ### END SOLUTION
'''
ANSWER = "slots = [table[i // 16] * 16 + i % 16 for i in range(n)]"
HIDDEN_CHECK = "assert gather_slots([3, 1], 17) == [*range(48, 64), 16]"
WHOLE_CELL = "wasted_share_of_slabs = 1 - used_tokens / reserved"
OUTPUT = "the printed slots are 48, 49, 50, 51, 52, 53"


def graded(grade_id: str, **roles: object) -> dict:
    basis = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
    return {"nbgrader": {**basis, "grade_id": grade_id, **roles}}


def notebook() -> nbformat.NotebookNode:
    cells = [
        new_markdown_cell("# A mini vLLM\n\n### Block tables", id="title"),
        new_code_cell("%matplotlib inline\nimport torch", id="imports"),
        new_code_cell(
            f"def gather_slots(table, n):\n    ### BEGIN SOLUTION\n    {ANSWER}\n    return slots\n"
            "    ### END SOLUTION",
            id="gather",
            metadata=graded("gather", solution=True),
        ),
        new_code_cell(WHOLE_CELL, id="waste", metadata=graded("waste", solution=True)),
        new_code_cell(
            f"assert gather_slots([0], 1) == [0]\n### BEGIN HIDDEN TESTS\n{HIDDEN_CHECK}\n### END HIDDEN TESTS",
            id="check",
            metadata=graded("check", grade=True, locked=True, points=2),
            outputs=[new_output("stream", text=OUTPUT)],
            execution_count=7,
        ),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def make_course(root: Path) -> Path:
    """A checkout of a course with one module, one notebook, two files that stay hidden, and a project."""
    files = {
        "solutions/m13/m13b_greedy.py": MODULE,
        "solutions/m13/hidden_m13b.json": '{"prompt": [3, 1, 4, 1, 5, 9, 2, 6], "expected": [241, 43, 37]}\n',
        "solutions/m13/make_hidden.py": "# not released: it has no solution region\nSEED_OF_HIDDEN = 90210\n",
        "solutions/m13/mini_vllm.ipynb": nbformat.writes(notebook()) + "\n",
        "solutions/p3_kv_serve/kv_generate.py": MODULE.replace("greedy_paged", "generate_cached"),
        "projects/p3_kv_serve/README.md": "# p3\n",
        "milestones/m13/m13b.md": "# M13b\n",
        "README.md": "# Course\n\n<!-- BEGIN INSTRUCTOR -->\nSee grading/.\n<!-- END INSTRUCTOR -->\n\nStart here.\n",
        "pyproject.toml": '[project]\nname = "x"\n# BEGIN INSTRUCTOR\n[tool.grading]\n# END INSTRUCTOR\n',
        ".gitignore": "__pycache__/\n/grading/class/\n",
        ".ci/run": "true\n",
        "tests/test_given.py": "def test_given():\n    assert True\n",
        "tests/instructor/test_secret.py": "import grading\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8", newline="\n")
    shutil.copytree(ROOT / "grading", root / "grading", ignore=shutil.ignore_patterns("class", "__pycache__"))
    shutil.copy(ROOT / "nbgrader_config.py", root)
    git(root, "init", "--quiet")
    return root


@pytest.fixture
def course(tmp_path: Path) -> Path:
    return make_course(tmp_path / "course")


@pytest.fixture
def released_course(course: Path) -> Path:
    """The same with its generated tree, all of it tracked."""
    regenerate(course)
    git(course, "add", "--all")
    return course


def tree(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8", newline="\n")


# ---- the generated tree ----------------------------------------------------------------------------------------


def test_the_tree_holds_stubs_and_the_notebook_and_nothing_hidden(course: Path) -> None:
    regenerate(course)
    assert sorted(tree(course / "assignments")) == ["m13/m13b_greedy.py", "m13/mini_vllm.ipynb"]
    names = ["README.md", "kv_generate.py", "p3_kv_serve.ipynb"]
    assert sorted(tree(course / "projects")) == [f"p3_kv_serve/{name}" for name in names]
    stub = (course / "projects/p3_kv_serve/kv_generate.py").read_text()
    assert '"p3: generate_cached is not written yet. Card: projects/p3_kv_serve/README.md"' in stub
    cells = {cell.id: cell for cell in nbformat.read(course / "assignments/m13/mini_vllm.ipynb", 4).cells}
    assert cells["gather"].source.startswith("def gather_slots(table, n):\n    # YOUR CODE HERE\n    raise NotImpl")
    assert cells["waste"].source.startswith("# YOUR CODE HERE")
    assert cells["check"].source == "assert gather_slots([0], 1) == [0]"
    assert cells["check"].outputs == [] and cells["check"].execution_count is None
    assert cells["check"].metadata.nbgrader.checksum


def test_modules_alone_get_a_notebook_with_a_graded_cell_for_each_part(course: Path) -> None:
    regenerate(course)
    notebook = nbformat.read(course / "projects/p3_kv_serve/p3_kv_serve.ipynb", 4)
    graded = {cell.metadata.nbgrader.grade_id: cell for cell in notebook.cells if "nbgrader" in cell.metadata}
    points = {name: cell.metadata.nbgrader.points for name, cell in graded.items()}
    assert points == {"test_p3_full": 20, "test_p3_cached": 55, "test_p3_sampler": 22, "test_p3_rules": 3}
    assert graded["test_p3_full"].source == 'check_milestone("p3_full")'
    assert (course / "solutions/p3_kv_serve/p3_kv_serve.ipynb").is_file()


def test_nbgraders_own_generate_gives_the_same_bytes_and_fails_closed(
    course: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from nbgrader.apps import GenerateAssignmentApp  # slow to import, hence here, and run in this process

    def generate(*arguments: str) -> None:
        app = GenerateAssignmentApp()
        app.initialize(["m13", *arguments])
        app.start()

    monkeypatch.chdir(course)  # where it looks for its settings
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # it calls alembic
    regenerate(course)
    expected = tree(course / "assignments")
    shutil.rmtree(course / "assignments")
    generate()
    assert tree(course / "assignments") == expected
    assert (course / "grading/class/gradebook.db").is_file()

    edit(course / "solutions/m13/mini_vllm.ipynb", "### END SOLUTION", "### END SOLUTIONS")
    with pytest.raises(SystemExit, match="1"):
        generate("--force")
    assert "Spell the marker exactly so" in capfd.readouterr().err
    assert not (course / "assignments/m13").exists()


def settings(root: Path) -> Config:
    return PyFileConfigLoader("nbgrader_config.py", path=str(root)).load_config()


def test_nbgrader_keeps_the_students_modules_or_gets_no_settings_at_all(course: Path) -> None:
    expected = {"m13": ["m13b_greedy.py"], "p3_kv_serve": ["kv_generate.py"]}
    assert settings(course).Autograde.exclude_overwriting == expected
    edit(course / "solutions/m13/m13b_greedy.py", "### END SOLUTION", "")
    with pytest.raises(ReleaseError, match="Close the region"):  # without settings nbgrader finds no assignment
        settings(course)


def test_the_tree_is_the_same_every_time_and_on_windows(course: Path) -> None:
    assert len(regenerate(course)) == 5
    first = tree(course / "assignments")
    assert stale(course) == []
    for path in [*(course / "assignments/m13").iterdir(), *(course / "solutions/m13").iterdir()]:
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert stale(course) == []
    regenerate(course)
    assert tree(course / "assignments") == first


def test_what_is_stale_is_listed(course: Path) -> None:
    assert "assignments/m13/m13b_greedy.py: missing" in stale(course)
    regenerate(course)
    edit(course / "solutions/m13/mini_vllm.ipynb", "# A mini vLLM", "# A minute vLLM")
    (course / "assignments/m13/m13e_old.py").touch()
    assert stale(course) == [
        "assignments/m13/mini_vllm.ipynb: differs from what solutions/ gives",
        "assignments/m13/m13e_old.py: nothing in solutions/ gives it any more",
    ]
    regenerate(course)
    assert stale(course) == []
    assert not (course / "assignments/m13/m13e_old.py").exists()


def change_notebook(change: Callable[[nbformat.NotebookNode], None]) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        changed = notebook()
        change(changed)
        # Plain JSON: nbformat would mend some of what is broken here.
        (root / "solutions/m13/mini_vllm.ipynb").write_text(json.dumps(changed), encoding="utf-8")

    return write


def source_of(index: int, source: str) -> Callable[[Path], None]:
    return change_notebook(lambda nb: nb.cells[index].update(source=source))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: edit(root / "solutions/m13/m13b_greedy.py", "### END", "### END "), "m13b_greedy.py:12:"),
        (lambda root: shutil.move(root / "solutions/m13/m13b_greedy.py", root / "solutions/m13/greedy.py"), "m13b_gre"),
        (lambda root: (root / "solutions/m13/hidden_x.py").write_text(MODULE), "to stay with the instructor"),
        (lambda root: (root / "solutions/m13/hidden.ipynb").write_text("{}"), "to stay with the instructor"),
        (lambda root: (root / "solutions/m13/m13c_serve.py").write_bytes(b"# caf\xe9\n"), "expected UTF-8"),
        (lambda root: (root / "solutions/m13/mini_vllm.ipynb").write_text('{"cells": ['), "expected a valid notebook"),
        (change_notebook(lambda nb: nb.update(nbformat_minor=4)), "found 4.4"),
        (change_notebook(lambda nb: nb.cells[1].pop("id")), "4 ids for 5 cells"),
        (change_notebook(lambda nb: nb.cells[1].update(id="title")), "4 ids for 5 cells"),
        (change_notebook(lambda nb: nb.cells[1].update(cell_type="cod")), "expected a valid notebook"),
        (source_of(2, "x = 1\n### begin solution\ny = 1"), "cell 2:2: expected one of"),
        (source_of(2, "x = 1\n### END SOLUTION\ny = 1"), "found ### END SOLUTION alone"),
        (source_of(2, "### BEGIN SOLUTION\ny = 1"), "Close the region"),
        (source_of(2, "### BEGIN SOLUTION\n### END HIDDEN TESTS"), "cannot cross"),
        (source_of(2, "f(\n### BEGIN SOLUTION\n1)\n### END SOLUTION"), "student's version of cell 2"),
        (source_of(1, "### BEGIN SOLUTION\ny = 1\n### END SOLUTION"), "nbgrader refuses this notebook"),
        (source_of(0, "# BEGIN SOLUTION"), "cell 0:1: expected one of"),
        (change_notebook(lambda nb: nb.cells[3].metadata.nbgrader.update(grade_id="check")), "nbgrader refuses"),
    ],
)
def test_a_refusal_names_the_place_and_leaves_the_tree_as_it_was(
    course: Path, spoil: Callable[[Path], None], message: str
) -> None:
    (course / "assignments/m13").mkdir(parents=True)
    (course / "assignments/m13/m13b_greedy.py").write_text("# as it was\n")
    spoil(course)
    with pytest.raises(ReleaseError, match=re.escape(message)):
        regenerate(course)
    assert tree(course / "assignments") == {"m13/m13b_greedy.py": b"# as it was\n"}


@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_a_failed_write_leaves_the_tree_as_it_was(course: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    regenerate(course)
    edit(course / "solutions/m13/m13b_greedy.py", "greedy decoding", "decoding, greedily")
    before = tree(course)
    owner = Path if step == "write_bytes" else os
    original = getattr(owner, step)

    def fail(path: Path, argument: object) -> object:
        if path.name.startswith("kv_generate"):
            raise OSError("no space left")
        return original(path, argument)

    monkeypatch.setattr(owner, step, fail)
    with pytest.raises(OSError, match="no space"):
        regenerate(course)
    assert tree(course) == before


# ---- the student's half ----------------------------------------------------------------------------------------


def test_the_half_is_what_git_tracks_without_the_instructors(released_course: Path, tmp_path: Path) -> None:
    (released_course / "notes.txt").write_text("untracked")
    out = tmp_path / "half"
    release_to(released_course, out)
    assert sorted(tree(out)) == [
        ".course-release.json",
        ".gitignore",
        "README.md",
        "assignments/m13/m13b_greedy.py",
        "assignments/m13/mini_vllm.ipynb",
        "milestones/m13/m13b.md",
        "projects/p3_kv_serve/README.md",
        "projects/p3_kv_serve/kv_generate.py",
        "projects/p3_kv_serve/p3_kv_serve.ipynb",
        "pyproject.toml",
        "tests/test_given.py",
    ]
    assert (out / "README.md").read_text() == "# Course\n\nStart here.\n"
    assert (out / "pyproject.toml").read_text() == '[project]\nname = "x"\n'
    assert (out / ".git").is_dir()


def test_a_release_replaces_an_earlier_one_but_nothing_else(released_course: Path, tmp_path: Path) -> None:
    out = tmp_path / "half"
    release_to(released_course, out)
    (out / "mine.yml").write_text("kept")
    git(released_course, "rm", "--quiet", "--force", "tests/test_given.py")
    release_to(released_course, out)
    assert (out / "mine.yml").exists() and not (out / "tests/test_given.py").exists()

    (out / "assignments/m13/m13b_greedy.py").write_text("a student's work")
    with pytest.raises(ReleaseError, match=r"changed since and would be lost: assignments/m13/m13b_greedy\.py"):
        release_to(released_course, out)
    (out / ".course-release.json").unlink()
    with pytest.raises(ReleaseError, match="new, empty or an earlier release"):
        release_to(released_course, out)
    assert (out / "assignments/m13/m13b_greedy.py").read_text() == "a student's work"


@pytest.mark.parametrize(
    ("readme", "message"),
    [
        ("<!-- BEGIN INSTRUCTOR -->\nx\n", r"README\.md:1: expected <!-- END INSTRUCTOR --> further down"),
        ("x\n<!-- END INSTRUCTOR -->\n", r"README\.md:2: .* without a BEGIN above"),
        ("<!-- BEGIN INSTRUCTOR -->\n<!-- BEGIN INSTRUCTOR -->\n", r"README\.md:2: .* begins at line 1"),
        ("<!--BEGIN INSTRUCTOR-->\n", r"README\.md:1: .*Spell it exactly so"),
    ],
)
def test_instructor_blocks_must_be_whole(released_course: Path, tmp_path: Path, readme: str, message: str) -> None:
    (released_course / "README.md").write_text(readme)
    with pytest.raises(ReleaseError, match=message):
        release_to(released_course, tmp_path / "half")
    assert not (tmp_path / "half").exists()


def test_a_half_is_not_made_from_a_stale_or_untracked_tree(course: Path, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"run `uv run course release`"):
        release_to(course, tmp_path / "half")
    regenerate(course)
    with pytest.raises(ReleaseError, match=r"`git add` these first: assignments/m13/m13b_greedy\.py"):
        release_to(course, tmp_path / "half")
    assert not (tmp_path / "half").exists()


def in_notebook(change: Callable[[dict], None]) -> Callable[[dict[str, bytes]], None]:
    def spoil(files: dict[str, bytes]) -> None:
        content = json.loads(files["assignments/m13/mini_vllm.ipynb"])
        change(content)
        files["assignments/m13/mini_vllm.ipynb"] = json.dumps(content).encode()

    return spoil


def appended(name: str, text: str) -> Callable[[dict[str, bytes]], None]:
    return lambda files: files.update({name: files[name] + text.encode()})


SOLUTION_LINES = MODULE.split("\n")[8:11]
SOLUTION_TEXT = "\n".join(SOLUTION_LINES)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (appended("assignments/m13/m13b_greedy.py", SOLUTION_TEXT), "engine = make_the_paged_engine(prompt_ids)"),
        (appended("projects/p3_kv_serve/kv_generate.py", SOLUTION_TEXT), "engine = make_the_paged_engine(prompt_ids)"),
        (appended("assignments/m13/m13b_greedy.py", "SEED_OF_HIDDEN = 90210"), "SEED_OF_HIDDEN = 90210"),
        (in_notebook(lambda nb: nb["cells"][1].update(source=["if x:\n", "    " + ANSWER])), ANSWER),
        (in_notebook(lambda nb: nb["cells"][1]["metadata"].update(before=[{"was": HIDDEN_CHECK}])), HIDDEN_CHECK),
        (in_notebook(lambda nb: nb["metadata"].update({WHOLE_CELL: 1})), WHOLE_CELL),
        (in_notebook(lambda nb: nb["cells"][4].update(outputs=[new_output("stream", text="> " + OUTPUT)])), OUTPUT),
        (appended("milestones/m13/m13b.md", "\n".join([*SOLUTION_LINES[:2], HIDDEN_CHECK])), None),
        (appended("milestones/m13/m13b.md", SOLUTION_TEXT), "engine = make_the_paged_engine"),
        (appended("milestones/m13/m13b.md", "see hidden_m13b.json"), "names hidden_m13b.json"),
        (appended("tests/test_given.py", "    ### BEGIN HIDDEN TESTS\n"), "### BEGIN HIDDEN TESTS"),
    ],
)  # fmt: skip
def test_a_planted_leak_is_found(
    released_half: tuple[Path, dict[str, bytes]], spoil: Callable[[dict[str, bytes]], None], found: str | None
) -> None:
    root, files = released_half
    files = dict(files)
    assert leaks(root, files) == []
    spoil(files)
    problems = leaks(root, files)
    if found:
        assert any(found in problem for problem in problems), problems
    else:  # two lines of one block and one of another are not a run
        assert problems == []


@pytest.fixture(scope="module")
def released_half(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    root = tmp_path_factory.mktemp("leaks")
    regenerate(make_course(root))
    git(root, "add", "--all")
    return root, student_half(root)


# ---- the command -----------------------------------------------------------------------------------------------


def test_the_command_writes_checks_and_releases(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    instructor_commands.register(app)
    monkeypatch.setattr(instructor_commands, "ROOT", course)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["release", *arguments])

    first = run("--check")
    assert first.exit_code == 1 and "assignments/m13/m13b_greedy.py: missing" in first.output
    assert not (course / "assignments").exists()
    assert run().exit_code == 0
    assert run("--check").exit_code == 0
    git(course, "add", "--all")
    out = str(course.parent / "half")
    done = run("--out", out)
    assert done.exit_code == 0 and "11 files" in done.output
    assert run("--out", out, "--check").exit_code == 2
    edit(course / "solutions/m13/m13b_greedy.py", "### BEGIN SOLUTION", "")
    for arguments in ([], ["--check"], ["--out", out]):
        refused = run(*arguments)
        assert refused.exit_code == 1 and "m13b_greedy.py:12: expected" in refused.output


# ---- this checkout ---------------------------------------------------------------------------------------------


def test_the_committed_tree_is_what_solutions_gives() -> None:
    assert stale(ROOT) == [], "run `uv run course release`, look at the difference and commit it"


def test_this_courses_half_stands_alone(tmp_path: Path) -> None:
    """It leaks nothing, links to nothing that it lacks, and its tests run where there is no instructor's half."""
    release_to(ROOT, tmp_path)
    released = tree(tmp_path)
    for name in (name for name in released if name.endswith(".md")):
        for link in re.findall(r"\]\(([^)#:\s]+)", released[name].decode()):
            assert (tmp_path / name).parent.joinpath(link).exists(), f"{name} links to {link}"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("COURSE_WORKSPACE", None)
    # Every test file is imported, and of the tests those of the milestones run.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", "-k", "test_m13 or test_p3"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = dict(re.findall(r"::(test_(?:m13|p3)\S+) ([A-Z]+)", done.stdout))
    assert len(verdicts) > 10 and set(verdicts.values()) == {"SKIPPED"}, verdicts  # an empty stub earns nothing
    assert tree(tmp_path) == released, "the tests wrote into the checkout"
