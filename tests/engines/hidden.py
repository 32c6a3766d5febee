"""Cases that students never see: what only they catch must not be what the visible ones check anyway.

They use the visible checks' probes and judges with other inputs.
"""

from dataclasses import replace

from milestones import m13b, m13c
from milestones.harness import Check
from milestones.seed import ids
from milestones.shapes import SHAPES

_SEED = 90_417
_DEEP = SHAPES["gqa"] | {"n_layers": 8}
_LONG = SHAPES["gqa"] | {"max_seq_len": 160}


def _visible(checks: tuple[Check, ...], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def _greedy(label: str, length: int, n: int, block_size: int, config: dict, seed: int) -> dict:
    return {
        "label": label,
        "function": "greedy_paged",
        "prompt": ids(length, config["vocab_size"], seed),
        "n": n,
        "block_size": block_size,
        "model": {"config": config, "seed": seed},
    }


HIDDEN: tuple[Check, ...] = (
    replace(
        _visible(m13b.CHECKS, "m13b.lengths"),
        cases=(_greedy("a prompt of 120 in blocks of 1", 120, 8, 1, _LONG, _SEED),),
    ),
    replace(
        _visible(m13b.CHECKS, "m13b.shapes"),
        cases=(_greedy("a model of 8 layers", 21, 9, 8, _DEEP, _SEED), *m13b.fresh_cases(_SEED)),
    ),
    replace(
        _visible(m13c.CHECKS, "m13c.edges"),
        cases=(m13c.random_case([6, 5, 4, 7], 32, 30, 12, 4, eos_id=0) | {"observe": None},),
    ),
    replace(
        _visible(m13c.CHECKS, "m13c.roomy_pool"),
        cases=(
            {
                "label": "70 requests",
                "requests": [ids(1 + index % 5, 97, index) for index in range(70)],
                "max_new": 2,
                "block_budget": 40,
                "model": {"config": SHAPES["mha"], "seed": 41},
            },
        ),
    ),
    replace(_visible(m13c.CHECKS, "m13c.tight_pool"), cases=m13c.fresh_cases(_SEED)),
)
