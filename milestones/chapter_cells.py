"""The chapter's graded cells, one section after the other: the probe of each, and its judge.

Each stands alone. Where a cell builds on an earlier one, its probe puts a stand-in under the earlier one's name
while it calls the student's code: a pool with one block a sequence in the place of the block table, a ledger that
only counts in the place of the block manager, a sum in the place of the model. So a mistake costs the cell that it
is in and no other, and nothing here could be handed in as an answer.

A probe gets the notebook's names (a dict), or an engine whose `path` is a notebook: then the answer cells alone
are run, see `load_cells`. Nothing else of a student's notebook is ever trusted.
"""

import contextlib
import hashlib
import heapq
import json
import linecache
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ai_playground import chapter
from ai_playground.chapter import TOY, KVPool, OutOfBlocks, Request, chapter_workload, prefill
from ai_playground.models import Transformer, TransformerConfig
from ai_playground.models.layers import apply_rope, precompute_rope_frequencies
from milestones.harness import CheckFailed
from milestones.reference import random_model

Case = dict[str, Any]
TOLERANCE = 1e-4  # fp32: far above what the order of additions changes, far below what a wrong idea changes

# The grade_ids of the answer cells, in the notebook's order.
ANSWER_CELLS = (
    "kv_bytes",
    "block_manager",
    "q_fragmentation",
    "q_paging",
    "attention",
    "decode",
    "q_phases",
    "q_proof",
    "engine",
    "memory_prediction",
    "memory",
    "static_steps",
    "preempt",
    "q_preemption",
)


# What a probe is given ------------------------------------------------------------------------------------------


def given_names() -> dict[str, Any]:
    """What the notebook's own cells have defined by the time its answer cells run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Transformer(TOY).eval()
    names = {name: getattr(chapter, name) for name in chapter.__all__}
    names |= {"torch": torch, "F": F, "deque": deque, "Transformer": Transformer, "model": model}
    # Later cells name these two in a signature or as a base class: a cell that does not run must not cost them.
    return names | {"BlockManager": object, "Engine": object}


def load_cells(notebook: Path) -> dict[str, Any]:
    """Run the answer cells of a notebook, and nothing else of it, one after the other in a fresh namespace.

    A cell that raises costs the names that it would have defined and leaves the others alone; what it raised is
    kept under `"__errors__"`, by `grade_id`.
    """
    sources: dict[str, str] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        meta = cell.get("metadata", {}).get("nbgrader", {})
        if cell.get("cell_type") == "code" and meta.get("solution"):
            sources.setdefault(meta.get("grade_id"), "".join(cell["source"]))
    names = given_names() | {"__name__": "__main__", "__errors__": {}}
    for cell in ANSWER_CELLS:
        source = sources.get(cell, f"raise NameError('the notebook has no cell {cell}')")
        file = f"<cell {cell}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        try:
            exec(compile(source, file, "exec"), names)
        except Exception as error:
            names["__errors__"][cell] = error
    return names


@lru_cache(maxsize=1)
def _cells_at(path: Path, _modified: int) -> dict[str, Any]:
    return load_cells(path)


def _names(engine: Any, *cells: str) -> dict[str, Any]:
    """The namespace to probe; raises what the answer cells themselves raised."""
    names = engine if isinstance(engine, dict) else _cells_at(engine.path, engine.path.stat().st_mtime_ns)
    for cell in cells:
        if cell in names.get("__errors__", {}):
            raise names["__errors__"][cell]
    return names


@contextlib.contextmanager
def stand_ins(names: dict[str, Any], **replaced: Any) -> Iterator[None]:
    """Put other things under some global names of the student's code for a while."""
    missing = object()
    before = {name: names.get(name, missing) for name in replaced}
    names.update(replaced)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is missing:
                del names[name]
            else:
                names[name] = value


def _numbers(value: Any) -> Any:
    """A tensor as JSON: its shape and its values in float64; anything else as a note of what it is."""
    if not isinstance(value, Tensor):
        return {"not_a_tensor": type(value).__name__}
    return {"shape": list(value.shape), "values": value.detach().double().flatten().tolist()}


def _number(value: Any) -> Any:
    """A number of NumPy's or PyTorch's as the plain one that it is; anything else as it came."""
    return value.item() if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.ndim == 0) else value


def _tensor(evidence: Any, shape: list[int], what: str, cause: str = "") -> Tensor:
    """The tensor that a probe sent.

    Raises:
        CheckFailed: it is none, has another shape, or holds a number that is not finite.
    """
    expected = f"{what} of shape {tuple(shape)}"
    if not isinstance(evidence, dict) or "values" not in evidence:
        kind = evidence.get("not_a_tensor", "something else") if isinstance(evidence, dict) else "something else"
        raise CheckFailed(expected, f"a {kind}", "the function returns something else than the tensor it computes")
    if evidence["shape"] != shape:
        raise CheckFailed(expected, f"shape {tuple(evidence['shape'])}", cause)
    tensor = torch.tensor(evidence["values"], dtype=torch.float64).reshape(shape)
    if not tensor.isfinite().all():
        raise CheckFailed(expected, "values that are not finite (inf or nan)", "a division by 0, or exp of a mask")
    return tensor


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a.double() - b.double()).abs().max() <= TOLERANCE)


# Section 1: the size of the cache -------------------------------------------------------------------------------


def probe_kv_bytes(engine: Any, case: Case) -> Any:
    return _names(engine, "kv_bytes")["kv_bytes_per_token"](*case["shape"])


def judge_kv_bytes(case: Case, found: Any) -> None:
    layers, kv_heads, head_dim, size = case["shape"]
    expected = 2 * layers * kv_heads * head_dim * size
    if type(found) is int and found == expected:
        return
    cause = ""
    if found == expected / 2:
        cause = "the cache keeps a key and a value: two vectors a head, not one"
    elif found == expected:
        cause = "bytes are whole numbers: return an int"
    raise CheckFailed(f"{expected:,} bytes (int)", f"{found!r}", cause)


