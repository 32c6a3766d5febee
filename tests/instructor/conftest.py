"""Which tests grade a whole class: they take many minutes of both cores, and are run by name.

uv run pytest -m classroom
"""

import pytest

CLASSROOM = {"test_grading", "test_grading_cycle", "test_grading_elsewhere"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in CLASSROOM:
            item.add_marker(pytest.mark.classroom)
