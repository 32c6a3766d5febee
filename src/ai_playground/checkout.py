"""Where the checkout is; importing this loads nothing else."""

from pathlib import Path


def repo_root() -> Path:
    """The checkout that this library is installed from (uv installs it in place)."""
    return Path(__file__).resolve().parents[2]
