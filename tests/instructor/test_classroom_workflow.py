"""The workflow for GitHub Classroom: valid, and worth what the visible checks are worth."""

import re
import subprocess
import sys

import pytest
import yaml

from ai_playground.checkout import repo_root
from milestones.points import MILESTONES, VISIBLE_SHARE

WORKFLOW = repo_root() / ".github" / "workflows" / "milestones.yml"


def test_the_workflow_follows_githubs_schema() -> None:
    pytest.importorskip("check_jsonschema")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_points_are_those_of_the_visible_checks() -> None:
    (job,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    graders = {step["id"]: step["with"] for step in job["steps"] if "id" in step}
    assert {name: grader["max-score"] for name, grader in graders.items()} == {
        name: points * VISIBLE_SHARE for name, points in MILESTONES.items()
    }
    for name, grader in graders.items():
        assert re.search(r"check_milestone\('(\w+)'\)", grader["command"])[1] == name
