"""What checks are about: a student's code and the reference beside it, and what commonly goes wrong in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ai_playground.checkout import repo_root
from checking.student_engine import Engine


class Hint(NamedTuple):
    """The likely cause of an exception of type `error` whose message contains `message`."""

    error: str
    message: str
    cause: str


@dataclass(frozen=True)
class Subject:
    """Where the code stands that a check calls; paths are relative to the repository's root.

    Attributes:
        modules: function -> the module that it stands in.
        student: the student's own code, a folder of these modules or one file with all functions.
        reference: the reference's folder; only in the instructor's half.
        tests: what `uv run pytest` takes to run the checks.
        hints: what an exception most likely means, the first that fits.
        hang: what a loop that never ends most likely means.
    """

    name: str
    modules: dict[str, str]
    student: str
    reference: str
    tests: str
    hints: tuple[Hint, ...] = ()
    hang: str = "a loop that never ends: does every step make a token?"

    def find(self, name: str) -> Path:
        """Where an engine stands: `assignments` is the student's own, `solutions` the reference; or any path.

        Raises:
            ValueError: nothing is there.
        """
        known = {"assignments": repo_root() / self.student, "solutions": repo_root() / self.reference}
        path = known.get(name, Path(name))
        if not path.exists():
            raise ValueError(f"no engine {name!r}: {path} does not exist; known engines are {self.here()}")
        return path

    def here(self) -> list[str]:
        """The engines of this checkout; `solutions` only where the instructor's half is."""
        return ["assignments"] + (["solutions"] if (repo_root() / self.reference).is_dir() else [])

    def engine(self, path: Path) -> Engine:
        """The functions that stand at a path."""
        return Engine(path, self.modules)