# Section 2: the block manager -----------------------------------------------------------------------------------


def probe_block_manager(engine: Any, case: Case) -> Any:
    """Play the case's operations and note, after each, what the manager says."""
    manager = _names(engine, "block_manager")["BlockManager"](case["num_blocks"], case["block_size"])
    notes = []
    for name, *arguments in case["ops"]:
        note: dict[str, Any] = {}
        notes.append(note)
        try:
            result = getattr(manager, name)(*arguments)
            note["result"] = bool(result) if name.startswith("can_") else result
        except OutOfBlocks:
            note["result"] = "OutOfBlocks"
        except (KeyError, IndexError) as error:  # most likely what an earlier mistake, seen by the judge, leads to
            note["error"] = f"{type(error).__name__}: {error}"
            break
        note["tables"] = [[seq_id, list(table)] for seq_id, table in sorted(manager.tables.items())]
        note["slots"] = [
            [manager.slot(seq_id, position) for position in range(manager.lengths.get(seq_id, 0))]
            for seq_id, _ in note["tables"]
        ]
        note["lengths"] = [[seq_id, length] for seq_id, length in sorted(manager.lengths.items())]
        note["admits"] = [bool(manager.can_admit(n)) for n in range(case["num_blocks"] * case["block_size"] + 2)]
        note["allocated"], note["used"] = manager.allocated_tokens, manager.used_tokens
    return notes


