"""nbgrader's settings for this course. nbgrader reads them when it is started in this folder, and only then.

nbgrader generate_assignment m13        the same files as `uv run course release`, and the gradebook's cells
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from nbconvert.preprocessors import ClearMetadataPreprocessor, CSSHTMLHeaderPreprocessor  # noqa: E402
from nbconvert.preprocessors.sanitize import SanitizeHTML  # noqa: E402
from nbgrader.preprocessors import (  # noqa: E402
    AssignLatePenalties,
    CheckCellMetadata,
    GetGrades,
    IgnorePattern,
    LimitOutput,
    SaveAutoGrades,
)

from grading.nbgrader_hooks import BlankHiddenTests, JudgedResults, StripModules  # noqa: E402
from grading.release.stubs import module_stubs  # noqa: E402

c = get_config()  # noqa: F821  (nbgrader defines it)

CLASS = ROOT / "grading" / "class"  # everything that grading writes; git ignores it
(CLASS / "exchange").mkdir(parents=True, exist_ok=True)

c.CourseDirectory.course_id = "mini_vllm"
c.CourseDirectory.root = str(ROOT)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "assignments"
c.CourseDirectory.submitted_directory = "grading/class/submitted"
c.CourseDirectory.autograded_directory = "grading/class/autograded"
c.CourseDirectory.feedback_directory = "grading/class/feedback"
c.CourseDirectory.source_with_tests_directory = "grading/class/source_with_tests"
c.CourseDirectory.solution_directory = "grading/class/solution"
# The long timeout lets several processes write to one gradebook, each waiting for its turn.
c.CourseDirectory.db_url = f"sqlite:///{(CLASS / 'gradebook.db').as_posix()}?timeout=120"
c.Exchange.root = str(CLASS / "exchange")

c.GenerateAssignment.preprocessors.prepend([StripModules])
c.ClearSolutions.code_stub = {
    "python": '# YOUR CODE HERE\nraise NotImplementedError("This part is yours to write: see the text above the cell.")'
}

# nbgrader puts the instructor's files over a submission's. Not so for the modules that students write, or everybody
# would be graded on the solution. The names come from the markers, so that a new module cannot be forgotten.
c.Autograde.exclude_overwriting = {
    folder.name: list(module_stubs(folder)) for folder in (ROOT / "solutions").iterdir() if folder.is_dir()
}

# Nothing of a student's is run by nbgrader: JudgedResults stands where Execute did, and brings what the sandbox gave.
c.Autograde.autograde_preprocessors = [
    JudgedResults,
    IgnorePattern,
    ClearMetadataPreprocessor,
    LimitOutput,
    SaveAutoGrades,
    AssignLatePenalties,
    CheckCellMetadata,
]
# Late days: the share of the points that each day begun takes. The due date comes with `course grade --due`, times and
# extensions from the LMS and the roster.
c.AssignLatePenalties.plugin_class = "grading.late_days.LateDays"
c.LateDays.per_day = 0.0
# Scripts in a student's text would run in formgrader and in the feedback.
c.Autograde.sanitize_preprocessors.append(SanitizeHTML)
c.GenerateFeedback.preprocessors = [GetGrades, BlankHiddenTests, CSSHTMLHeaderPreprocessor]
