"""The grader's own cases for M13a-d: other prompts, other models and shapes, other pools. Data only.

The probes and judges are the public ones of `milestones/`. `HIDDEN` has the cases by the name of the check whose
probe and judge they take.
"""

from typing import Any

from ai_playground.workspace import default_workspace, load_tokenizer
from checking.shapes import SHAPES
from milestones.m13.m13b import BOTH, ids
from milestones.m13.m13c import alike

Case = dict[str, Any]

_BASE = {"rope_theta": 10_000.0, "norm_eps": 1e-5}
ODD: dict[str, Any] = _BASE | {
    "vocab_size": 131, "dim": 40, "n_layers": 2, "n_heads": 5, "n_kv_heads": 1, "head_dim": 8, "hidden_dim": 72,
    "max_seq_len": 112, "rope_theta": 1_500.0,
}  # fmt: skip
DEEP: dict[str, Any] = _BASE | {
    "vocab_size": 89, "dim": 32, "n_layers": 5, "n_heads": 8, "n_kv_heads": 4, "head_dim": 6, "hidden_dim": 56,
    "max_seq_len": 144, "tie_embeddings": True,
}  # fmt: skip
WIDE: dict[str, Any] = _BASE | {
    "vocab_size": 173, "dim": 64, "n_layers": 3, "n_heads": 2, "n_kv_heads": 2, "head_dim": 20, "hidden_dim": 96,
    "max_seq_len": 100, "norm_eps": 1e-3,
}  # fmt: skip
SIX_TO_TWO: dict[str, Any] = _BASE | {
    "vocab_size": 113, "dim": 48, "n_layers": 3, "n_heads": 6, "n_kv_heads": 2, "head_dim": 10, "hidden_dim": 64,
    "max_seq_len": 128, "rope_theta": 800.0,
}  # fmt: skip
OTHERS = {"odd": ODD, "deep": DEEP, "wide": WIDE, "six_to_two": SIX_TO_TWO}


def _model(name: str, seed: int) -> dict[str, Any]:
    return {"config": OTHERS[name], "seed": seed}


def _prompts(lengths: list[int], name: str, seed: int) -> list[list[int]]:
    return [ids(length, OTHERS[name]["vocab_size"], 7_000 + seed * 100 + i) for i, length in enumerate(lengths)]


_SILENT = 40  # tokens that the model never writes, so that a prompt which begins with one is seen whenever it is read


def _seen_prompts(lengths: list[int], name: str, seed: int) -> list[list[int]]:
    vocab_size = OTHERS[name]["vocab_size"]
    return [
        [vocab_size - 1 - i, *ids(length - 1, vocab_size - _SILENT, 7_000 + seed * 100 + i)]
        for i, length in enumerate(lengths)
    ]


_TOKENS = [[7, 7, 0, 42, 13, 88, 1], [80, 2, 61, 5, 5, 19, 30]]

_LOADING = {
    "m13a.shipped_model": (
        {"label": "shipped, other tokens", "workspace": str(default_workspace()), "tokens": [ids(40, 256, 71)]},
    ),
    "m13a.other_shapes": tuple(
        {"label": f"a random {name} model", "model": _model(name, 21), "tokens": _TOKENS} for name in OTHERS
    ),
    "m13a.damaged_checkpoint": tuple(
        {"label": str(damage), "model": _model(name, 22), "damage": damage}
        for name, damage in (
            ("odd", {"drop": "layers.0.ffn_norm.weight"}),
            ("six_to_two", {"drop": "layers.2.attn.wo.weight"}),
            ("deep", {"add": "layers.9.ffn.gate.weight"}),
            ("wide", {"cut": "layers.2.attn.wv.weight"}),
            ("wide", {"cut": "embedding.weight"}),
        )
    ),
}

