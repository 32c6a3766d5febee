"""The graded assignments: which files of a student count, which checks judge them, and what these are worth.

An assignment is a folder of `solutions/`, which is also its name in nbgrader.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from ai_playground.checkout import repo_root
from checking.check import Check
from milestones.points import MILESTONES, P3, P3_SHOWN_WHOLE, VISIBLE_SHARE, WEIGHTS

CHECKED_WITH = ("src/ai_playground", "src/checking", "milestones")  # what a check imports, student code aside

Worth = tuple[tuple[Check, float], ...]  # checks, each with its points


@dataclass(frozen=True)
class Unit:
    """What has points of its own: a milestone, a graded cell of the chapter, or a part of p3.

    Attributes:
        visible: the checks that students have.
        hidden: the same probes and judges on the grader's own cases.
        functions: of the engine; none for a cell.
        notebook: the notebook that a cell stands in; each case of its checks counts by itself.
    """

    name: str
    points: float
    visible: Worth
    hidden: Worth
    functions: tuple[str, ...] = ()
    notebook: str = ""


@dataclass(frozen=True)
class Assignment:
    """See the module.

    Attributes:
        title: what reports call it.
        column: what grades.csv calls it.
        edited: (folder in the repository, pattern) of the files that students are asked to edit.
        engine: where the worker finds the engine, from the repository's root.
        given: what else of the repository student code needs, beside the library and the checks.
        units: what is graded, in order.
    """

    name: str
    title: str
    column: str
    edited: tuple[tuple[str, str], ...]
    engine: str
    given: tuple[str, ...]
    units: Callable[[], tuple[Unit, ...]]

    @property
    def points(self) -> float:
        return sum(unit.points for unit in self.units())


def place(assignment: str, name: str) -> PurePosixPath:
    """Where a file of a submission belongs, from the repository's root."""
    folder = next(folder for folder, pattern in ASSIGNMENTS[assignment].edited if PurePosixPath(name).match(pattern))
    return PurePosixPath(folder) / name


@cache
def released(assignment: str = "m13") -> dict[str, bytes]:
    """What students get and are asked to edit: name -> content."""
    return {
        path.name: path.read_bytes()
        for folder, pattern in ASSIGNMENTS[assignment].edited
        for path in sorted((repo_root() / folder).glob(pattern))
    }


@cache
def _m13() -> tuple[Unit, ...]:
    """The chapter's cells, then M13a-d."""
    from milestones.m13 import m13a, m13b, m13c, m13d
    from solutions.m13.hidden import HIDDEN

    functions = {
        "m13a": ("load_model",),
        "m13b": ("greedy_reference", "greedy_paged"),
        "m13c": ("serve",),
        "m13d": ("finale",),
    }
    units = [*_cells()]
    for module in (m13a, m13b, m13c, m13d):
        name = module.__name__.split(".")[-1]
        hidden = [replace(check, cases=HIDDEN[check.name]) for check in module.CHECKS if check.name in HIDDEN]
        share = MILESTONES[name] * (VISIBLE_SHARE if hidden else 1.0)
        visible, hidden = _split(module.CHECKS, share), _split(hidden, MILESTONES[name] - share)
        units.append(Unit(name, MILESTONES[name], visible, hidden, functions[name]))
    return tuple(units)


def _split(checks: Iterable[Check], points: float) -> Worth:
    checks = tuple(checks)
    weight = sum(WEIGHTS.get(check.name, 1) for check in checks)
    return tuple((check, points * WEIGHTS.get(check.name, 1) / weight) for check in checks)


def _cells() -> Iterator[Unit]:
    from milestones.s4.cells import CELLS

    further = _hidden_cases("solutions/m13/hidden_chapter.json")
    for name, cell in CELLS.items():
        hidden = [replace(cell.check, cases=tuple(further[name]))] if further.get(name) else []
        share = cell.points * (VISIBLE_SHARE if hidden else 1.0)
        visible, hidden = _split([cell.check], share), _split(hidden, cell.points - share)
        yield Unit(name, cell.points, visible, hidden, notebook="mini_vllm.ipynb")


@cache
def _p3() -> tuple[Unit, ...]:
    """p3's parts; here each check has points of its own."""
    from milestones.p3.p3 import CHECKS

    further = _hidden_cases("solutions/p3_kv_serve/hidden_p3.json")
    functions = {"p3_full": "generate_full", "p3_cached": "generate_cached", "p3_sampler": "top_p_sample"}
    units = []
    for name, points in P3.items():
        checks = [check for check in CHECKS if check.name in points]
        visible = tuple(
            (check, points[check.name] * (1.0 if check.name in P3_SHOWN_WHOLE else VISIBLE_SHARE)) for check in checks
        )
        hidden = tuple(
            (replace(check, cases=tuple(further[check.name])), points[check.name] - shown)
            for check, shown in visible
            if check.name not in P3_SHOWN_WHOLE
        )
        units.append(Unit(name, sum(points.values()), visible, hidden, (functions.get(name, "generate_full"),)))
    return tuple(units)


def _hidden_cases(name: str) -> dict[str, Any]:
    return json.loads((repo_root() / name).read_text(encoding="utf-8"))


ASSIGNMENTS = {
    "m13": Assignment(
        name="m13",
        title="M13",
        column="M13 mini vLLM",
        edited=(
            ("assignments/m13", "m13*.py"),
            ("assignments/m13", "*.ipynb"),
            ("checkpoints/myllm/src", "serve_myllm.py"),  # a student may write the whole engine in it
        ),
        engine="checkpoints/myllm/src/serve_myllm.py",
        given=(),
        units=_m13,
    ),
    "p3_kv_serve": Assignment(
        name="p3_kv_serve",
        title="p3",
        column="p3 KV-cached decoder",
        edited=(("projects/p3_kv_serve", "kv_generate.py"), ("projects/p3_kv_serve", "*.ipynb")),
        engine="projects/p3_kv_serve",
        given=("projects/p3_kv_serve/given_model.py",),
        units=_p3,
    ),
}
