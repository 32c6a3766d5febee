"""The subjects that milestones are about, and the parts that each is done in: one line a part, in order."""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checking.subject import Hint, Subject

if TYPE_CHECKING:
    from checking.check import Check

_SHAPES = "two shapes do not fit: print them where they meet, and compare with the docstring"
_BEYOND = (
    "an index beyond the end: of a block table that is too short for the new token (was the manager asked to reserve "
    "it before the pass, does it grow a table that is there already, does its number of blocks round up?), of the pool "
    "(a slot is block * block_size + offset), or of the positions (max_seq_len)"
)

M13 = Subject(
    name="m13",
    modules={
        "load_model": "m13a_load_model",
        "greedy_reference": "m13b_greedy",
        "greedy_paged": "m13b_greedy",
        "serve": "m13c_serve",
        "finale": "m13d_finale",
    },
    student="checkpoints/myllm/src/serve_myllm.py",
    reference="solutions/m13",
    tests="tests/milestones",
    hints=(
        Hint("IndexError", "pop from empty", "no block is free, and none was asked for: look before you take one. If "
             "the pool should have had some: are blocks given back when a request is done, or are more admitted than "
             "fit?"),
        Hint("IndexError", "", _BEYOND),
        Hint("RuntimeError", "out of bounds", _BEYOND),
        Hint("RuntimeError", "shape", _SHAPES),
        Hint("RuntimeError", "size", _SHAPES),
        Hint("RuntimeError", "dtype", "the dtype must be the model's: make the pool and the masks from its weights"),
        Hint("KeyError", "", "a sequence without a block table: given back twice, or used after it was given back?"),
        Hint("TypeError", "'NoneType' object is not callable", "the model has no such part: with tie_embeddings there "
             "is no head; what does the Transformer do then?"),
        Hint("ValueError", "", "the engine refuses what can be served: does it count as max_seq_len and the pool do? "
             "The last token is never cached"),
        Hint("SystemExit", "", "the engine ends Python: a function must return, or raise an error that says why not"),
    ),
    hang="a loop that never ends: does every step make a token, or admit or retire a request? If nobody can get on: "
    "are blocks given back when a request is done, and is a request that never fits refused?",
)  # fmt: skip

P3 = Subject(
    name="p3",
    modules=dict.fromkeys(("generate_full", "generate_cached", "top_p_sample"), "kv_generate"),
    student="projects/p3_kv_serve",
    reference="solutions/p3_kv_serve",
    tests="projects/p3_kv_serve",
)


@dataclass(frozen=True)
class Part:
    """A session or milestone: the module that has its `CHECKS`, and what a student reads first."""

    module: str
    card: str

    def checks(self, name: str) -> tuple["Check", ...]:
        """Its checks; `name` is the part's own, since the sessions of a chapter share a module."""
        return tuple(check for check in importlib.import_module(self.module).CHECKS if check.milestone == name)


SESSIONS = {f"s4_{n}": Part("milestones.s4.cells", f"milestones/s4/s4_{n}.md") for n in (1, 2)}
MILESTONES = {
    name: Part(f"milestones.m13.{name}", f"milestones/m13/{name}.md") for name in ("m13a", "m13b", "m13c", "m13d")
}
PARTS = SESSIONS | MILESTONES | {"p3": Part("milestones.p3.p3", "projects/p3_kv_serve/README.md")}
