"""Stubs from solutions: what stays, what goes, and what is refused."""

import pytest

from grading.release.markers import ReleaseError, strip

MODULE = '''\
"""Greedy decoding."""

import torch
from torch import Tensor

### BEGIN SOLUTION
CACHE: dict[int, Tensor] = {}


def helper(x: Tensor) -> Tensor:
    return x + 1
### END SOLUTION


class BlockManager:
    """Owns the pool."""

    ### BEGIN SOLUTION
    spare = 3
    ### END SOLUTION

    def release(self, owner: int) -> None:
        """Give all blocks of `owner` back."""
        # The table is emptied too.
        ### BEGIN SOLUTION
        for block in self.tables.pop(owner):
            if block:
                self.free.append(block)
        ### END SOLUTION

    @property
    def size(self) -> int:
        return 16


async def greedy_paged(prompt_ids: list[int], n: int) -> list[int]:
    """`n` new tokens."""
    out: list[int] = []
    with torch.no_grad():
        for _ in range(n):
            ### BEGIN SOLUTION
            try:
                out.append(int(helper(torch.tensor(prompt_ids)).argmax()))
            except RuntimeError:
                raise
            ### END SOLUTION
    return out


### BEGIN HIDDEN TESTS
assert CACHE is not None
### END HIDDEN TESTS
'''

STUB = '''\
"""Greedy decoding."""

import torch
from torch import Tensor

# Helpers of your own can go here.


class BlockManager:
    """Owns the pool."""

    # Helpers of your own can go here.

    def release(self, owner: int) -> None:
        """Give all blocks of `owner` back."""
        # The table is emptied too.
        raise NotImplementedError("M13b: BlockManager.release is not written yet. Card: milestones/m13/m13b.md")

    @property
    def size(self) -> int:
        return 16


async def greedy_paged(prompt_ids: list[int], n: int) -> list[int]:
    """`n` new tokens."""
    out: list[int] = []
    with torch.no_grad():
        for _ in range(n):
            raise NotImplementedError("M13b: greedy_paged is not written yet. Card: milestones/m13/m13b.md")
    return out
'''


def stub_of(source: str) -> str:
    return strip(source, "M13b", "milestones/m13/m13b.md", "m13b_greedy.py")


def test_a_stub_keeps_all_but_the_regions() -> None:
    assert stub_of(MODULE) == STUB


def test_windows_line_ends_give_the_same_stub() -> None:
    assert stub_of(MODULE.replace("\n", "\r\n")) == STUB


def test_a_module_without_regions_stays_as_it_is() -> None:
    assert stub_of(STUB) == STUB


def test_a_nested_function_is_named_with_those_around_it_and_long_lines_are_broken() -> None:
    source = (
        "class BlockManager:\n    def preempt(self):\n        def youngest():\n"
        "            ### BEGIN SOLUTION\n            return 1\n            ### END SOLUTION\n"
        "        return youngest()\n"
    )
    stub = stub_of(source)
    assert '"M13b: BlockManager.preempt.youngest is not written yet.' in stub
    assert max(map(len, stub.splitlines())) <= 120
    with pytest.raises(NotImplementedError, match=r"youngest is not written yet. Card: milestones/m13/m13b\.md"):
        namespace: dict = {}
        exec(stub, namespace)
        namespace["BlockManager"]().preempt()


BEGIN, END, HIDDEN, HIDDEN_END = (
    "    ### BEGIN SOLUTION",
    "    ### END SOLUTION",
    "    ### BEGIN HIDDEN TESTS",
    "    ### END HIDDEN TESTS",
)


