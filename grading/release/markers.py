"""nbgrader's markers in `.py` modules: from a solution to the stub that a student receives.

    ### BEGIN SOLUTION            what stands between them in a function becomes one `raise NotImplementedError`;
    ### END SOLUTION              at module or class level (helpers) it becomes one comment
    ### BEGIN HIDDEN TESTS        what stands between them disappears
    ### END HIDDEN TESTS

nbgrader takes any line that holds such words for a marker. Here a marker is a comment on a line of its own, spelt
exactly as above, and everything that resembles one is refused: a misspelt marker would publish a solution.
"""

import ast
import difflib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SOLUTION, HIDDEN_TESTS = "SOLUTION", "HIDDEN TESTS"
MARKERS = {f"### {edge} {kind}": (edge, kind) for kind in (SOLUTION, HIDDEN_TESTS) for edge in ("BEGIN", "END")}
HELPERS_COMMENT = "# Helpers of your own can go here."
LINE_LENGTH = 120

# "MARK SCHEME" is nbgrader's third kind of region; the course has none, so it counts as a mistake.
_MARKER_WORDS = re.compile(r"\b(BEGIN|END)\W*(SOLUTION|HIDDEN\W*TEST|MARK\W*SCHEME)")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class ReleaseError(ValueError):
    """Something that must not be released; the message names the file, the line and what to do."""


@dataclass(frozen=True)
class Region:
    """One marked region: the lines of its two markers (from 1) and their indentation."""

    kind: str
    begin: int
    end: int
    indent: str


def strip(source: str, label: str, card: str, path: str = "<module>") -> str:
    """The stub of a module: solutions and hidden tests out, all else as it stands.

    Args:
        source: the module's text, with markers.
        label: what the stub's message calls the milestone, such as `M13b`.
        card: where the student reads what to write, such as `milestones/m13/m13b.md`.
        path: what error messages call the module.

    Returns:
        The stub's text, with `\\n` line ends. It compiles, and holds no marker.

    Raises:
        ReleaseError: the module or its stub does not parse; a marker is misspelt, nested, crossed, without its
            partner, inside a string or an expression; a region is empty, cuts a statement, holds a function's
            docstring, or spans two blocks.
    """
    source = source.replace("\r\n", "\n")
    tree = _parse(source, path, "the module")
    lines = source.split("\n")
    stub: list[str] = []
    done = 0  # lines of `source` already dealt with
    for region in find_regions(source, path):
        scopes = _scopes_around(tree, region, path)
        stub += lines[done : region.begin - 1]
        done = region.end
        if region.kind == HIDDEN_TESTS:
            if not stub or not stub[-1].strip():  # do not leave the blank lines of both sides
                while done < len(lines) and not lines[done].strip():
                    done += 1
        elif scopes and not isinstance(scopes[-1], ast.ClassDef):
            stub += _raise_lines(region.indent, label, ".".join(scope.name for scope in scopes), card)
        else:
            stub.append(region.indent + HELPERS_COMMENT)
    text = "\n".join(stub + lines[done:]).rstrip() + "\n"
    _parse(text, path, "its stub")
    return text


def find_regions(source: str, path: str = "<module>") -> list[Region]:
    """The marked regions of a module, in order.

    Raises:
        ReleaseError: as `strip` says, for the markers themselves.
    """
    source = source.replace("\r\n", "\n")
    _parse(source, path, "the module")
    comments = {number: (text, alone) for number, text, alone in _comments(source)}
    found = []
    for number, line in enumerate(source.split("\n"), 1):
        text, alone = comments.get(number, ("", False))
        marker = read_marker(text, path, number)
        if not alone and (marker or _MARKER_WORDS.search(line)):
            raise ReleaseError(
                f"{path}:{number}: expected a marker to be a comment on a line of its own, between statements; found "
                f"{line.strip()!r} beside code, inside a string or inside brackets. Move it to a line of its own"
            )
        if marker:
            found.append((number, _indent(line), marker))
    return pair_markers(found, path)


def read_marker(line: str, path: str, number: int, headings: bool = False) -> tuple[str, str] | None:
    """What a line of comment or prose says: (BEGIN or END, the kind), or None if it is not a marker at all.

    Args:
        line: one line.
        path: what an error message calls the file; `number` is its line.
        headings: `###` begins a heading, as in Markdown; otherwise it is kept for markers.

    Raises:
        ReleaseError: the line resembles a marker without being one.
    """
    text = line.strip()
    if text in MARKERS:
        return MARKERS[text]
    words = text.strip("# ").upper()
    alike = difflib.get_close_matches(words, [marker.strip("# ") for marker in MARKERS], n=1, cutoff=0.85)
    loose = text if headings else text.upper()  # prose may well say "in the end, solutions differ"
    if _MARKER_WORDS.search(loose) or alike or (text.startswith("###") and not headings):
        raise ReleaseError(
            f"{path}:{number}: expected one of {', '.join(MARKERS)}; found {text!r}. Spell the marker exactly so, "
            "or word the comment differently if it is none (three # are kept for markers)"
        )
    return None


