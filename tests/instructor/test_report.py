"""What the class page says of submissions that look alike."""

import ast
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


def disguised(source: str) -> str:
    """The same code as somebody hides it: other names for variables and arguments, functions moved, new comments."""
    tree = ast.parse(source)
    names = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in names:
            node.arg = f"my_{node.arg}"
        elif isinstance(node, ast.Name) and node.id in names:
            node.id = f"my_{node.id}"
        elif isinstance(node, ast.keyword) and node.arg in names:
            node.arg = f"my_{node.arg}"
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    others = [node for node in tree.body if node not in imports]
    tree.body = [*imports, *reversed(others)]
    return "\n".join(f"{line}  # line {number} of mine" for number, line in enumerate(ast.unparse(tree).split("\n")))


def test_a_copy_in_disguise_is_found_and_honest_work_is_not(tmp_path: Path) -> None:
    name = "m13c_serve.py"
    original = (repo_root() / "solutions" / "m13" / name).read_text(encoding="utf-8")
    honest = (repo_root() / "solutions" / "m13" / "m13b_greedy.py").read_text(encoding="utf-8")
    assert "my_" in disguised(original)
    folders = {who: tmp_path / who for who in ("copy", "honest", "original")}
    for who, text in (("copy", disguised(original)), ("honest", honest), ("original", original)):
        folders[who].mkdir()
        (folders[who] / name).write_text(text, encoding="utf-8")
    ((share, *pair),) = similarities(folders, "m13")
    assert pair == [name, "copy", "original"]
    assert share > 0.7
