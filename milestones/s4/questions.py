"""The self-checks."""

import hashlib
from dataclasses import dataclass
from typing import Any

from checking.check import CheckFailed
from milestones.s4.answers import Case, names_of


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
    names = names_of(engine, case["cell"])
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
