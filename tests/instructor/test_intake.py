"""Classes as they come: every form of inbox, any name, and nothing passed over in silence."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from grading.assignments import released
from grading.intake.archives import Entry
from grading.intake.inbox import HandIn, Inbox, read_inbox
from grading.intake.take_in import take_in
from grading.names import distinct_ids, original_name, safe_id
from grading.roster import read_roster

A, B = "m13a_load_model.py", "m13b_greedy.py"
MINE = b"def load_model(ws):\n    return 'mine'\n"
CANVAS_ROSTER = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Old (1)\n    Points Possible,,,,,10\n"
    '"O\'Brien, José",101,s-1,jobrien,M1,9\n"Lovelace, Ada",102,s-2,ada,M1,\n"Hopper, Grace",103,s-3,grace,M1,\n'
)


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def laid_out(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def as_zip(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "download.zip"
    path.write_bytes(zipped(files))
    return path


def of(inbox: Inbox, student: str) -> HandIn:
    return next(hand_in for hand_in in inbox.hand_ins if hand_in.student == student)


def taken(hand_in: HandIn, name: str = A) -> bytes:
    return take_in(hand_in.student, hand_in.entries()).files[name]


def entry(name: str, data: bytes, size: int | None = None) -> Entry:
    return Entry(PurePosixPath(name), len(data) if size is None else size, lambda most: data[:most])


def test_any_name_becomes_a_safe_id_of_its_own() -> None:
    assert safe_id("José O'Brien") == "Jose_OBrien"
    assert safe_id("ada.l+1@x.org") == "ada.l+1@x.org"
    assert safe_id("李小龍").startswith("student-")
    assert not safe_id("../../etc").startswith((".", "/"))
    ids = distinct_ids(["Jose OBrien", "José O'Brien", "Jose_OBrien"])
    assert len(set(ids.values())) == 3
    assert ids["Jose_OBrien"] == "Jose_OBrien"


def test_a_folder_of_names_with_spaces_and_accents_is_taken(tmp_path: Path) -> None:
    inbox = read_inbox(laid_out(tmp_path, {f"José O'Brien/work/{A}": MINE, "李小龍.zip": zipped({A: MINE})}))
    assert [hand_in.name for hand_in in inbox.hand_ins] == ["José O'Brien", "李小龍"]
    assert [taken(hand_in) for hand_in in inbox.hand_ins] == [MINE, MINE]


CANVAS = {
    "obrienjose_101_9001_m13a_load_model.py": b"old",
    "obrienjose_LATE_101_9105_m13a_load_model-1.py": MINE,
    "lovelaceada_102_9002_work.zip": zipped({f"m13/{A}": MINE}),
    "hoppergrace_103_link.html": b"<a href='https://drive.example/x'>",
}


@pytest.mark.parametrize("pack", [as_zip, laid_out])
def test_canvas(tmp_path: Path, pack: Callable[[Path, dict[str, bytes]], Path]) -> None:
    inbox = read_inbox(pack(tmp_path, CANVAS))
    assert inbox.kind == "Canvas"
    assert [hand_in.student for hand_in in inbox.hand_ins] == ["hoppergrace_103", "lovelaceada_102", "obrienjose_101"]
    jose = of(inbox, "obrienjose_101")
    assert jose.late and "earlier version" in jose.notes[0]
    assert taken(jose) == MINE, "the newest version counts"
    assert taken(of(inbox, "lovelaceada_102")) == MINE
    grace = of(inbox, "hoppergrace_103")
    assert "no text or link" in take_in("grace", grace.entries()).asks[0]


def test_canvas_with_its_roster(tmp_path: Path) -> None:
    inbox = read_inbox(as_zip(tmp_path, CANVAS), roster=read_roster(CANVAS_ROSTER))
    assert [(hand_in.student, hand_in.name) for hand_in in inbox.hand_ins] == [
        ("ada", "Lovelace, Ada"), ("grace", "Hopper, Grace"), ("jobrien", "O'Brien, José")
    ]  # fmt: skip


@pytest.mark.parametrize("files", [
    {f"José O'Brien_4711_assignsubmission_file_/{A}": MINE, f"Ada L_4712_assignsubmission_file_/w/{A}": MINE},
    {f"José O'Brien_4711_assignsubmission_file_{A}": MINE, f"Ada L_4712_assignsubmission_file_{A}": MINE},
    {f"class/José O'Brien_4711_assignsubmission_file/{A}": MINE, f"class/Ada L_4712_assignsubmission_file/{A}": MINE},
])  # fmt: skip
def test_moodle_with_folders_and_without(tmp_path: Path, files: dict[str, bytes]) -> None:
    roster = read_roster("Identifier,Full name,Email address\nParticipant 4711,José O'Brien,jose@x.org\n")
    inbox = read_inbox(as_zip(tmp_path, files), roster=roster)
    assert inbox.kind == "Moodle"
    assert [hand_in.name for hand_in in inbox.hand_ins] == ["Ada L", "José O'Brien"]
    assert of(inbox, "jose@x.org").time.endswith("UTC")
    assert all(taken(hand_in) == MINE for hand_in in inbox.hand_ins)


def test_gradescope_gives_each_of_a_group_the_newest_submission(tmp_path: Path) -> None:
    metadata = b"""---
submission_1:
  :submitters:
  - :name: Jos\xc3\xa9 O'Brien
    :sid: '101'
    :email: jose@x.org
  - :name: Ada L
    :sid: '102'
  :created_at: 2026-12-01 10:00:00.5 Z
  :score: !ruby/object:BigDecimal 18:0.1e1
submission_2:
  :submitters:
  - :name: Ada L
    :sid: '102'
  :created_at: 2026-12-02 10:00:00 Z
