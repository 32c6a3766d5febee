"""What the class page says of submissions that look alike."""

from pathlib import Path

from ai_playground.checkout import repo_root
from grading.assignments import released
from grading.report.similar_files import similarities


def test_copies_are_found_and_untouched_files_are_not(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("copy", "original", "untouched")}
    for folder in folders.values():
        folder.mkdir()
        for name, data in released("m13").items():
            (folder / name).write_bytes(data)
    assert similarities(folders, "m13") == []
    solution = (repo_root() / "solutions" / "m13" / "m13b_greedy.py").read_text(encoding="utf-8")
    copied = solution.replace("block_table", "pages") + "\n\ndef unused():\n    pass\n"
    for name in ("m13b_greedy.py", "serve_myllm.py"):  # a whole engine may stand in the second
        (folders["original"] / name).write_text(solution, encoding="utf-8")
        (folders["copy"] / name).write_text(copied, encoding="utf-8")
    found = similarities(folders, "m13")
    assert {pair[1:] for pair in found} == {
        ("m13b_greedy.py", "copy", "original"),
        ("serve_myllm.py", "copy", "original"),
    }
    assert all(share > 0.9 for share, *_ in found), found
