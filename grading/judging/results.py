"""Judged results on disk."""

import json
from pathlib import Path
from typing import Any

from ai_playground.workspace import write_json
from grading.folders import CLASS


class Results:
    """The judged results of one assignment on disk, one JSON file a student.

    Only the process that started the run writes them.
    """

    def __init__(self, assignment: str = "m13", folder: Path | None = None) -> None:
        self.folder = folder or CLASS / assignment / "results"

    def path(self, student: str) -> Path:
        return self.folder / f"{student}.json"

    def read(self, student: str) -> dict[str, Any] | None:
        """A student's result; None if there is none that can be read."""
        try:
            return json.loads(self.path(student).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def write(self, result: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.path(result["student"]), result)