"""
    files = {f"submission_1/{A}": b"old", f"submission_2/{A}": MINE, "submission_metadata.yml": metadata}
    inbox = read_inbox(as_zip(tmp_path, {f"assignment_1_export/{name}": data for name, data in files.items()}))
    assert inbox.kind == "Gradescope"
    assert [(found.name, found.time, taken(found)) for found in inbox.hand_ins] == [
        ("Ada L", "2026-12-02 10:00:00 UTC", MINE), ("José O'Brien", "2026-12-01 10:00:00 UTC", b"old")
    ]  # fmt: skip


def test_github_classroom_finds_users_behind_the_assignments_name(tmp_path: Path) -> None:
    files = {}
    for user in ("ada-l", "adam"):
        files |= {f"mini-vllm-{user}/.git/HEAD": b"ref", f"mini-vllm-{user}/assignments/m13/{A}": MINE}
    inbox = read_inbox(laid_out(tmp_path / "mini-vllm-submissions", files))
    assert inbox.kind == "GitHub Classroom"
    assert [(hand_in.student, taken(hand_in)) for hand_in in inbox.hand_ins] == [("ada-l", MINE), ("adam", MINE)]


def test_nbgraders_exchange_and_its_submitted_folder(tmp_path: Path) -> None:
    early, late = "2026-12-01 10:00:00.000000 UTC", "2026-12-02 10:00:00.000000 UTC"
    inbound = laid_out(tmp_path / "inbound", {f"ada+m13+{early}+r1/{A}": b"old", f"ada+m13+{late}+r2/{A}": MINE})
    inbox = read_inbox(inbound)
    assert inbox.kind == "nbgrader's exchange"
    (ada,) = inbox.hand_ins
    assert (ada.student, ada.time, taken(ada)) == ("ada", "2026-12-02 10:00:00 UTC", MINE)
    own = read_inbox(laid_out(tmp_path / "own", {f"ada/m13/{A}": MINE, "ada/m13/timestamp.txt": early.encode()}))
    assert (own.hand_ins[0].student, own.hand_ins[0].time, taken(own.hand_ins[0])) == ("ada", early, MINE)


def test_what_went_in_is_what_is_listed(tmp_path: Path) -> None:
    files = {"ada.rar": b"Rar!", "bob.7z": b"7z", "cy.pdf": b"%PDF", "dan.zip": b"no zip", f"eve/{A}": MINE,
             ".DS_Store": b"", "fay/readme.md": b"hello"}  # fmt: skip
    inbox = read_inbox(laid_out(tmp_path, files))
    asks = {found.student: take_in(found.student, found.entries()).asks for found in inbox.hand_ins}
    assert sorted([*asks, *inbox.strays]) == [".DS_Store", "ada", "bob", "cy", "dan", "eve", "fay"]
    assert not asks.pop("eve")
    for student, words in {
        "ada": ".zip",
        "bob": ".zip",
        "cy": ".py and .ipynb",
        "dan": "read",
        "fay": "nothing",
    }.items():
        assert words in asks[student][0]


@pytest.mark.parametrize("name", [
    "M13A_load_model.py", "m13a_load_model (1).py", "m13a_load_model-1.py", "Copy of m13a_load_model.py", "model.py",
])  # fmt: skip
def test_modules_under_other_names_are_recognised(name: str) -> None:
    submission = take_in("ada", [entry(f"work/{name}", MINE)])
    assert submission.files[A] == MINE
    assert any(name in note and "was taken for it" in note for note in submission.notes)


def test_two_that_could_be_meant_are_named_and_neither_is_taken() -> None:
    submission = take_in("ada", [entry("one.py", MINE), entry("two.py", MINE + b"#"), entry(B, b"b")])
    assert submission.files[A] == released("m13")[A]
    assert any("one.py, two.py" in note for note in submission.notes)


def test_a_copy_beside_the_original_is_said() -> None:
    submission = take_in("ada", [entry(A, MINE), entry("m13a_load_model (1).py", b"newer?")])
    assert submission.files[A] == MINE
    assert any("m13a_load_model (1).py" in note for note in submission.notes)


def test_names_of_copies() -> None:
    assert {original_name(n) for n in ("x (2).py", "x-3.py", "Copy of x.py", "X.py", "x - Copy.py", "x_copy.py")} == {
        "x.py"
    }


def test_outputs_do_not_count_against_a_notebook() -> None:
    name = "mini_vllm.ipynb"
    notebook = json.loads(released("m13")[name])
    answer = next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("solution"))
    answer["source"] = "x = 'mine'"
    answer["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "x" * (40 * 2**20)}]
    submission = take_in("ada", [entry(name, json.dumps(notebook).encode())])
    assert b"x = 'mine'" in submission.files[name]
    assert len(submission.files[name]) < 2**20


def test_a_virtual_environment_in_the_zip_does_no_harm(tmp_path: Path) -> None:
    files = {f"w/env/lib/python3.11/site-packages/p/{number}.py": b"" for number in range(25_000)}
    inbox = read_inbox(laid_out(tmp_path, {"ada.zip": zipped(files | {f"w/z/{A}": MINE})}))
    assert taken(inbox.hand_ins[0]) == MINE


def test_a_roster_that_is_none_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="SIS Login ID"):
        read_roster("colour,size\nred,1\n")
    with pytest.raises(ValueError, match="two weeks"):
        read_roster("id,name,extension\nada,Ada,two weeks\n")


def test_namesakes_are_not_guessed() -> None:
    roster = read_roster("id,name\na1,Ada L\na2,Ada L\n")
    assert roster.find("Ada L") is None
    assert roster.find("a2").id == "a2"
