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