def judge_block_manager(case: Case, notes: Any) -> None:
    """Replay the operations in token counts, and hold every table and answer against them."""
    num_blocks, size = case["num_blocks"], case["block_size"]
    lengths: dict[int, int] = {}
    tables: dict[int, list[int]] = {}  # as the student's stood after the operation before
    done: list[str] = []

    def blocks(tokens: int) -> int:
        return -(-tokens // size)

    for (name, *arguments), note in zip(case["ops"], notes, strict=False):  # the notes end at an exception
        done.append(f"{name}({', '.join(map(str, arguments))})")
        after = f"after {', '.join(done[-4:])}" + (f" ({len(done)} calls in all)" if len(done) > 4 else "")
        if "error" in note:
            raise CheckFailed(f"{done[-1]} to work {after}", note["error"], "is every table kept up to date?")
        free = num_blocks - sum(map(blocks, lengths.values()))
        expected: Any = None
        if name == "admit":
            seq_id, tokens = arguments
            if blocks(tokens) > free:
                expected = "OutOfBlocks"
            else:
                lengths[seq_id] = tokens
        elif name == "append_slot":
            if lengths[arguments[0]] % size == 0 and free == 0:
                expected = "OutOfBlocks"
            else:
                lengths[arguments[0]] += 1
        elif name == "can_append":
            expected = lengths[arguments[0]] % size != 0 or free > 0
            if note["result"] is not expected:
                at = lengths[arguments[0]]
                raise CheckFailed(
                    f"can_append to be {expected} {after}: {at} tokens in blocks of {size}, {free} blocks free",
                    repr(note["result"]),
                    "the block boundary: a new block is needed when the last one is full, and only then",
                )
        elif name == "release":
            del lengths[arguments[0]]
        if (note["result"] == "OutOfBlocks") != (expected == "OutOfBlocks"):
            raise CheckFailed(
                f"{done[-1]} to {'raise OutOfBlocks' if expected == 'OutOfBlocks' else 'succeed'}, "
                f"with {free} blocks free",
                "OutOfBlocks" if note["result"] == "OutOfBlocks" else "no exception",
                "count the blocks that this call needs: none while the last block has a free slot (block boundary)",
            )

        found_lengths, found = dict(map(tuple, note["lengths"])), dict(map(tuple, note["tables"]))
        if found_lengths != lengths:
            raise CheckFailed(f"lengths {lengths} {after}", f"{found_lengths}", "a failed call must change nothing")
        if set(found) != set(lengths):
            raise CheckFailed(f"tables for {sorted(lengths)} {after}", f"tables for {sorted(found)}")
        for seq_id, tokens in lengths.items():
            if len(found[seq_id]) != blocks(tokens):
                raise CheckFailed(
                    f"{blocks(tokens)} blocks of {size} for the {tokens} tokens of sequence {seq_id} {after}",
                    f"{len(found[seq_id])}: its table is {found[seq_id]}",
                    "off by one at a block boundary: a block is taken when a token does not fit, not earlier or later",
                )
        owned = [block for table in found.values() for block in table]
        if len(set(owned)) != len(owned) or any(type(block) is not int for block in owned):
            raise CheckFailed(
                f"every block in one table at most {after}", f"{found}", "a block was given to two owners"
            )
        if any(not 0 <= block < num_blocks for block in owned):
            raise CheckFailed(f"blocks between 0 and {num_blocks - 1} {after}", f"{found}")
        for seq_id, table in tables.items():
            if seq_id in found and found[seq_id][: len(table)] != table:
                raise CheckFailed(
                    f"the table of sequence {seq_id} to grow at its end {after}",
                    f"{table} became {found[seq_id]}",
                    "tokens already written stay where they are: never move or reorder a sequence's blocks",
                )
        tables = found

        left = num_blocks - len(owned)
        for tokens, admits in enumerate(note["admits"]):
            if admits == (blocks(tokens) <= left):
                continue
            fits = note["admits"].index(False) - 1 if False in note["admits"] else 0
            if fits % size:
                cause = "off by one at a block boundary: how many whole blocks hold this many tokens?"
            elif admits:
                cause = "a block with an owner still counts as free: it is in a table or in `free`, never in both"
            elif name == "release":
                cause = "release did not give back every block: also the last one, which may be half full, returns"
            else:
                cause = "a block has got lost: it is in a table or in `free`, never in neither"
            raise CheckFailed(
                f"can_admit({tokens}) to be {not admits} {after}: {left} of {num_blocks} blocks have no owner",
                str(admits),
                cause,
            )

        for (seq_id, _), slots in zip(note["tables"], note["slots"], strict=True):
            for position, slot in enumerate(slots):
                right = found[seq_id][position // size] * size + position % size
                if slot != right:
                    raise CheckFailed(
                        f"slot({seq_id}, {position}) = {right} with the table {found[seq_id]} and blocks of {size}",
                        repr(slot),
                        "the position picks a place in the table, the table picks the block, the rest is the offset",
                    )
        if name == "append_slot" and expected is None:
            right = dict(zip(found, note["slots"], strict=True))[arguments[0]][-1]
            if note["result"] != right:
                raise CheckFailed(
                    f"{done[-1]} to return {right}, the slot of the token just appended",
                    repr(note["result"]),
                    "return the slot of the new token: its position is the length before it was appended",
                )
        for what, right in (("allocated", len(owned) * size), ("used", sum(lengths.values()))):
            if note[what] != right:
                raise CheckFailed(f"{what}_tokens = {right} {after}", repr(note[what]), "both are counted in tokens")


# Section 3: paged attention -------------------------------------------------------------------------------------


def _attention_inputs(case: Case) -> tuple[Tensor, Tensor, Tensor, KVPool]:
    """q, contiguous k and v, and a pool full of other sequences' values in which k and v are scattered."""
    rng = torch.Generator().manual_seed(case["seed"])
    heads, kv_heads, head_dim = case["heads"]
    config = TransformerConfig(
        vocab_size=2, dim=2, n_layers=2, n_heads=heads, n_kv_heads=kv_heads, head_dim=head_dim, hidden_dim=2,
        max_seq_len=2,
    )  # fmt: skip
    pool = KVPool(config, case["num_blocks"], case["block_size"])
    pool.keys.copy_(torch.randn(pool.keys.shape, generator=rng) * 3)
    pool.values.copy_(torch.randn(pool.values.shape, generator=rng) * 3)
    q = torch.randn(heads, head_dim, generator=rng) * 2
    k = torch.randn(len(case["slots"]), kv_heads, head_dim, generator=rng)
    v = torch.randn(len(case["slots"]), kv_heads, head_dim, generator=rng)
    pool.write(case["layer"], torch.tensor(case["slots"]), k, v)
    return q, k, v, pool


def probe_attention(engine: Any, case: Case) -> Any:
    names = _names(engine, "attention")
    q, _, _, pool = _attention_inputs(case)
    length = len(case["slots"])
    gathered = names["gather_kv"](pool, case["layer"], list(case["table"]), length)
    if not isinstance(gathered, tuple | list) or len(gathered) != 2:
        gathered = (None, None)
    out = names["paged_attention"](q.clone(), pool, case["layer"], list(case["table"]), length)
    return {"k": _numbers(gathered[0]), "v": _numbers(gathered[1]), "out": _numbers(out)}


def judge_attention(case: Case, found: Any) -> None:
    q, k, v, pool = _attention_inputs(case)
    heads, kv_heads, head_dim = case["heads"]
    layer = case["layer"]
    for name, right in (("k", k), ("v", v)):
        got = _tensor(
            found[name],
            list(right.shape),
            f"gather_kv's {name}, (length, n_kv_heads, head_dim)",
            "gather whole blocks, then cut to the sequence's length: the tail of the last block is not its own",
        )
        if _close(got, right):
            continue
        cause = "follow the block table: its order is the order of the tokens, whatever the blocks' numbers are"
        memory = pool.keys if name == "k" else pool.values
        if _close(got, memory[1 - layer].flatten(0, 1)[case["slots"]]):
            cause = "these are another layer's: index the pool with `layer` first"
        raise CheckFailed(f"gather_kv to give the sequence's {name} in the order of its tokens", "other values", cause)

    got = _tensor(found["out"], [heads, head_dim], "paged_attention's result, (n_heads, head_dim)")
    if _close(got, _attend(q, k, v)):
        return
    group = heads // kv_heads
    whole_k = pool.keys[layer].flatten(0, 1)[_table_slots(case)]
    whole_v = pool.values[layer].flatten(0, 1)[_table_slots(case)]
    guesses = {
        "attention ran over the unused tail of the last block as well: cut the gathered keys to the length": _attend(
            q, whole_k, whole_v
        ),
        "the scores are not scaled: divide by the square root of head_dim before the softmax": _attend(
            q * head_dim**0.5, k, v
        ),
        f"GQA: query heads 0 to {group - 1} share KV head 0, the next {group} share KV head 1, and so on; yours go "
        "round in turn (repeat where repeat_interleave is meant)": _attend(
            q, k.repeat(1, group, 1), v.repeat(1, group, 1)
        ),
        "the last token was left out: a token attends to itself too": _attend(q, k[:-1], v[:-1]),
    }  # fmt: skip
    cause = next((cause for cause, guess in guesses.items() if _close(got, guess)), "")
    raise CheckFailed(
        "attention over the gathered keys and values, as over contiguous ones",
        f"a result that is off by up to {(got - _attend(q, k, v)).abs().max():.2g}",
        cause or "over which axis is the softmax taken? It must be the one of the tokens",
    )


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`(n_heads, head_dim)` from contiguous keys and values."""
    if not len(k):
        return torch.zeros_like(q)
    out = F.scaled_dot_product_attention(q[:, None], k.transpose(0, 1), v.transpose(0, 1), enable_gqa=True)
    return out[:, 0]


def _table_slots(case: Case) -> list[int]:
    size = case["block_size"]
    return [block * size + offset for block in case["table"] for offset in range(size)]


# Section 4: decode ----------------------------------------------------------------------------------------------


def _one_block(pool: KVPool, layer: int, table: list[int], length: int) -> tuple[Tensor, Tensor]:
    """The stand-in for the gather: with one block a sequence, the cache is contiguous already."""
    return pool.keys[layer, table[0], :length], pool.values[layer, table[0], :length]


def _decode_model(case: Case) -> Transformer:
    return random_model(TransformerConfig(**case["config"]), case["seed"])


def probe_decode(engine: Any, case: Case) -> Any:
    """Prefill each context into a block of its own, then let the student decode one token for each."""
    names = _names(engine, "decode")
    model, contexts = _decode_model(case), case["contexts"]
    size = case["config"]["max_seq_len"]
    pool = KVPool(model.config, len(contexts) + 1, size)
    rng = torch.Generator().manual_seed(case["seed"])
    for memory in (pool.keys, pool.values):
        memory.copy_(torch.randn(memory.shape, generator=rng))
    # Sequence ids that are not row numbers, and blocks that are not in their order.
    ids = [10 + 3 * row for row in range(len(contexts))]
    tables = {seq_id: [len(contexts) - row] for row, seq_id in enumerate(ids)}
    manager = SimpleNamespace(
        block_size=size,
        tables=tables,
        lengths={seq_id: len(context) + 1 for seq_id, context in zip(ids, contexts, strict=True)},
        slot=lambda seq_id, position: tables[seq_id][0] * size + position,
    )
    for seq_id, context in zip(ids, contexts, strict=True):
        if context:
            prefill(model, pool, manager, seq_id, context)
    before = pool.keys.clone()
    with stand_ins(names, gather_kv=_one_block, paged_attention=lambda q, *where: _attend(q, *_one_block(*where))):
        logits = names["decode"](model, pool, manager, list(ids), list(case["tokens"]))
    changed = (pool.keys != before).any(dim=-1).any(dim=-1).flatten(1)  # (n_layers, slots)
    return {
        "logits": _numbers(logits),
        "changed": [layer.nonzero().flatten().tolist() for layer in changed],
        "keys": _numbers(torch.stack([pool.keys[0, tables[s][0], manager.lengths[s] - 1] for s in ids])),
    }


@torch.no_grad()
def judge_decode(case: Case, found: Any) -> None:
    model, contexts, tokens = _decode_model(case), case["contexts"], case["tokens"]
    config = model.config
    slots = [
        (len(contexts) - row) * config.max_seq_len + len(context) for row, context in enumerate(contexts)
    ]  # where probe_decode put them
    # The first layer's keys depend on the token and its position alone, so they tell which position was used.
    got = _tensor(found["keys"], [len(contexts), config.n_kv_heads, config.head_dim], "the keys of the new tokens")
    layer = model.layers[0]
    raw = layer.attn.wk(layer.attn_norm(model.embedding(torch.tensor(tokens)))).unflatten(-1, (-1, config.head_dim))
    freqs = precompute_rope_frequencies(config.head_dim, config.max_seq_len, config.rope_theta)
    for row, context in enumerate(contexts):
        everywhere, _ = apply_rope(raw[row].expand(1, config.max_seq_len, -1, -1), raw[row][None, None], freqs)
        if _close(got[row], everywhere[0, len(context)]):
            continue
        found_at = [p for p in range(config.max_seq_len) if _close(got[row], everywhere[0, p])]
        what = f"the key of the new token of sequence {row}, whose context is {len(context)} tokens"
        if found_at:
            raise CheckFailed(
                f"{what}, rotated for position {len(context)}",
                f"a key rotated for position {found_at[0]}",
                "RoPE: every sequence of the batch stands at a position of its own; the new token's is length - 1",
            )
        if slots[row] not in found["changed"][0]:
            raise CheckFailed(
                f"{what}, written to slot {slots[row]}",
                f"slot {slots[row]} unchanged; written were {found['changed'][0]}",
                "write the new keys and values to the pool, at manager.slot(seq_id, position), before attending",
            )
        if _close(got[row], raw[row]):
            raise CheckFailed(what + ", rotated", "a key that was not rotated", "apply RoPE before the key is stored")
        raise CheckFailed(what, "another key in its slot", "normed, projected by wk, rotated: is this order kept?")
    for index, changed in enumerate(found["changed"]):
        if sorted(changed) != sorted(slots):
            raise CheckFailed(
                f"layer {index} to write the slots {sorted(slots)}, one for each sequence, and no other",
                f"slots {changed}",
                "one new token a sequence, written once in every layer; the slot belongs to its position",
            )
    got = _tensor(found["logits"], [len(contexts), config.vocab_size], "decode's logits, (B, vocab_size)")
    rows = [model(torch.tensor([[*context, token]]))[0, -1] for context, token in zip(contexts, tokens, strict=True)]
    for row, right in enumerate(rows):
        if _close(got[row], right):
            continue
        others = [other for other in range(len(rows)) if other != row and _close(got[row], rows[other])]
        cause = "does the query see every token up to and with its own? Write first, then attend; residuals kept?"
        if others:
            cause = f"the rows are mixed up: this is the result of sequence {others[0]}"
        raise CheckFailed(
            f"the logits of full recompute for sequence {row} ({len(contexts[row])} tokens of context)",
            f"logits that are off by up to {(got[row] - right).abs().max():.2g}",
            cause,
        )


# Sections 5 and 8: stand-ins for the engine's parts ---------------------------------------------------------------


class Ledger:
    """Stands in for the block manager: blocks of one slot that are counted, not handed out, and a log of calls."""

    def __init__(self, num_blocks: int, block_size: int = 1) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.lengths: dict[int, int] = {}
        self.log: list[list[Any]] = []
        self._asked = 0

    @property
    def free(self) -> range:
        return range(self.num_blocks - sum(self.lengths.values()))

    used_tokens = allocated_tokens = property(lambda self: sum(self.lengths.values()))

    def blocks_for(self, num_tokens: int) -> int:
        return num_tokens

    def can_admit(self, num_tokens: int) -> bool:
        return self._ask(num_tokens <= len(self.free))

    def can_append(self, seq_id: int) -> bool:
        if seq_id not in self.lengths:
            raise KeyError(f"sequence {seq_id} has no blocks: it was never admitted, or was released")
        return self._ask(len(self.free) > 0)

    def admit(self, seq_id: int, num_tokens: int) -> None:
        if num_tokens > len(self.free):
            raise OutOfBlocks(f"{num_tokens} tokens do not fit {len(self.free)} free slots: ask can_admit first")
        if seq_id in self.lengths:
            raise ValueError(f"sequence {seq_id} is admitted twice: it holds {self.lengths[seq_id]} tokens already")
        self.lengths[seq_id] = num_tokens
        self._note("admit", seq_id)

    def append_slot(self, seq_id: int) -> int:
        if not self.can_append(seq_id):
            raise OutOfBlocks(f"no free slot for sequence {seq_id}")
        self.lengths[seq_id] += 1
        self._note("append", seq_id)
        return 0

    def release(self, seq_id: int) -> None:
        if seq_id not in self.lengths:
            raise KeyError(f"sequence {seq_id} has no blocks to release: it was released before")
        del self.lengths[seq_id]
        self._note("release", seq_id)

    def _note(self, *event: Any) -> None:
        self.log.append(list(event))
        self._asked = 0

    def _ask(self, answer: bool) -> bool:
        self._asked += 1
        if self._asked > 1_000:
            raise RuntimeError("the same question was asked 1,000 times with nothing changed: this loop never ends")
        return answer


SCRIPT_VOCAB = 97


def _scripted(context: list[int]) -> int:
    """The toy function that plays the model: the next token depends on every token before it and its place."""
    return (sum((place + 3) * token for place, token in enumerate(context)) + len(context)) % SCRIPT_VOCAB


def _scripted_output(prompt: list[int], n: int) -> list[int]:
    context = list(prompt)
    for _ in range(n):
        context.append(_scripted(context))
    return context[len(prompt) :]


def _one_hot(tokens: list[int]) -> Tensor:
    return F.one_hot(torch.tensor(tokens), SCRIPT_VOCAB).float()


def _scripted_prompt(seq_id: int, length: int) -> list[int]:
    return [(7 * seq_id + 5 * place + 1) % SCRIPT_VOCAB for place in range(length)]


# Section 5: the engine ------------------------------------------------------------------------------------------


def probe_engine(engine: Any, case: Case) -> Any:
    """Serve the case's requests with the student's scheduling, and write down what happens in each step."""
    names = _names(engine, "engine")
    contexts: dict[int, list[int]] = {}
    ledgers: list[Ledger] = []

    def manager(num_blocks: int, block_size: int) -> Ledger:
        ledgers.append(Ledger(num_blocks, block_size))
        return ledgers[0]

    def scripted_prefill(_model: Any, _pool: Any, ledger: Ledger, seq_id: int, tokens: list[int]) -> Tensor:
        contexts[seq_id] = list(tokens)
        ledger._note("prefill", seq_id, list(tokens))
        return _one_hot([_scripted(tokens)])[0]

    def scripted_decode(_model: Any, _pool: Any, ledger: Ledger, ids: list[int], tokens: list[int]) -> Tensor:
        for seq_id, token in zip(ids, tokens, strict=True):
            contexts[seq_id].append(token)
        ledger._note("decode", list(ids), [[len(contexts[i]), ledger.lengths.get(i, 0)] for i in ids])
        return _one_hot([_scripted(contexts[seq_id]) for seq_id in ids])

    requests = [
        Request(i, _scripted_prompt(i, prompt_len), max_new, stop_after)
        for i, (prompt_len, max_new, stop_after) in enumerate(case["requests"])
    ]
    stand_in = SimpleNamespace(config=TOY)
    steps: list[dict[str, Any]] = []
    with stand_ins(names, BlockManager=manager, prefill=scripted_prefill, decode=scripted_decode):
        server = names["Engine"](
            stand_in, case["num_blocks"], block_size=1, max_batch=case["max_batch"], continuous=case["continuous"]
        )
        for request in requests:
            server.submit(request)
        log = ledgers[0].log
        while (server.waiting or server.running) and len(steps) < 500:
            log.clear()
            server.step()
            steps.append(
                {
                    "events": [list(event) for event in log],
                    "running": [request.id for request in server.running],
                    "waiting": [request.id for request in server.waiting],
                }
            )
            if not any(event[0] in ("prefill", "decode") for event in log):
                break  # it stands still
    return {
        "steps": steps,
        "outputs": [request.output for request in requests],
        "done": [request.id for request in server.done],
        "held": sorted(ledgers[0].lengths),
    }


def judge_engine(case: Case, found: Any) -> None:
    """Follow the log step by step, and ask of each whether the rules of section 5 were kept."""
    asked = dict(enumerate(case["requests"]))
    made = dict.fromkeys(asked, 0)  # tokens of each request so far
    held: dict[int, int] = {}  # slots of each admitted request
    waiting, running = list(asked), []  # as they must stand
    max_batch, continuous = case["max_batch"], case["continuous"]
    for number, step in enumerate(found["steps"], start=1):
        at = f"in step {number}"
        busy_before, admitted = list(running), []
        free_slots = None  # slots free right after the last admission of this step
        decoded = [event for event in step["events"] if event[0] == "decode"]
        for kind, *what in step["events"]:
            if kind in ("admit", "prefill"):
                free_slots = None
            elif free_slots is None:
                free_slots = case["num_blocks"] - sum(held.values())
            if kind == "admit":
                seq_id = what[0]
                if not waiting or seq_id != waiting[0]:
                    raise CheckFailed(
                        f"request {waiting[0] if waiting else 'none'} to be admitted next {at}",
                        f"request {seq_id}",
                        "first come, first served: only the head of `waiting` may be admitted, nobody overtakes",
                    )
                waiting.pop(0)
                running.append(seq_id)
                admitted.append(seq_id)
                held[seq_id] = asked[seq_id][0]
            elif kind == "prefill":
                made[what[0]] += 1
            elif kind == "append":
                held[what[0]] += 1
            elif kind == "release":
                if made[what[0]] < asked[what[0]][2]:
                    raise CheckFailed(
                        f"request {what[0]} to keep its blocks {at}: it has {made[what[0]]} of its tokens",
                        "its blocks released",
                        "only a finished request retires",
                    )
                held.pop(what[0])
                running.remove(what[0])
            elif kind == "decode":
                ids, lengths = what
                late = [seq_id for seq_id in ids if made[seq_id] >= asked[seq_id][2]]
                if late:
                    raise CheckFailed(
                        f"request {late[0]} not to be decoded {at}: its prefill made its last token",
                        "it was decoded once more: one token too many",
                        "a prefill makes a token too: retire what is finished before decoding, not only after",
                    )
                if len(ids) > max_batch:
                    raise CheckFailed(
                        f"at most {max_batch} sequences {at}", f"{len(ids)}", "max_batch limits the batch"
                    )
                if sorted(ids) != sorted(running):
                    raise CheckFailed(
                        f"one token {at} for every running request, {sorted(running)}",
                        f"a decode of {sorted(ids)}",
                        "a request admitted in this step is running too: it decodes in this step with all the others",
                    )
                for seq_id, (tokens, slots) in zip(ids, lengths, strict=True):
                    if tokens != slots:
                        raise CheckFailed(
                            f"a slot for each of the {tokens} tokens of request {seq_id} when it decodes {at}",
                            f"{slots} slots",
                            "make room first, then decode: once a step, after the admissions",
                        )
                    made[seq_id] += 1
        if len(decoded) > 1:
            raise CheckFailed(f"one decode {at}, for the whole batch", f"{len(decoded)} decodes", "batch the sequences")
        if not continuous and admitted and busy_before:
            raise CheckFailed(
                f"static batching to admit nobody {at}: {busy_before} are still running",
                f"{admitted} admitted",
                "with continuous=False a new batch is formed only when the last one has finished",
            )
        places = max_batch - len(busy_before) - len(admitted)
        free = case["num_blocks"] - sum(held.values()) if free_slots is None else free_slots
        if (continuous or not busy_before) and waiting and places > 0 and asked[waiting[0]][0] <= free:
            raise CheckFailed(
                f"request {waiting[0]} to be admitted {at}: {places} of {max_batch} places and {free} slots were free",
                f"it is still waiting; admitted were {admitted}, and {busy_before} were running before",
                "this is static batching: a place that becomes free is filled in the very next step"
                if continuous and busy_before
                else "admit until the batch is full or the head of `waiting` does not fit, not one a step",
            )
        if not decoded and running:
            raise CheckFailed(
                f"a decode {at} of {running}", "none", "the step: admit, retire, make room, decode, retire"
            )
        finished = [seq_id for seq_id in running if made[seq_id] >= asked[seq_id][2]]
        if finished:
            raise CheckFailed(
                f"request {finished[0]} to retire {at}: it has all its {asked[finished[0]][2]} tokens",
                "it still holds its blocks after the step",
                "retire as soon as the last token is made: its place and blocks are for whoever waits",
            )
        if sorted(step["running"]) != sorted(running) or step["waiting"] != waiting:
            raise CheckFailed(
                f"running {running} and waiting {waiting} after step {number}",
                f"running {step['running']} and waiting {step['waiting']}",
                "who holds blocks is in `running`, who does not yet is in `waiting`, nobody in both or neither",
            )
    if waiting or running:
        raise CheckFailed(
            "every step to make a token until all requests are done",
            f"a step that made none, with {running} running and {waiting} waiting",
            "the engine stands still: what does `_admit` wait for?",
        )
    for seq_id, (prompt_len, _, stop_after) in asked.items():
        right = _scripted_output(_scripted_prompt(seq_id, prompt_len), stop_after)
        if found["outputs"][seq_id] != right:
            raise CheckFailed(
                f"{len(right)} tokens for request {seq_id}, the ones it gets when it is alone: {_some(right)}",
                f"{len(found['outputs'][seq_id])} tokens: {_some(found['outputs'][seq_id])}",
                "tokens are handed to the requests in the order in which the batch was formed",
            )
    if sorted(found["done"]) != sorted(asked) or found["held"]:
        raise CheckFailed(
            f"all {len(asked)} requests in `done` at the end, and no block held",
            f"done {sorted(found['done'])}, blocks held by {found['held']}",
            "retiring: out of `running`, blocks released, into `done`",
        )


def _some(items: list[Any], n: int = 6) -> str:
    return f"{items[:n]}"[:-1] + (", ...]" if len(items) > n else "]")


# Section 6: memory ----------------------------------------------------------------------------------------------


def _timeline(block_size: int, max_batch: int = 8) -> list[dict[str, int]]:
    """The chapter's workload in a pool that is never short, as a queue at `max_batch` counters would be drawn up.

    A request that starts in step `s` has 2 tokens after it, so it leaves at the end of step `s + stop_after - 2`.
    """
    counters = [1] * max_batch  # the first step in which each place is free
    steps: dict[int, dict[str, int]] = {}
    last = 0
    for request in chapter_workload():
        start = heapq.heappop(counters)
        end = start + request.stop_after - 2
        heapq.heappush(counters, end + 1)
        last = max(last, end)
        for step in range(start, end):  # it has retired when step `end` is recorded
            cached = len(request.prompt) + step - start + 1
            record = steps.setdefault(step, {"reserved": 0, "allocated": 0, "used": 0})
            record["reserved"] += len(request.prompt) + request.max_new
            record["allocated"] += -(-cached // block_size) * block_size
            record["used"] += cached
    return [steps.get(step, {"reserved": 0, "allocated": 0, "used": 0}) for step in range(1, last + 1)]


def probe_memory(engine: Any, case: Case) -> Any:
    """Call the student's measurement on a run that is known to be right."""
    names = _names(engine, "memory_prediction", "memory")
    made: list[list[int]] = []

    class RecordedEngine:
        def __init__(self, _model: Any, num_blocks: int, block_size: int = 16, **_options: Any) -> None:
            made.append([num_blocks, block_size])
            self.history = case.get("history") or _timeline(block_size)
            self.preemptions = 0

        def run(self, _requests: list[Request]) -> "RecordedEngine":
            return self

    with stand_ins(names, Engine=RecordedEngine):
        waste = names["measured_waste"](case["block_size"])
    if isinstance(waste, dict):
        waste = {key: _number(value) for key, value in waste.items()}
    prediction = names.get("prediction")
    if isinstance(prediction, dict):
        prediction = [[key, _number(value)] for key, value in prediction.items()]
    return {"waste": waste, "prediction": prediction, "made": made}


def judge_memory(case: Case, found: Any) -> None:
    prediction = dict(map(tuple, found["prediction"])) if isinstance(found["prediction"], list) else {}
    for size in (4, 64):
        value = prediction.get(size)
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise CheckFailed(
                f"prediction[{size}] to be a share between 0 and 1, your guess",
                repr(value),
                "write down what you expect before you measure; a wrong guess costs nothing",
            )
    history = case.get("history") or _timeline(case["block_size"])
    total = {key: sum(record[key] for record in history) for key in ("reserved", "allocated", "used")}
    waste = found["waste"] if isinstance(found["waste"], dict) else {}
    for name, key in (("naive", "reserved"), ("paged", "allocated")):
        right, value = 1 - total["used"] / total[key], waste.get(name)
        if type(value) is float and abs(value - right) < 1e-6:
            continue
        cause = "wasted is what holds no token: 1 - used / reserved for slabs, 1 - used / allocated for blocks"
        if type(value) is float:
            shares = [1 - record["used"] / record[key] for record in history if record[key]]
            if abs(value - sum(shares) / len(shares)) < 1e-6:
                cause = "this is the mean of the steps' shares: sum over the steps first, then divide once"
            elif abs(value - total["used"] / total[key]) < 1e-6:
                cause = "this is the share that is used; the waste is the rest"
            elif abs(value - (1 - history[-1]["used"] / history[-1][key] if history[-1][key] else -1)) < 1e-6:
                cause = "this is the last step alone: sum over all steps"
        raise CheckFailed(f"waste[{name!r}] = {right:.4f} (a float)", repr(value), cause)


# Section 7: static batching by pencil ---------------------------------------------------------------------------


def probe_static_steps(engine: Any, case: Case) -> Any:
    return _number(_names(engine, "static_steps")["static_steps"](list(case["stop_after"]), case["max_batch"]))


def judge_static_steps(case: Case, found: Any) -> None:
    if type(found) is int and found == case["expected"]:
        return
    batches = -(-len(case["stop_after"]) // case["max_batch"])
    cause = "a static batch lasts as long as its longest member, and the next one starts when it is done"
    if found == case["expected"] + batches:
        cause = "the first step of a request gives two tokens: one from its prefill and one from its decode"
    raise CheckFailed(f"{case['expected']} steps (int)", repr(found), cause)


# Section 8: preemption ------------------------------------------------------------------------------------------


def probe_preempt(engine: Any, case: Case) -> Any:
    """Play a scene: make room, hand out tokens, let requests finish and come back; note the state after each act."""
    cls = _names(engine, "preempt")["PreemptingEngine"]
    server = cls.__new__(cls)  # its __init__ is section 5's; the scene brings all that `_make_room` needs
    requests = []
    for seq_id, (prompt_len, output_len) in enumerate(case["requests"]):
        prompt = _scripted_prompt(seq_id, prompt_len)
        requests.append(Request(seq_id, prompt, 64, 64, _scripted_output(prompt, output_len)))
    server.manager = Ledger(case["num_blocks"])
    server.running = requests[: case["running"]]
    server.waiting = deque(requests[case["running"] :])
    server.done, server.history, server.preemptions = [], [], 0
    server.max_batch, server.continuous = 8, True
    for request in server.running:  # the newest token of a running request is not in the cache yet
        server.manager.admit(request.id, len(request.tokens) - 1)
    notes = []
    for act, *arguments in case["acts"]:
        prefilled = []
        if act == "make_room":
            server._make_room()
        elif act == "decode":
            for request in server.running:
                request.output.append(_scripted(request.tokens))
        elif act == "finish":
            request = requests[arguments[0]]
            server.running.remove(request)
            server.manager.release(request.id)
        elif act == "admit":
            while server.waiting and server.manager.can_admit(len(server.waiting[0].tokens)):
                request = server.waiting.popleft()
                server.manager.admit(request.id, len(request.tokens))
                prefilled.append([request.id, request.tokens])
                request.output.append(_scripted(request.tokens))
                server.running.append(request)
        notes.append(
            {
                "running": [request.id for request in server.running],
                "waiting": [request.id for request in server.waiting],
                "preemptions": server.preemptions,
                "held": sorted(server.manager.lengths.items()),
                "prefilled": prefilled,
                "tokens": [[list(request.prompt), list(request.output)] for request in requests],
            }
        )
        notes[-1]["held"] = [list(item) for item in notes[-1]["held"]]
    return notes


def judge_preempt(case: Case, notes: Any) -> None:
    lengths = [output_len for _, output_len in case["requests"]]
    prompts = [_scripted_prompt(i, prompt_len) for i, (prompt_len, _) in enumerate(case["requests"])]
    played = []
    for (act, *_), expected, note in zip(case["acts"], case["expected"], notes, strict=True):
        played.append(act)
        after = f"after {', '.join(played)}"
        if act == "decode":
            for seq_id in note["running"]:
                lengths[seq_id] += 1
        elif act == "admit":
            for seq_id, _ in note["prefilled"]:
                lengths[seq_id] += 1
        outputs = [_scripted_output(prompt, n) for prompt, n in zip(prompts, lengths, strict=True)]
        for seq_id, (prompt, output) in enumerate(note["tokens"]):
            if prompt == prompts[seq_id] and output == outputs[seq_id]:
                continue
            cause = "preemption gives back blocks, never tokens: `prompt` and `output` stay as they are"
            if len(prompt) > len(prompts[seq_id]):
                cause = (
                    "tokens folded into the prompt: `request.tokens` is prompt + output already, so the re-admission "
                    "prefills the folded ones twice, and once more at each further preemption"
                )
            elif len(output) < len(outputs[seq_id]):
                cause = "the output was lost: what has been generated is kept, only its keys and values are recomputed"
            raise CheckFailed(
                f"request {seq_id}: prompt of {len(prompts[seq_id])} tokens, output of {len(outputs[seq_id])} {after}",
                f"prompt of {len(prompt)} tokens, output of {len(output)}",
                cause,
            )
        if act != "make_room":
            continue
        running, waiting, preemptions = expected
        if note["running"] != running:
            lost = [i for i in running if i not in note["running"]]
            kept = [i for i in note["running"] if i not in running]
            if lost and kept:
                cause = (
                    "the youngest running request is preempted, the last of `running`: the oldest keeps its progress"
                )
            elif lost:
                cause = "preempt only when no block is free for the next token, and one request at a time"
            else:
                cause = "a preempted request leaves `running`, also when it is the one that asked for the slot"
            raise CheckFailed(f"running {running} {after}", f"running {note['running']}", cause)
        if note["waiting"] != waiting:
            cause = "a preempted request goes to the front of `waiting`: it came before all who have not yet started"
            missing = [i for i in waiting if i not in note["waiting"]]
            if missing:
                cause = f"request {missing[0]} is lost: a preempted request must come back"
            raise CheckFailed(f"waiting {waiting} {after}", f"waiting {note['waiting']}", cause)
        held = [[i, len(prompts[i]) + lengths[i]] for i in sorted(running)]
        if note["held"] != held:
            extra = [i for i, _ in note["held"] if i not in running]
            raise CheckFailed(
                f"slots held {after}: {held} (request, slots)",
                f"{note['held']}",
                f"request {extra[0]} was preempted and still holds its blocks: release them"
                if extra
                else "every request that goes on running gets exactly one slot for its next token",
            )
        if note["preemptions"] != preemptions:
            raise CheckFailed(
                f"preemptions = {preemptions} {after}", repr(note["preemptions"]), "count each preemption once"
            )


# The self-checks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A multiple-choice question: why each letter is right or wrong, and a digest of the right one.

    No key to read off: students have this file. Whoever reads the reasons has done the exercise.
    """

    digest: str
    why: dict[str, str]

    @property
    def answer(self) -> str:
        """The right letter."""
        return next(letter for letter in self.why if self.digest == answer_digest(letter, self.why))


def answer_digest(letter: str, why: dict[str, str]) -> str:
    """What stands for a letter in `Question.digest`."""
    return hashlib.sha256((letter + why[letter]).encode()).hexdigest()[:12]


QUESTIONS = {
    "q_fragmentation": Question(
        "c028743af0c1",
        {
            "a": "37 mod 16 = 5 is what the last block holds; what it wastes is the rest of it, 16 - 5.",
            "b": "Only the last block can be partly empty: the full ones waste nothing, so the waste does not grow.",
            "c": "Three blocks hold 48 slots, and only the last block of a sequence is ever partly empty: at most "
            "15 slots, on average about half a block. Outside the blocks nothing is lost, since any free block "
            "serves any sequence.",
            "d": "Paging ends external fragmentation (free memory in pieces too small to use). The unused tail of the "
            "last block is internal fragmentation, and it stays.",
        },
    ),
    "q_paging": Question(
        "78a37495723b",
        {
            "a": "A key takes the same bytes wherever it lies; paging compresses nothing.",
            "b": "A slab must be as long as the request may become; blocks are taken when tokens arrive. What is "
            "never generated never takes memory, and that memory holds other sequences.",
            "c": "Attention reads the same keys and values, through one more look-up. The gain is in memory, and "
            "the speed comes from the larger batch that the memory allows.",
            "d": "Blocks can be shared (section 9 says when), but here every block has one owner, and the gain is "
            "there already.",
        },
    ),
    "q_phases": Question(
        "a0c229933ae0",
        {
            "a": "Prefill needs no cache to read from; decode is the phase that reads it, once a token.",
            "b": "Both phases run all layers, with the same weights; only the number of tokens at a time differs.",
            "c": "It is the other way round: prefill works on many tokens for each weight that it reads.",
            "d": "Prefill uses each weight for all tokens of the prompt, so arithmetic is its limit. Decode reads "
            "all weights and the cache for one token a sequence: memory is its limit, and a larger batch uses "
            "each weight for more tokens at nearly no cost.",
        },
    ),
    "q_proof": Question(
        "4e044f2bbb39",
        {
            "a": "Full recompute has no cache, so no mistake of a cache can hide in it: a wrong slot, a stale key or a "
            "wrong position makes the two differ.",
            "b": "It is about 17 times slower here; it is the reference because it is simple, not because it is fast.",
            "c": "A contiguous cache is a good cross-check, but it can share the very mistake that one looks for, a "
            "wrong position say, and then the two agree and are both wrong.",
            "d": "Equal weights are needed for any comparison; they do not make one path a proof for another.",
        },
    ),
    "q_preemption": Question(
        "a7e6b11f6654",
        {
            "a": "The prompt and the output are kept, and the re-admission computes the very same keys and values.",
            "b": "Nothing is copied anywhere: that is swapping, the other way to preempt.",
            "c": "The blocks are free at once, and the price is paid later, in one prefill of prompt + output: many "
            "tokens in one pass, cheap for each of them, but done a second time.",
            "d": "It lengthens the run (161 steps for 128 in section 8): the work is done again and places stay empty. "
            "It is what keeps a pool that is too small correct, not what makes it fast.",
        },
    ),
}


def probe_question(engine: Any, case: Case) -> Any:
    names = _names(engine, case["cell"])
    if case["cell"] not in names:
        raise NotImplementedError
    return names[case["cell"]]


def judge_question(case: Case, found: Any) -> None:
    question = QUESTIONS[case["cell"]]
    if type(found) is not str or found.strip().lower() not in question.why:
        raise CheckFailed('one of the letters "a", "b", "c" or "d"', repr(found))
    letter = found.strip().lower()
    if letter != question.answer:
        raise CheckFailed("the letter of the statement that is true", f'"{letter}"', question.why[letter])
