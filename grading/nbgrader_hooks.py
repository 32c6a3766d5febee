"""What `nbgrader_config.py` plugs into nbgrader."""

import re
from pathlib import Path
from typing import Any

from nbformat.v4 import new_output
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade

from grading.release.stubs import module_stubs
from grading.release.student_notebooks import check_cells
from grading.report.words import unit_report


class StripModules(NbGraderPreprocessor):
    """Turn the modules that nbgrader copied into stubs, and take everything else away that is no student's.

    nbgrader copies every file of an assignment as it stands, solutions and hidden checks included
    (github.com/jupyter/nbgrader/issues/1237). This runs inside `generate_assignment`, formgrader's button too. It is
    a preprocessor and not one of nbgrader's hooks, because a hook that fails is logged and the release goes on; when
    this fails, nbgrader removes the whole release folder.
    """

    def preprocess(self, nb, resources):
        converter = self.parent.parent  # the exporter's, which knows the folders
        assignment, student = resources["nbgrader"]["assignment"], resources["nbgrader"]["student"]
        source = Path(converter._format_source(assignment, student))
        destination = Path(converter._format_dest(assignment, student))
        check_cells(nb, f"{source / resources['nbgrader']['notebook']}.ipynb")
        stubs = module_stubs(source)
        for path in sorted(destination.rglob("*"), reverse=True):  # a folder after what is in it
            if path.is_dir():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.suffix != ".ipynb" and path.relative_to(destination).as_posix() not in stubs:
                path.unlink()
        for name, text in stubs.items():
            (destination / name).write_text(text, encoding="utf-8", newline="\n")
        return nb, resources


class JudgedResults(NbGraderPreprocessor):
    """Give each graded cell what the class grader found, in the place of running the notebook.

    nbgrader would run a student's cells as the instructor, in the process that also grades them. Here nothing of a
    student's runs: the results come from `grading/class/ASSIGNMENT/results`, and a submission that has none yet, or has
    changed since, is judged now, in the sandbox. A failure raises, and nbgrader records no score.
    """

    def preprocess(self, nb, resources):
        result = judged(resources["nbgrader"]["student"], resources["nbgrader"]["assignment"])
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
            if is_grade(cell):
                unit = result["units"][cell.metadata.nbgrader.grade_id.removeprefix("test_")]
                points = min(max(float(unit["score"]), 0.0), float(cell.metadata.nbgrader.points))
                cell.outputs = [
                    new_output("stream", name="stdout", text=unit_report(unit) + "\n"),
                    # nbgrader takes a plain float that is the cell's value as partial credit.
                    new_output("execute_result", data={"text/plain": repr(points)}, execution_count=1),
                ]
        return nb, resources


def judged(student: str, assignment: str) -> dict[str, Any]:
    """The result of what `student` has in nbgrader's `submitted` folder for an assignment.

    Raises:
        SandboxError: it had to be judged first, and there is no sandbox.
    """
    from grading.folders import SUBMITTED
    from grading.intake.archives import entries_of
    from grading.intake.take_in import take_in
    from grading.judging.judging_pool import judge_here
    from grading.judging.one_submission import key_of
    from grading.judging.results import Results

    submission = take_in(student, entries_of(SUBMITTED / student / assignment), assignment)
    results = Results(assignment)
    earlier = results.read(student)
    # A run with --unsafe was the instructor's decision; its results count.
    if earlier and earlier.get("key") == key_of(submission, earlier["unsafe"]):
        return earlier
    result = judge_here(submission, False)
    results.write(result)
    return result


_HIDDEN = re.compile(r"### BEGIN HIDDEN TESTS.*?(### END HIDDEN TESTS|\Z)", re.DOTALL)


class BlankHiddenTests(NbGraderPreprocessor):
    """Take the hidden tests out of what goes back to students (github.com/jupyter/nbgrader/issues/917)."""

    def preprocess(self, nb, resources):
        for cell in nb.cells:
            cell.source = _HIDDEN.sub("# The grader's own cases ran here.", cell.source)
        return nb, resources
