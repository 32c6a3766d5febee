"""The arrows between the parts: the contracts of `[tool.importlinter]` in pyproject.toml."""

import os

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from ai_playground.checkout import repo_root


def test_the_arrows_go_one_way(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(repo_root())
    monkeypatch.syspath_prepend(os.getcwd())  # `milestones` is a folder of the checkout, not installed
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == EXIT_STATUS_SUCCESS, capsys.readouterr().out
