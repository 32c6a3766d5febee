"""What an engine on the bench is: the reference solution with a few texts replaced, or files of its own.

A replaced text must occur exactly once in its module, so that a definition cannot rot without a word when the
solution changes.
"""

from dataclasses import dataclass
from pathlib import Path

from ai_playground.checkout import repo_root

A, B, C, D = "m13a_load_model", "m13b_greedy", "m13c_serve", "m13d_finale"

Patch = tuple[str, str, str]  # module, old text, new text


@dataclass(frozen=True)
class Engine:
    """One engine of the bench.

    Attributes:
        name: unique, a short snake_case phrase.
        idea: which idea it violates, or how it differs.
        patches: replacements in the solution's modules.
        fails: the check that catches it, `milestone.name`; "" for a right engine.
        says: a phrase that the failure message must have: the name of the violated idea.
        hidden: only a hidden case of that check catches it.
        files: a folder or file of `right/` that takes the place of modules.
        student_half: run it where the instructor's half is not there, as a student does.
    """

    name: str
    idea: str
    patches: tuple[Patch, ...] = ()
    fails: str = ""
    says: str = ""
    hidden: bool = False
    files: str = ""
    student_half: bool = False

    def write(self, folder: Path) -> Path:
        """Write the modules into a folder; returns what `Subject.engine` takes.

        Raises:
            ValueError: a text that does not occur exactly once.
        """
        folder.mkdir(parents=True)
        own = Path(__file__).parent / "right" / self.files if self.files else None
        if own is not None and own.is_file():
            target = folder / "serve_myllm.py"
            target.write_text(own.read_text(encoding="utf-8"), encoding="utf-8")
            return target
        for path in sorted((repo_root() / "solutions" / "m13").glob("m13?_*.py")):
            text = path.read_text(encoding="utf-8")
            for module, old, new in self.patches:
                if module == path.stem:
                    if text.count(old) != 1:
                        raise ValueError(f"{self.name}: expected {old!r} once in {path}; found it {text.count(old)} x")
                    text = text.replace(old, new)
            (folder / path.name).write_text(text, encoding="utf-8")
        if own is not None:
            for path in own.glob("*.py"):
                (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        return folder
