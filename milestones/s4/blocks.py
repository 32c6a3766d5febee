"""Section 2: the block manager."""

from typing import Any

from ai_playground.chapter import OutOfBlocks
from checking.check import CheckFailed
from milestones.s4.answers import Case, names_of


def probe_block_manager(engine: Any, case: Case) -> Any:
    """Play the case's operations and note, after each, what the manager says."""
    manager = names_of(engine, "block_manager")["BlockManager"](case["num_blocks"], case["block_size"])
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


class Counts:
    """The right manager in counts alone: the tokens of each sequence say how many blocks are owned, not which ones."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.lengths: dict[int, int] = {}

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    @property
    def owned(self) -> int:
        return sum(map(self.blocks, self.lengths.values()))

    @property
    def free(self) -> int:
        return self.num_blocks - self.owned

    def room(self, seq_id: int) -> bool:
        """Whether one more token of a sequence has a slot: in its last block, or in a free one."""
        return self.lengths[seq_id] % self.block_size != 0 or self.free > 0

    def fits(self, name: str, seq_id: int, *tokens: int) -> bool:
        """Whether a call must succeed; one that does not raises `OutOfBlocks`."""
        if name == "admit":
            return self.blocks(*tokens) <= self.free
        return name != "append_slot" or self.room(seq_id)

    def apply(self, name: str, seq_id: int, *tokens: int) -> None:
        """What a call that succeeds changes."""
        if name == "admit":
            (self.lengths[seq_id],) = tokens
        elif name == "append_slot":
            self.lengths[seq_id] += 1
        elif name == "release":
            del self.lengths[seq_id]


class Call:
    """One call of a case: what it was, what the manager said after it, and the counts as they must be then.

    Attributes:
        tables: the student's, by sequence.
        text: the call as it would be typed.
        after: when this is, in words: the last calls.
    """

    def __init__(self, operation: list[Any], note: dict[str, Any], counts: Counts, before: list[str]) -> None:
        self.name, *self.arguments = operation
        self.note, self.counts = note, counts
        self.text = f"{self.name}({', '.join(map(str, self.arguments))})"
        done = [*before, self.text]
        self.after = f"after {', '.join(done[-4:])}" + (f" ({len(done)} calls in all)" if len(done) > 4 else "")

    @property
    def tables(self) -> dict[int, list[int]]:
        return dict(map(tuple, self.note["tables"]))


def judge_block_manager(case: Case, notes: Any) -> None:
    """Section 2: blocks are handed out one by one, found again, and all given back.

    The calls are replayed in counts, and every table and answer is held against them.
    """
    counts = Counts(case["num_blocks"], case["block_size"])
    tables: dict[int, list[int]] = {}  # the student's, after the call before
    done: list[str] = []
    for operation, note in zip(case["ops"], notes, strict=False):  # the notes end at an exception
        call = Call(operation, note, counts, done)
        fits = _judge_answer(call)
        if fits:
            counts.apply(*operation)
        _judge_sizes(call)
        _judge_owners(call)
        _judge_growth(call, tables)
        _judge_free_blocks(call)
        _judge_slots(call)
        if call.name == "append_slot" and fits:
            _judge_new_slot(call)
        _judge_totals(call)
        tables = call.tables
        done.append(call.text)


def _judge_answer(call: Call) -> bool:
    """A token that does not fit is known before (`can_append`) or refused (`OutOfBlocks`), and nothing else is.

    Returns:
        whether the call succeeds, as it must.
    """
    counts, note = call.counts, call.note
    if "error" in note:
        raise CheckFailed(f"{call.text} to work {call.after}", note["error"], "is every table kept up to date?")
    if call.name == "can_append":
        (seq_id,) = call.arguments
        right = counts.room(seq_id)
        if note["result"] is not right:
            at = counts.lengths[seq_id]
            raise CheckFailed(
                f"can_append to be {right} {call.after}: {at} tokens in blocks of {counts.block_size}, "
                f"{counts.free} blocks free",
                repr(note["result"]),
                "the block boundary: a new block is needed when the last one is full, and only then",
            )
    fits = counts.fits(call.name, *call.arguments)
    if (note["result"] == "OutOfBlocks") == fits:
        raise CheckFailed(
            f"{call.text} to {'succeed' if fits else 'raise OutOfBlocks'}, with {counts.free} blocks free",
            "OutOfBlocks" if note["result"] == "OutOfBlocks" else "no exception",
            "count the blocks that this call needs: none while the last block has a free slot (block boundary)",
        )
    return fits


def _judge_sizes(call: Call) -> None:
    """A sequence of `n` tokens holds `n / block_size` blocks, rounded up; a call that fails changes nothing."""
    lengths, found = dict(map(tuple, call.note["lengths"])), call.tables
    right = call.counts.lengths
    if lengths != right:
        raise CheckFailed(f"lengths {right} {call.after}", f"{lengths}", "a failed call must change nothing")
    if set(found) != set(right):
        raise CheckFailed(f"tables for {sorted(right)} {call.after}", f"tables for {sorted(found)}")
    for seq_id, tokens in right.items():
        blocks = call.counts.blocks(tokens)
        if len(found[seq_id]) != blocks:
            raise CheckFailed(
                f"{blocks} blocks of {call.counts.block_size} for the {tokens} tokens of sequence {seq_id} "
                f"{call.after}",
                f"{len(found[seq_id])}: its table is {found[seq_id]}",
                "off by one at a block boundary: a block is taken when a token does not fit, not earlier or later",
            )


def _judge_owners(call: Call) -> None:
    """Every block has one owner at most, and is one of the pool's."""
    found, num_blocks = call.tables, call.counts.num_blocks
    owned = [block for table in found.values() for block in table]
    if len(set(owned)) != len(owned) or any(type(block) is not int for block in owned):
        raise CheckFailed(
            f"every block in one table at most {call.after}", f"{found}", "a block was given to two owners"
        )
    if any(not 0 <= block < num_blocks for block in owned):
        raise CheckFailed(f"blocks between 0 and {num_blocks - 1} {call.after}", f"{found}")