def function(*body: str) -> str:
    return "\n".join(["def f(x):", '    """Docstring."""', *body, ""])


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        (function(BEGIN, "    y = 1", BEGIN, "    return y", END), 5, "cannot be nested"),
        (function(BEGIN, "    y = 1", HIDDEN, "    return y", HIDDEN_END, END), 5, "cannot be nested"),
        (function(BEGIN, "    y = 1", HIDDEN_END, "    return y"), 5, "cannot cross"),
        (function(BEGIN, "    return x"), 3, "Close the region"),
        (function("    return x", END), 4, "found ### END SOLUTION alone"),
        (function("    y = 1", "    ###BEGIN SOLUTION", "    return y", "    ###END SOLUTION"), 4, "Spell the marker"),
        (function("    ### begin solution", "    return x", "    ### end solution"), 3, "Spell the marker"),
        (function("    # BEGIN SOLUTION", "    return x", "    # END SOLUTION"), 3, "Spell the marker"),
        (function("    ### BEGN SOLUTION", "    return x", "    ### EDN SOLUTION"), 3, "Spell the marker"),
        (function("    # BEGIN SOLUTON", "    return x", "    # END SOLUTON"), 3, "Spell the marker"),
        (function("    ### BEGIN  SOLUTION", "    return x", END), 3, "Spell the marker"),
        (function("    ### BEGIN SOLUTION: greedy", "    return x", END), 3, "Spell the marker"),
        (function("    ### START OF THE ANSWER", "    return x"), 3, "three # are kept"),
        (function("    ### BEGIN HIDDEN TEST", "    return x", HIDDEN_END), 3, "Spell the marker"),
        (function("    y = x  ### BEGIN SOLUTION", "    return y", END), 3, "line of its own"),
        (function('    y = """', BEGIN, '    """', "    return y", END), 4, "line of its own"),
        (function("    y = [", BEGIN, "        x,", END, "    ]", "    return y"), 4, "line of its own"),
        (function(BEGIN, "    return x", "### END SOLUTION"), 5, "indented like its BEGIN"),
        (function("    if x:", BEGIN, "        return x", END, "    return 0"), 4, "Indent the markers"),
        (function(BEGIN, END, "    return x"), 3, "holds no statement"),
        (function(BEGIN, "    if x:", END, "        return x"), 3, "cuts the statement"),
        (function(BEGIN, "    y = [", "        x", END, "    ]"), 6, "line of its own"),
        (
            function("    if x:", "        ### BEGIN SOLUTION", "        y = 1", "    else:", "        y = 2")
            + "        ### END SOLUTION\n",
            4,
            "two blocks",
        ),
        ('def f(x):\n    ### BEGIN SOLUTION\n    """Doc."""\n    return x\n    ### END SOLUTION\n', 2, "docstring"),
        ("def f(\n    ### BEGIN SOLUTION\n    x,\n):\n    return x\n    ### END SOLUTION\n", 2, "line of its own"),
        ("@property\n### BEGIN SOLUTION\ndef f(x):\n    return x\n### END SOLUTION\n", 2, "cuts the statement"),
        ("### BEGIN SOLUTION\ndef f(x):\n### END SOLUTION\n    return x\n", 1, "cuts the statement"),
        ("class A:\n    ### BEGIN SOLUTION\n    x = 1\n    ### END SOLUTION\n", 2, "its stub to be valid Python"),
        (function("    if x:", *("    " + line for line in (HIDDEN, "    y = 1", HIDDEN_END))), 3, "stub"),
        ("def f(x:\n    return x\n", 1, "the module to be valid Python"),
        ("x = 1\nreturn x\n", 2, "the module to be valid Python"),
    ],
)  # fmt: skip
def test_what_would_leak_or_not_compile_is_refused_with_its_line(source: str, line: int, message: str) -> None:
    with pytest.raises(ReleaseError) as error:
        stub_of(source)
    assert message in str(error.value)
    assert str(error.value).startswith(f"m13b_greedy.py:{line}:"), str(error.value)


def test_regions_in_handlers_and_match_cases() -> None:
    source = function(
        "    try:",
        "        match x:",
        "            case 1:",
        "                ### BEGIN SOLUTION",
        "                try:",
        "                    return 1",
        "                except ValueError:",
        "                    pass",
        "                finally:",
        "                    x = 0",
        "                ### END SOLUTION",
        "    except ValueError:",
        "        ### BEGIN SOLUTION",
        "        return 2",
        "        ### END SOLUTION",
    )
    stub = stub_of(source)
    assert stub.count("M13b: f is not written yet") == 2
    assert "return" not in stub
