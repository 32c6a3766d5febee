"""The session cards: complete, with a ladder of four hints, and true to the points and the commands that exist."""

import re

import pytest

from ai_playground.checkout import repo_root
from course.student import _hints
from milestones.points import CHAPTER, MILESTONES
from milestones.s4.cells import CELLS
from milestones.subjects import PARTS

CARDS = {"s4_1": "S4.1", "s4_2": "S4.2", "m13a": "S4.3", "m13b": "S4.4", "m13c": "S4.5", "m13d": "S4.6"}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_says_everything_a_session_needs(name: str) -> None:
    card = (repo_root() / PARTS[name].card).read_text(encoding="utf-8")
    assert CARDS[name] in card.splitlines()[0]
    goal = re.search(r"\*\*Goal\.\*\* (.*?)\n\n", card, re.DOTALL)[1]
    # A full stop ends a sentence where a new one begins or the text ends.
    assert len(re.findall(r"[.](?=\s+[A-Z]|$)", goal)) == 2, "the goal in two sentences"
    rows = re.findall(r"^\| (\w+) \| (.+) \|$", card, re.MULTILINE)
    assert {"needs", "read", "build", "midpoint", "proof", "artifact"} <= {row for row, text in rows if len(text) > 10}
    assert f"uv run pytest tests/milestones -k {name}" in dict(rows)["proof"]
    for path in re.findall(r"`((?:src|assignments|checkpoints)/[\w/.]+)`", card):
        assert (repo_root() / path).exists(), f"{name}.md names {path}"
    rungs = _hints(name)
    assert len(rungs) == 4
    assert "```" in rungs[2], "the third rung is pseudocode"


def test_the_readmes_table_holds_the_points_of_the_one_place() -> None:
    sessions = {"s4_1": 0, "s4_2": 0}
    for name, points in CHAPTER.items():
        sessions[CELLS[name].check.milestone] += points
    readme = (repo_root() / "README.md").read_text(encoding="utf-8")
    for points in (sessions, MILESTONES):
        assert f"| {', '.join(map(str, points.values()))} |" in readme
    for session, points in sessions.items():
        card = (repo_root() / PARTS[session].card).read_text(encoding="utf-8")
        assert f"with {points} of its 30 points" in card or (session == "s4_2" and "all of its 30 points" in card)