_GREEDY = {
    "m13b.shipped_prompts": tuple(
        {"label": f"{function}: {text}", "function": function, "prompt": text, "n": 33}
        for text in ("Once there was a little bear", "Long ago, in a house by the sea, there lived a girl")
        for function in BOTH
    ),
    "m13b.lengths": tuple(
        {
            "label": f"{function}, {length} + {n}",
            "function": function,
            "prompt": ids(length, OTHERS[name]["vocab_size"], 300 + length),
            "n": n,
            "model": _model(name, 23) | {"ties": True},
        }
        for name, length, n in (
            ("six_to_two", 2, 30), ("six_to_two", 47, 18), ("six_to_two", 48, 17), ("six_to_two", 49, 16),
            ("six_to_two", 63, 2), ("odd", 1, 111), ("odd", 111, 1), ("odd", 33, 1),
            ("odd", 80, 0),
        )
        for function in BOTH
    ),
    "m13b.shapes": (*(  # the last one for long block tables
        {
            "label": f"greedy_paged, {name}, blocks of {block_size}",
            "function": "greedy_paged",
            "prompt": ids(9 + block_size % 7, OTHERS[name]["vocab_size"], 400 + block_size),
            "n": 11,
            "block_size": block_size,
            "model": _model(name, 24),
        }
        for name in OTHERS
        for block_size in (2, 3, 8, 64)
    ),
        {
            "label": "greedy_paged, blocks of 1, 70 + 9",
            "function": "greedy_paged",
            "prompt": ids(70, 113, 450),
            "n": 9,
            "block_size": 1,
            "model": _model("six_to_two", 24),
        },
    ),
    "m13b.cached_work": tuple(
        {
            "label": f"greedy_paged, {name}, {length} + {n}",
            "function": "greedy_paged",
            "prompt": ids(length, OTHERS[name]["vocab_size"], 500 + length),
            "n": n,
            "model": _model(name, 25),
        }
        for name, length, n in (("wide", 41, 15), ("odd", 5, 24))
    ),
    "m13b.paged_memory": tuple(
        {
            "label": f"greedy_paged, blocks of {block_size}",
            "function": "greedy_paged",
            "prompt": ids(length, 173, 550 + length),
            "n": n,
            "block_size": block_size,
            "model": {"config": WIDE | {"n_layers": 1, "n_heads": 6, "n_kv_heads": 6, "head_dim": 40}, "seed": 62},
        }
        for length, n, block_size in ((2, 5, 50), (30, 33, 12))
    ),
    "m13b.bfloat16": (
        {
            "label": "greedy_paged, bfloat16",
            "function": "greedy_paged",
            "prompt": ids(14, 113, 560),
            "n": 19,
            "block_size": 3,
            "model": _model("six_to_two", 27) | {"dtype": "bfloat16"},
            "tolerance": 0.1,
        },
    ),
    "m13b.refusals": tuple(
        {"label": label, "function": function, "names": names, "model": _model("wide", 26)} | call
        for function in BOTH
        for label, names, call in (
            ("empty", [], {"prompt": [], "n": 1}),
            ("token 999", ["999"], {"prompt": [1, 2, 999, 3], "n": 1}),
            ("token -7", ["-7"], {"prompt": [-7], "n": 2}),
            ("60 + 41 > 100", [["60", "101"], "100"], {"prompt": ids(60, 173, 600), "n": 41}),
        )
    ),
}  # fmt: skip


def _serve(name: str, lengths: list[int], seed: int, same: dict[int, int] | None = None, **case: Any) -> Case:
    """An observed case, but for a tied head, which cannot keep tokens silent; `same` are pairs that begin alike."""
    label, model = f"{name}, {len(lengths)} requests, {case}", _model(name, 30 + seed)
    if OTHERS[name].get("tie_embeddings"):
        return {"label": label, "requests": alike(_prompts(lengths, name, seed), same or {}), "model": model, **case}
    requests = alike(_seen_prompts(lengths, name, seed), same or {})
    return {
        "label": label,
        "requests": requests,
        "model": model | {"silent": _SILENT, "ties": True},
        "observe": "tokens",
        **case,
    }


