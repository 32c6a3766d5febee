"""Writes hidden_chapter.json: the grader's own cases for the chapter's graded cells.

    uv run python -m solutions.m13.make_hidden_chapter

The cases are drawn from a fixed seed. Only preemption needs expectations, and they come from the solution in
`mini_vllm.ipynb`; every other judge works them out itself.
"""

import json
import random
from pathlib import Path
from typing import Any

from milestones.s4.answers import load_cells
from milestones.s4.preemption import probe_preempt
from milestones.s4.scheduling import probe_engine

HERE = Path(__file__).parent
Case = dict[str, Any]


def block_manager(rng: random.Random, num_blocks: int, block_size: int, calls: int) -> Case:
    """Admissions, appends and releases at random; about one in five does not fit and must change nothing."""
    capacity = num_blocks * block_size
    lengths: dict[int, int] = {}
    ops: list[list[Any]] = []
    next_id = 3

    def free() -> int:
        return num_blocks - sum(-(-n // block_size) for n in lengths.values())

    while len(ops) < calls:
        kind = rng.choices(("admit", "append_slot", "can_append", "release"), (3, 8, 2, 2))[0]
        if kind == "admit":
            tokens = rng.randint(1, capacity // 2)
            ops.append([kind, next_id, tokens])
            if -(-tokens // block_size) <= free():
                lengths[next_id] = tokens
                next_id += rng.randint(1, 4)
        elif lengths:
            seq_id = rng.choice(sorted(lengths))
            ops.append([kind, seq_id])
            if kind == "append_slot" and (lengths[seq_id] % block_size or free()):
                lengths[seq_id] += 1
            elif kind == "release":
                del lengths[seq_id]
    ops += [["release", seq_id] for seq_id in sorted(lengths)] + [["admit", 0, capacity]]
    return {"label": "a random sequence of calls", "num_blocks": num_blocks, "block_size": block_size, "ops": ops}


def attention(rng: random.Random, heads: list[int], block_size: int, length: int, layer: int) -> Case:
    num_blocks = -(-length // block_size) + 2
    table = rng.sample(range(num_blocks), -(-length // block_size))
    slots = [table[position // block_size] * block_size + position % block_size for position in range(length)]
    return {
        "label": f"{heads[0]} query heads on {heads[1]} KV heads, {length} tokens, blocks of {block_size}",
        "seed": rng.randrange(10**6),
        "heads": heads,
        "num_blocks": num_blocks,
        "block_size": block_size,
        "layer": layer,
        "table": table,
        "slots": slots,
    }


def decode(rng: random.Random, contexts: list[int], **shape: int) -> Case:
    config = {
        "vocab_size": 47, "dim": 16, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "hidden_dim": 20,
        "max_seq_len": 40,
    } | shape  # fmt: skip
    return {
        "label": f"contexts of {contexts} tokens",
        "config": config,
        "seed": rng.randrange(10**6),
        "contexts": [[rng.randrange(config["vocab_size"]) for _ in range(n)] for n in contexts],
        "tokens": [rng.randrange(config["vocab_size"]) for _ in contexts],
    }


def engine(rng: random.Random, solution: dict[str, Any], count: int, max_batch: int, continuous: bool) -> Case:
    """A random workload in the smallest pool in which the solution, which cannot preempt yet, gets through."""
    requests = []
    for _ in range(count):
        stop_after = rng.choice((1, 2, rng.randint(3, 12)))
        requests.append([rng.randint(1, 20), stop_after + rng.randint(0, 5), stop_after])
    for num_blocks in range(max(prompt + max_new for prompt, max_new, _ in requests), 1_000):
        case = {
            "label": f"{count} requests, {max_batch} places, {'continuous' if continuous else 'static'}",
            "requests": requests,
            "num_blocks": num_blocks,
            "max_batch": max_batch,
            "continuous": continuous,
        }
        try:
            probe_engine(solution, case)
        except solution["OutOfBlocks"]:
            continue
        return case
    raise AssertionError("1,000 slots hold every workload drawn here")


def memory(rng: random.Random, block_size: int) -> Case:
    history = []
    for _ in range(rng.randint(4, 9)):
        used = rng.randint(0, 200)
        allocated = used + rng.randint(0, 3 * block_size)
        history.append({"reserved": allocated + rng.randint(0, 300), "allocated": allocated, "used": used})
    return {"label": "another run", "block_size": block_size, "history": history}


def static_steps(rng: random.Random, count: int, max_batch: int) -> Case:
    stop_after = [rng.randint(2, 60) for _ in range(count)]
    batches = [stop_after[start : start + max_batch] for start in range(0, count, max_batch)]
    expected = sum(max(batch) for batch in batches) - len(batches)
    return {
        "label": f"{count} requests in batches of {max_batch}",
        "stop_after": stop_after,
        "max_batch": max_batch,
        "expected": expected,
    }


def preempt(rng: random.Random, solution: dict[str, Any], count: int, rounds: int) -> Case:
    """A pool in which the running requests just fit, so that making room for them preempts."""
    requests = [[rng.randint(1, 6), rng.randint(1, 5)] for _ in range(count + 2)]
    held = sum(prompt + output - 1 for prompt, output in requests[:count])
    acts = [["make_room"], ["decode"]] * rounds + [["finish", 0], ["admit"], ["make_room"], ["decode"]]
    acts += [["make_room"], ["decode"], ["admit"], ["make_room"], ["decode"]]
    case = {
        "label": f"{count} running, 2 waiting",
        "requests": requests,
        "running": count,
        "num_blocks": held + rng.randint(0, count),
        "acts": acts,
    }
    notes = probe_preempt(solution, case)
    case["expected"] = [
        [note["running"], note["waiting"], note["preemptions"]] if act == ["make_room"] else None
        for act, note in zip(acts, notes, strict=True)
    ]
    return case


def all_cases() -> dict[str, list[Case]]:
    rng = random.Random(13)
    solution = load_cells(HERE / "mini_vllm.ipynb")
    return {
        "kv_bytes": [
            {"label": f"{shape}", "shape": shape} for shape in ([3, 5, 7, 1], [61, 8, 96, 2], [4, 4, 16, 4])
        ],
        "block_manager": [
            block_manager(rng, *sizes) for sizes in ((6, 4, 30), (9, 3, 40), (5, 1, 25), (4, 16, 40), (12, 2, 60))
        ],
        "attention": [
            attention(rng, [4, 4, 6], 5, 13, 0),
            attention(rng, [6, 1, 4], 3, 10, 1),
            attention(rng, [12, 3, 8], 16, 40, 0),
            attention(rng, [6, 2, 4], 1, 7, 1),
            attention(rng, [8, 2, 16], 16, 1, 1),
        ],
        "decode": [
            decode(rng, [0, 3]),
            decode(rng, [16, 1, 31, 7, 16]),
            decode(rng, [12, 5], n_kv_heads=4),
            decode(rng, [9, 20, 4], n_kv_heads=1),
        ],
        "engine": [
            engine(rng, solution, *sizes)
            for sizes in ((9, 3, True), (12, 4, True), (7, 7, True), (9, 4, False), (6, 1, True))
        ],
        "memory": [memory(rng, size) for size in (4, 16, 64)],
        "static_steps": [static_steps(rng, *sizes) for sizes in ((24, 8), (10, 3), (5, 8))],
        "preempt": [preempt(rng, solution, *sizes) for sizes in ((3, 1), (5, 2), (6, 3), (2, 2))],
    }  # fmt: skip


def text() -> str:
    """The file's content: one case a line."""
    lines = [
        f" {json.dumps(name)}: [\n  " + ",\n  ".join(json.dumps(case) for case in cases) + "\n ]"
        for name, cases in all_cases().items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    (HERE / "hidden_chapter.json").write_text(text(), encoding="utf-8")