def pair_markers(found: Iterable[tuple[int, str, tuple[str, str]]], path: str) -> list[Region]:
    """Regions from markers in order, each (line, indentation, (edge, kind)).

    Raises:
        ReleaseError: nested, crossed, unopened, unclosed or unevenly indented markers.
    """
    regions: list[Region] = []
    opened: tuple[int, str, str] | None = None
    for number, indent, (edge, kind) in found:
        if edge == "BEGIN":
            if opened:
                raise ReleaseError(
                    f"{path}:{number}: expected ### END {opened[2]} for the region that begins at line {opened[0]}; "
                    f"found ### BEGIN {kind}. Regions cannot be nested: close the first one before this line"
                )
            opened = (number, indent, kind)
            continue
        if not opened:
            raise ReleaseError(
                f"{path}:{number}: expected ### BEGIN {kind} above; found ### END {kind} alone. Look for a "
                "BEGIN marker that was deleted, or for an END that stands twice"
            )
        if opened[2] != kind:
            raise ReleaseError(
                f"{path}:{number}: expected ### END {opened[2]} for the region that begins at line {opened[0]}; "
                f"found ### END {kind}. Regions cannot cross"
            )
        if opened[1] != indent:
            raise ReleaseError(
                f"{path}:{number}: expected ### END {kind} to be indented like its BEGIN at line {opened[0]} "
                f"({len(opened[1])} columns); found {len(indent)}. Give both the indentation of the code between them"
            )
        regions.append(Region(kind, opened[0], number, indent))
        opened = None
    if opened:
        raise ReleaseError(
            f"{path}:{opened[0]}: expected ### END {opened[2]} further down; found the end of the file. "
            "Close the region"
        )
    return regions


def _parse(source: str, path: str, what: str) -> ast.Module:
    if "\r" in source:
        raise ReleaseError(
            f"{path}:1: expected lines to end in \\n or \\r\\n; found a bare \\r. Save it with Unix line ends"
        )
    try:
        tree = ast.parse(source, path)
        compile(tree, path, "exec", dont_inherit=True)  # finds what the grammar alone allows, such as a stray return
        return tree
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes
        line = getattr(error, "lineno", None) or 1
        raise ReleaseError(
            f"{path}:{line}: expected {what} to be valid Python; found {error}. A region may have taken all of a "
            "block's statements, or one of several that belong together"
        ) from None


def _comments(source: str) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether it has its line to itself and stands between statements) of each comment."""
    depth, last_code_line = 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string, depth == 0 and token.start[0] != last_code_line
        elif token.string.strip():  # not a line end, an indent or a dedent
            last_code_line = token.end[0]
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")


def _scopes_around(tree: ast.Module, region: Region, path: str) -> list[ast.stmt]:
    """The classes and functions around a region, from the outside in, after checking that it is a run of whole
    statements of one block."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    blocks = list(_blocks(tree, region))
    around = []
    if blocks:
        node = blocks[0][0]
        while node is not tree:
            around.insert(0, node)
            node = parents[node]
    where = f"{path}:{region.begin}: the {region.kind} region of lines {region.begin} to {region.end}"
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.stmt) or _within(statement, region):
            continue
        overlaps = _first_line(statement) < region.end and statement.end_lineno > region.begin
        starts_inside = region.begin < statement.lineno < region.end
        if overlaps and (starts_inside or (blocks and statement not in around)):
            raise ReleaseError(
                f"{where} cuts the statement of lines {_first_line(statement)} to {statement.end_lineno} in two "
                f"({ast.unparse(statement).splitlines()[0][:60]!r}). Put whole statements into it: all of a function "
                "with its signature and decorators, or lines of its body alone"
            )
    if not blocks:
        raise ReleaseError(f"{where} holds no statement. Put the answer between the markers, or delete them")
    if len(blocks) > 1:
        raise ReleaseError(
            f"{where} takes statements from two blocks (such as an if and its else). Mark each by itself, or the "
            "whole of the statement that holds both"
        )
    owner, block, taken = blocks[0]
    if taken[0].col_offset != len(region.indent.encode()):
        raise ReleaseError(
            f"{where} is indented by {len(region.indent)} columns, but its code by {taken[0].col_offset}. "
            "Indent the markers like the code between them"
        )
    if isinstance(owner, (*_SCOPES, ast.Module)) and taken[0] is block[0] and _is_docstring(block[0]):
        raise ReleaseError(
            f"{where} holds a docstring, which tells the student what to write. Begin the region below it"
        )
    return [node for node in around if isinstance(node, _SCOPES)]


def _blocks(owner: ast.AST, region: Region) -> Iterator[tuple[ast.AST, list[ast.stmt], list[ast.stmt]]]:
    """(owner, block, the statements of it that are in the region), for each block that the region takes some from."""
    for _, block in ast.iter_fields(owner):
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            taken = [statement for statement in block if _within(statement, region)]
            if taken:
                yield owner, block, taken
    for child in ast.iter_child_nodes(owner):
        if not (isinstance(child, ast.stmt) and _within(child, region)):
            yield from _blocks(child, region)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _within(statement: ast.stmt, region: Region) -> bool:
    return region.begin < _first_line(statement) and statement.end_lineno < region.end


def _is_docstring(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _raise_lines(indent: str, label: str, function: str, card: str) -> list[str]:
    message = f'"{label}: {function} is not written yet. Card: {card}"'
    line = f"{indent}raise NotImplementedError({message})"
    if len(line) <= LINE_LENGTH:
        return [line]
    return [f"{indent}raise NotImplementedError(", f"{indent}    {message}", f"{indent})"]