_SERVING = {
    "m13c.sixteen_requests": (
        {
            "label": "16 other prompts",
            "requests": [
                f"Once there was a {animal} who lived {place}" for animal in ("bear", "small fox", "dog", "cat")
                         for place in ("in a house", "by the sea", "near the old wood", "in a red boat on a river")],
            "max_new": 23,
            "min_preemptions": 1,
        },
    ),
    "m13c.roomy_pool": (
        _serve("six_to_two", [3, 40, 1, 8, 16, 24, 5, 32, 2], 1, {8: 3, 4: 7}, max_new=25, block_budget=400,
               block_size=8, max_batch=4, no_preemption=True),
        _serve("deep", [9, 2, 33, 17, 4, 64, 1, 1, 30, 12], 2, max_new=21, block_budget=900, block_size=2, max_batch=7,
               no_preemption=True),
        _serve("deep", [1 + i % 6 for i in range(40)], 17, {13: 7, 20: 15}, max_new=3, block_budget=50, block_size=4),
        _serve("odd", [50, 1, 50, 1, 50], 3, max_new=40, block_budget=300, block_size=32, max_batch=2,
               no_preemption=True),
    ),
    "m13c.tight_pool": (
        _serve("six_to_two", [10, 10, 10], 4, max_new=50, block_budget=13, block_size=5, min_preemptions=3),
        _serve("six_to_two", [3, 17, 9, 28, 6, 11, 2, 20, 14], 5, {2: 1, 8: 3}, max_new=27, block_budget=9,
               block_size=8, min_preemptions=5),
        _serve("odd", [6, 6, 6, 6, 6, 6], 6, max_new=31, block_budget=37, block_size=1, min_preemptions=5),
        _serve("deep", [31, 32, 33, 30], 7, max_new=35, block_budget=5, block_size=16, min_preemptions=1),
        _serve("wide", [2, 2, 2, 2, 2, 2, 2, 2], 8, max_new=14, block_budget=8, block_size=2, min_preemptions=4),
        _serve("deep", [12, 5, 40, 3], 9, max_new=2, block_budget=11, block_size=4),
    ),
    "m13c.edges": (
        _serve("wide", [4, 9], 10, max_new=0, block_budget=3),
        _serve("wide", [32, 31, 33], 11, max_new=1, block_budget=3, block_size=16),
        _serve("odd", [25, 25], 12, max_new=8, block_budget=1, block_size=32, no_preemption=True),
        _serve("odd", [92, 92, 92], 13, max_new=20, block_budget=14, block_size=8),
        _serve("wide", [5, 11, 3, 8], 26, {2: 0}, max_new=40, block_budget=30, block_size=8, eos_id=0),
        _serve("deep", [20], 14, max_new=124, block_budget=9, block_size=16, no_preemption=True),
    ),
    "m13c.block_budget": (
        {
            "label": "9 requests, 12 blocks of 8",
            "requests": [[160 + i, *ids(9, 120, 950 + i)] for i in range(9)],
            "max_new": 38,
            "block_budget": 12,
            "block_size": 8,
            "model": {"config": WIDE | {"n_layers": 1, "n_heads": 6, "n_kv_heads": 6, "head_dim": 40}, "seed": 61,
                      "silent": _SILENT},
            "min_preemptions": 1,
            "observe": "memory",
        },
    ),
    "m13c.continuous": (
        _serve("six_to_two", [4 + i % 9 for i in range(15)], 15, max_new=32, block_budget=120, block_size=8,
               max_batch=5, eos_id=67, no_preemption=True),
    ),
    "m13c.first_come_first_served": tuple(
        {
            "label": f"first token its own, {budget} blocks of {block_size}",
            "requests": [[150 + i, *ids(length, 120, 800 + i)] for i, length in enumerate(lengths)],
            "observe": "tokens",
            "max_new": 12,
            "block_budget": budget,
            "block_size": block_size,
            "max_batch": batch,
            "model": _model("wide", 50) | {"silent": _SILENT},
        }
        for lengths, budget, block_size, batch in (
            ([3, 40, 3, 3, 40, 3, 3], 8, 8, 3), ([1, 1, 25, 1, 25, 1, 1, 1], 15, 3, 4),
        )
    ),
    "m13c.refusals": tuple(
        {"label": label, "names": names, "model": _model("wide", 51), "max_new": 6, "block_budget": 30} | call
        for label, names, call in (
            ("request 3 is empty", ["3"], {"requests": [[5], [4], [6], []]}),
            ("request 0 has token 500", ["0", "500"], {"requests": [[500], [6]]}),
            ("request 2 is too long", ["2", ["98", "104"], "100"], {"requests": [[5], [5], ids(98, 173, 900)]}),
            ("request 1 can never fit", ["1", ["4", "32"]], {"requests": [[5], ids(30, 173, 901)], "block_budget": 4,
                                                    "block_size": 8}),
        )
    ),
}  # fmt: skip


def _finale() -> Case:
    config = SHAPES["mha"] | {
        "n_layers": 1,  # sixteen long texts: depth is tried by the other cases
        "vocab_size": load_tokenizer(default_workspace()).vocab_size,
        "max_seq_len": 512,
        "eos_id": 0,
    }
    model = {"config": config, "seed": 60}
    return {"label": "another model", "workspace": str(default_workspace()), "model": model, "observe": "tokens"}


HIDDEN: dict[str, tuple[Case, ...]] = {**_LOADING, **_GREEDY, **_SERVING, "m13d.finale": (_finale(),)}