def _judge_growth(call: Call, before: dict[int, list[int]]) -> None:
    """A block table is in the order of the tokens: it grows at its end, and what it held stays in its place."""
    found = call.tables
    for seq_id, table in before.items():
        if seq_id in found and found[seq_id][: len(table)] != table:
            raise CheckFailed(
                f"the table of sequence {seq_id} to grow at its end {call.after}",
                f"{table} became {found[seq_id]}",
                "tokens already written stay where they are: never move or reorder a sequence's blocks",
            )


def _judge_free_blocks(call: Call) -> None:
    """Free blocks and owned ones make up the pool: `can_admit` says yes to what the free ones hold, to no more."""
    counts, answers = call.counts, call.note["admits"]
    for tokens, admits in enumerate(answers):
        if admits == (counts.blocks(tokens) <= counts.free):
            continue
        fits = answers.index(False) - 1 if False in answers else 0
        if fits % counts.block_size:
            cause = "off by one at a block boundary: how many whole blocks hold this many tokens?"
        elif admits:
            cause = "a block with an owner still counts as free: it is in a table or in `free`, never in both"
        elif call.name == "release":
            cause = "release did not give back every block: also the last one, which may be half full, returns"
        else:
            cause = "a block has got lost: it is in a table or in `free`, never in neither"
        raise CheckFailed(
            f"can_admit({tokens}) to be {not admits} {call.after}: {counts.free} of {counts.num_blocks} blocks have no "
            "owner",
            str(admits),
            cause,
        )


def _judge_slots(call: Call) -> None:
    """The slot of position `p` is `table[p // B] * B + p % B`, for blocks of `B`."""
    size = call.counts.block_size
    for (seq_id, table), slots in zip(call.note["tables"], call.note["slots"], strict=True):
        for position, slot in enumerate(slots):
            right = table[position // size] * size + position % size
            if slot != right:
                raise CheckFailed(
                    f"slot({seq_id}, {position}) = {right} with the table {table} and blocks of {size}",
                    repr(slot),
                    "the position picks a place in the table, the table picks the block, the rest is the offset",
                )


def _judge_new_slot(call: Call) -> None:
    """`append_slot` returns the slot of the token that it made room for."""
    (seq_id,) = call.arguments
    right = dict(zip(call.tables, call.note["slots"], strict=True))[seq_id][-1]
    if call.note["result"] != right:
        raise CheckFailed(
            f"{call.text} to return {right}, the slot of the token just appended",
            repr(call.note["result"]),
            "return the slot of the new token: its position is the length before it was appended",
        )


def _judge_totals(call: Call) -> None:
    """`allocated_tokens` is what the owned blocks hold, `used_tokens` what holds a token."""
    counts = call.counts
    for what, right in (("allocated", counts.owned * counts.block_size), ("used", sum(counts.lengths.values()))):
        if call.note[what] != right:
            raise CheckFailed(
                f"{what}_tokens = {right} {call.after}", repr(call.note[what]), "both are counted in tokens"
            )
