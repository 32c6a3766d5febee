"""The chapter's notebook: it runs, its numbers are computed, and its graded cells judge what they should."""

import ast
import builtins
import html
import json
import re
import symtable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbgrader.nbgraderformat import MetadataValidator
from nbgrader.validator import Validator

from ai_playground.chapter import Request, chapter_workload
from ai_playground.checkout import repo_root
from milestones.points import CHAPTER, MILESTONES, VISIBLE_SHARE
from milestones.s4.answers import ANSWER_CELLS, given_names, load_cells
from milestones.s4.cells import CELLS
from milestones.s4.check_cell import CellFailed, check_cell, points, run_cases
from milestones.s4.questions import QUESTIONS
from solutions.m13 import make_hidden_chapter

SOURCE = repo_root() / "solutions" / "m13" / "mini_vllm.ipynb"
RELEASED = repo_root() / "assignments" / "m13" / "mini_vllm.ipynb"
HIDDEN = json.loads((SOURCE.parent / "hidden_chapter.json").read_text(encoding="utf-8"))


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def answers_of(notebook: nbformat.NotebookNode) -> dict[str, nbformat.NotebookNode]:
    """The answer cells, by grade_id."""
    cells = (cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("solution"))
    return {cell.metadata.nbgrader.grade_id: cell for cell in cells}


# The source ------------------------------------------------------------------------------------------------------


def test_the_source_is_format_4_5_without_outputs() -> None:
    notebook = read(SOURCE)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None, f"cell {cell.id} has outputs"


def test_the_metadata_is_nbgraders_and_the_points_are_in_one_place() -> None:
    notebook = read(SOURCE)
    MetadataValidator().validate_nb(notebook)
    assert tuple(answers_of(notebook)) == ANSWER_CELLS
    graded = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    assert {c.metadata.nbgrader.grade_id: c.metadata.nbgrader.points for c in graded} == {
        f"test_{name}": value for name, value in CHAPTER.items()
    }
    assert list(CELLS) == list(CHAPTER)
    assert sum(CHAPTER.values()) == 30
    assert sum(CHAPTER.values()) + sum(MILESTONES.values()) == 100
    for cell in graded:  # each judges the answer cell above it, and its last value is the points
        assert cell.metadata.nbgrader.locked
        name = cell.metadata.nbgrader.grade_id.removeprefix("test_")
        assert cell.source.endswith(f'check_cell("{name}", globals(), hidden)')


def test_answer_cells_need_only_what_the_grader_gives_them() -> None:
    known = set(given_names()) | set(dir(builtins))
    for name, cell in answers_of(read(SOURCE)).items():
        table = symtable.symtable(cell.source, name, "exec")
        known |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
        for scope in _scopes(table):
            used = {s.get_name() for s in scope.get_symbols() if s.is_referenced() and s.is_global()}
            used |= {s.get_name() for s in table.get_symbols() if s.is_referenced()}
            assert used <= known, f"{name}: {sorted(used - known)} would not be there when it is graded"


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


# The run ----------------------------------------------------------------------------------------------------------

# What DESIGN.md promises, from the notebook's own variables.
FIGURES = {
    "parameters": "parameters",
    "bytes a token": "toy_per_token",
    "kB for a full sequence": "round(toy_per_token * TOY.max_seq_len / 1000)",
    "first tokens": "first_tokens",
    "naive waste, percent": "round(100 * measured[16]['naive'])",
    "paged waste, percent": "round(100 * measured[16]['paged'])",
    "tokens": "[tokens, tight_tokens, sum(len(r.output) for r in static.done)]",
    "static and continuous steps": "[len(static.history), len(continuous.history)]",
    "times fewer steps": "round(fewer_steps, 2)",
    "24 blocks": "[tight.preemptions, len(tight.history), len(tight.done)]",
    "24 blocks, same tokens": "[r.output for r in sorted(tight.done, key=lambda r: r.id)] == unconstrained",
    "work saved": "round(work_ratio)",
    "the gap is wide": "min(gaps) > 200 * rounding",
    "7B": "[per_token['7B, MHA'], per_token['7B, MHA'] * 2048, per_token['7B, MHA'] * 2048 * 16]",
    "70B": "[per_token['70B, GQA-8'], per_token['70B, GQA-8'] * 2048, per_token['70B, GQA-8'] * 2048 * 16]",
}
EXPECTED = {
    "parameters": 656_512,
    "bytes a token": 2_048,
    "kB for a full sequence": 1_049,
    "first tokens": [241, 43, 37, 163, 174, 3, 232, 7],
    "naive waste, percent": 48,
    "paged waste, percent": 13,
    "tokens": [891, 891, 891],
    "static and continuous steps": [187, 128],
    "times fewer steps": 1.46,
    "24 blocks": [15, 161, 24],
    "24 blocks, same tokens": True,
    "work saved": 17,
    "7B": [512 * 2**10, 2**30, 16 * 2**30],
    "70B": [320 * 2**10, 0.625 * 2**30, 10 * 2**30],
}

# The numbers of the prose, by cell and in their order: the code that must give each. None is a date, or an example
# that its own sentence sets up.
STEPS, STATIC_STEPS, TIGHT_STEPS = "len(continuous.history)", "len(static.history)", "len(tight.history)"
PREEMPTIONS, REQUESTS, PRINTED = "tight.preemptions", "len(requests)", None  # PRINTED: see the test of its own
PROSE: dict[str, list[str | None]] = {
    "title": [None],
    "kv-table-text": ["CONTEXT"],
    "kv-growth-text": ["round(weights * GIB / 2 / 1e9, 1)"],
    "kv-reading": [
        "next(n for n in range(64) if n * per_token['7B, MHA'] * CONTEXT / GIB > weights)",
        None,
        "shapes['7B, MHA']['n_kv_heads']",
    ],
    "draw-text": ["12"],
    "q-fragmentation-text": ["37", "16", "37", "16", "-37 % 16", "-37 % 16", "16 - 1"],
    "attention-text": [None],
    "attention-verify-text": ["lengths[1]", "lengths[2]"],
    "rope-text": ["10"],
    "proof-reading": [*(f"first_tokens[{n}]" for n in (0, 1, 2, 3, 4, 6)), "NEW * len(prompts)"],
    "near-ties-reading": ["2 ** (24 - 8)", "24", "1e-4", "len(prompts[2])", "NEW"],
    "flops-reading": [
        "round(work_ratio)",
        "sum(len(prompts[2]) + n for n in range(NEW))",
        "len(prompts[2]) + NEW - 1",
        "2000",
        "round(sum(37 + n for n in range(2000)) / (37 + 2000 - 1), -3)",
    ],
    "engine-rules": [None],
    "workload-text": [REQUESTS, "min(r.max_new for r in requests)", "max(r.max_new for r in requests)"],
    "engine-proof-reading": [f"{REQUESTS} - 1"],
    "memory-reading": [
        "round(100 * measured[16]['naive'])",
        "16",
        "round(100 * measured[16]['paged'])",
        "96 * 16",
        "64",
        "round(sum(len(r.prompt) + n for r in requests for n in range(1, r.stop_after - 1))"
        " / sum(r.stop_after - 2 for r in requests))",
    ],
    "block-size-reading": [
        "round(100 * measured[4]['paged'])",
        "64",
        "round(100 * measured[64]['paged'])",
        "16",
    ],
    "batching-reading": ["tokens", STATIC_STEPS, STEPS, "round(fewer_steps, 2)"],
    "preempt-text": ["24", "24 * 16", "max(len(r.prompt) + r.max_new - 1 for r in requests)"],
    "preempt-reading": [
        REQUESTS,
        "tight_tokens",
        PREEMPTIONS,
        TIGHT_STEPS,
        STEPS,
        REQUESTS,
        PRINTED,
        REQUESTS,
    ],
    "trap-reading": [PRINTED, PREEMPTIONS],
    "next-text": [None, None, None],
}


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    """The solution, run from a fresh kernel in a folder that has nothing to do with the repository."""
    notebook = read(SOURCE)
    wanted = FIGURES | {f"{cell} {n}": code for (cell, n), (_, code) in prose_numbers(notebook).items() if code}
    report = "import json\n" + "\n".join(
        ["_values = {}"]
        + [f"_values[{key!r}] = {code}" for key, code in wanted.items()]
        + ["print(json.dumps(_values))"]
    )
    notebook.cells.append(nbformat.v4.new_code_cell(report, id="report"))
    folder = tmp_path_factory.mktemp("elsewhere")
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return notebook


@pytest.fixture(scope="module")
def values(executed: nbformat.NotebookNode) -> dict[str, Any]:
    return json.loads(executed.cells[-1].outputs[0].text)


def test_the_solution_runs_and_earns_every_point(executed: nbformat.NotebookNode) -> None:
    earned = {}
    for cell in executed.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error", output
            assert output.get("name") != "stderr", f"nbgrader takes stderr for a failure; {cell.id} wrote {output.text}"
            if output.output_type == "execute_result" and cell.metadata.get("nbgrader", {}).get("grade"):
                earned[cell.metadata.nbgrader.grade_id] = ast.literal_eval(output.data["text/plain"])
    assert earned == {f"test_{name}": float(value) for name, value in CHAPTER.items()}


def test_every_figure_of_the_design_comes_out_of_the_code(values: dict[str, Any]) -> None:
    assert {key: values[key] for key in EXPECTED} == EXPECTED


def prose_numbers(notebook: nbformat.NotebookNode) -> dict[tuple[str, int], tuple[str, str | None]]:
    """Each number of the prose with the code that must give it: (cell id, n-th number) -> (as written, code)."""
    found = {}
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        text = re.sub(r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`", " ", cell.source, flags=re.DOTALL)
        # Single digits count, name and number things; percentages and all longer numbers are results.
        numbers = re.findall(r"(?<![\w.])(?:\d[\d,]*\.\d+|\d{1,3}(?:,\d{3})+|\d{2,}|\d(?=%))", text)
        codes = PROSE.get(cell.id, [])
        assert len(codes) == len(numbers), f"cell {cell.id} has the numbers {numbers}; PROSE lists {codes}"
        for n, (number, code) in enumerate(zip(numbers, codes, strict=True)):
            found[cell.id, n] = (number, code)
    return found


def test_every_number_of_the_prose_is_a_computed_one(values: dict[str, Any]) -> None:
    wrong = [
        f"{cell}: {written} is written, {code} is {values[f'{cell} {n}']}"
        for (cell, n), (written, code) in prose_numbers(read(SOURCE)).items()
        if code and float(written.replace(",", "")) != values[f"{cell} {n}"]
    ]
    assert not wrong, "\n".join(wrong)


def test_numbers_in_the_self_checks_are_computed_ones(values: dict[str, Any]) -> None:
    _, continuous = values["static and continuous steps"]
    _, tight, _ = values["24 blocks"]
    assert f"({tight} steps for {continuous} in section 8)" in QUESTIONS["q_preemption"].why["d"]
    assert f"about {values['work saved']} times slower" in QUESTIONS["q_proof"].why["b"]
    assert values["the gap is wide"], "the notebook says that the gap is hundreds of times wider than the rounding"


class FoldingRequest(Request):
    """Trap 1 of section 8: what is prefilled is the prompt alone, into which each preemption folds the output."""

    @property
    def tokens(self) -> list[int]:
        return self.prompt


def test_the_engine_as_first_printed_did_what_the_prose_says() -> None:
    """16 preemptions and 4 wrong outputs: two by folding twice, two by one token too many."""
    names = load_cells(SOURCE)

    class Printed(names["PreemptingEngine"]):
        def step(self) -> None:
            self._admit()  # trap 2: nobody retires between this and the decode
            self._make_room()
            self._decode()
            self._retire()

        def _preempt(self, request: Request) -> None:
            super()._preempt(request)
            request.prompt = request.prompt + request.output

    right, wrong = (
        chapter_workload(),
        [FoldingRequest(r.id, r.prompt, r.max_new, r.stop_after) for r in chapter_workload()],
    )
    names["Engine"](names["model"], 96).run(right)
    engine = Printed(names["model"], 24).run(wrong)
    differing = [(a.output, b.output) for a, b in zip(wrong, right, strict=True) if a.output != b.output]
    too_long = [a for a, b in differing if len(a) == len(b) + 1]
    assert (engine.preemptions, len(engine.done)) == (16, 24)
    assert (len(differing), len(too_long)) == (4, 2)


# Wrong answers ----------------------------------------------------------------------------------------------------

_WRITE = "        pool.write(index, slots, k, v)\n"
_ATTEND = """        out = torch.stack(
            [
                paged_attention(q[row], pool, index, manager.tables[seq_id], manager.lengths[seq_id])
                for row, seq_id in enumerate(seq_ids)
            ]
        )  # (B, n_heads, head_dim)
"""

# (what is wrong, the cell, what stands there, what the student wrote instead, what the message must speak of)
WRONG = [
    ("forgets the values", "kv_bytes", "return 2 * n_layers", "return n_layers", "a key and a value"),
    ("bytes as a float", "kv_bytes", "* bytes_per_number", "* float(bytes_per_number)", "whole numbers"),
    # Section 2
    (
        "off by one at a block boundary: a block too many",
        "block_manager",
        "return -(-num_tokens // self.block_size)",
        "return num_tokens // self.block_size + 1",
        "block boundary",
    ),
    (
        "off by one at a block boundary: a block too few",
        "block_manager",
        "return -(-num_tokens // self.block_size)",
        "return max(1, num_tokens // self.block_size)",
        "block boundary",
    ),
    (
        "takes the next block one token early",
        "block_manager",
        "if self.lengths[seq_id] == len(self.tables[seq_id]) * self.block_size:",
        "if self.lengths[seq_id] + 1 == len(self.tables[seq_id]) * self.block_size and self.free:",
        "block boundary",
    ),
    (
        "needs a free block even when the last one has room",
        "block_manager",
        "return self.lengths[seq_id] < len(self.tables[seq_id]) * self.block_size or len(self.free) > 0",
        "return len(self.free) > 0",
        "block boundary",
    ),
    (
        "release forgets the last block",
        "block_manager",
        "self.free.extend(self.tables.pop(seq_id))",
        "self.free.extend(self.tables.pop(seq_id)[:-1])",
        "release did not give back every block",
    ),
    (
        "release gives the blocks back twice",
        "block_manager",
        "self.free.extend(self.tables.pop(seq_id))",
        "self.free.extend(self.tables.pop(seq_id) * 2)",
        "never in both",
    ),
    (
        "release keeps the length",
        "block_manager",
        "del self.lengths[seq_id]",
        "pass",
        "lengths",
    ),
    (
        "a block is lent and not taken",
        "block_manager",
        "self.tables[seq_id].append(self.free.popleft())",
        "self.tables[seq_id].append(self.free[0])",
        "never in both",
    ),
    (
        "the slot without the table",
        "block_manager",
        "block = self.tables[seq_id][position // self.block_size]",
        "block = position // self.block_size",
        "the table picks the block",
    ),
    (
        "append_slot returns the slot before",
        "block_manager",
        "return self.slot(seq_id, self.lengths[seq_id] - 1)",
        "return self.slot(seq_id, self.lengths[seq_id] - 2)",
        "slot of the new token",
    ),
    (
        "a failed admission leaves a table behind",
        "block_manager",
        "if not self.can_admit(num_tokens):",
        "self.tables[seq_id] = []\n        if not self.can_admit(num_tokens):",
        "tables",
    ),
    # Section 3
    (
        "gathers without cutting to the length",
        "attention",
        "return keys[:length], values[:length]",
        "return keys, values",
        "cut to the sequence's length",
    ),
    (
        "reads layer 0 always",
        "attention",
        "pool.keys[layer, table]",
        "pool.keys[0, table]",
        "another layer's",
    ),
    (
        "reads the blocks in the order of their numbers",
        "attention",
        "pool.keys[layer, table]",
        "pool.keys[layer, sorted(table)]",
        "follow the block table",
    ),
    ("no scale", "attention", " / q.shape[-1] ** 0.5", "", "square root of head_dim"),
    (
        "GQA heads go round in turn",
        "attention",
        "k = k.repeat_interleave(group, dim=1)",
        "k, v, group = k.repeat(1, group, 1), v.repeat(1, group, 1), 1",
        "GQA",
    ),
    ("softmax over the heads", "attention", "scores.softmax(dim=-1)", "scores.softmax(dim=0)", "softmax"),
    # Section 4
    (
        "RoPE at position 0 for all",
        "decode",
        "model.rope_frequencies(x.device)[positions]",
        "model.rope_frequencies(x.device)[[0] * len(positions)]",
        "position",
    ),
    (
        "RoPE at the first sequence's position for all",
        "decode",
        "model.rope_frequencies(x.device)[positions]",
        "model.rope_frequencies(x.device)[positions[:1] * len(positions)]",
        "a position of its own",
    ),
    (
        "RoPE one position late",
        "decode",
        "model.rope_frequencies(x.device)[positions]",
        "model.rope_frequencies(x.device)[[p + 1 for p in positions]]",
        "length - 1",
    ),
    ("keys never written", "decode", "pool.write(index, slots, k, v)", "pass", "write the new keys"),
    (
        "attends first, writes afterwards",
        "decode",
        _WRITE + _ATTEND,
        _ATTEND + _WRITE,
        "Write first, then attend",
    ),
    (
        "does not see its own key",
        "decode",
        "manager.tables[seq_id], manager.lengths[seq_id])",
        "manager.tables[seq_id], manager.lengths[seq_id] - 1)",
        "own",
    ),
    (
        "rows mixed up",
        "decode",
        "return model.unembed(model.norm(x))",
        "return model.unembed(model.norm(x)).flip(0)",
        "mixed up",
    ),
    # Section 5
    (
        "static admission",
        "engine",
        "if self.running and not self.continuous:",
        "if self.running:",
        "static batching",
    ),
    (
        "continuous whatever was asked for",
        "engine",
        "if self.running and not self.continuous:",
        "if False:",
        "continuous=False",
    ),
    (
        "one token too many after a prefill that was the last",
        "engine",
        "self._retire()  # a prefill",
        "pass  # a prefill",
        "one token too many",
    ),
    (
        "admits one a step",
        "engine",
        "while self.waiting and len(self.running) < self.max_batch:",
        "for _ in range(1 if self.waiting and len(self.running) < self.max_batch else 0):",
        "not one a step",
    ),
    (
        "overtakes the head that does not fit",
        "engine",
        "            request = self.waiting[0]\n",
        "            fits = [r for r in self.waiting if self.manager.can_admit(len(r.tokens))]\n"
        "            request = (fits or self.waiting)[0]\n"
        "            self.waiting.remove(request)\n            self.waiting.appendleft(request)\n",
        "first come, first served",
    ),
    (
        "one more than max_batch",
        "engine",
        "len(self.running) < self.max_batch",
        "len(self.running) <= self.max_batch",
        "max_batch",
    ),
    (
        "retires without giving blocks back",
        "engine",
        "            self.manager.release(request.id)\n",
        "",
        "blocks",
    ),
    (
        "retires a step late",
        "engine",
        "        self._decode()\n        self._retire()\n",
        "        self._decode()\n",
        "as soon as the last token is made",
    ),
    (
        "decodes before making room",
        "engine",
        "        self._make_room()\n        self._decode()\n",
        "        self._decode()\n        self._make_room()\n",
        "make room first",
    ),
    (
        "admits for ever when the head does not fit",
        "engine",
        "                break\n",
        "                continue\n",
        "never ends",
    ),
    ("forgets who is done", "engine", "            self.done.append(request)\n", "", "`done`"),
    # Section 6
    (
        "the mean of the steps' shares",
        "memory",
        '"paged": 1 - used / allocated}',
        '"paged": sum(1 - r["used"] / r["allocated"] for r in history if r["allocated"])'
        ' / sum(1 for r in history if r["allocated"])}',
        "mean of the steps' shares",
    ),
    ("what is used, not what is wasted", "memory", '"paged": 1 - used', '"paged": used', "the waste is the rest"),
    ("no prediction", "memory_prediction", "{4: 1.5 / (49 + 1.5), 64: 31.5 / (49 + 31.5)}", "{4: 0.5}", "guess"),
    # Section 7
    (
        "counts the first step twice",
        "static_steps",
        "max(batch) - 1",
        "max(batch)",
        "its prefill and one from its decode",
    ),
    ("the mean of a batch", "static_steps", "max(batch) - 1", "sum(batch) // len(batch)", "longest member"),
    # Section 8
    (
        "folds the generated tokens into the prompt",
        "preempt",
        "        self.preemptions += 1\n",
        "        self.preemptions += 1\n        request.prompt = request.prompt + request.output\n",
        "folded",
    ),
    (
        "drops the output",
        "preempt",
        "        self.preemptions += 1\n",
        "        self.preemptions += 1\n        request.output = []\n",
        "the output was lost",
    ),
    ("preempts the oldest", "preempt", "self._preempt(self.running[-1])", "self._preempt(self.running[0])", "youngest"),
    ("back of the queue", "preempt", "self.waiting.appendleft(request)", "self.waiting.append(request)", "front"),
    ("loses the preempted", "preempt", "self.waiting.appendleft(request)", "pass", "must come back"),
    ("keeps the blocks", "preempt", "        self.manager.release(request.id)\n", "", ""),
    ("does not count", "preempt", "        self.preemptions += 1\n", "", "count each preemption"),
    (
        "preempts all but the oldest",
        "preempt",
        "            while request in self.running and not self.manager.can_append(request.id):\n"
        "                self._preempt(self.running[-1])\n",
        "            if not self.manager.can_append(request.id):\n"
        "                for other in self.running[:0:-1]:\n"
        "                    self._preempt(other)\n",
        "one request at a time",
    ),
    *(
        (f"answers {letter}", name, f'= "{question.answer}"\n###', f'= "{letter}"\n###', why[:30])
        for name, question in QUESTIONS.items()
        for letter, why in question.why.items()
        if letter != question.answer
    ),
]


def with_answer(notebook: nbformat.NotebookNode, cell: str, old: str, new: str) -> nbformat.NotebookNode:
    """The notebook with one answer changed."""
    source = answers_of(notebook)[cell].source
    assert source.count(old) >= 1, f"the solution of {cell} no longer has {old!r}"
    answers_of(notebook)[cell].source = source.replace(old, new, 1)
    return notebook


@pytest.mark.parametrize(("what", "cell", "old", "new", "idea"), WRONG, ids=[f"{w[1]}: {w[0]}" for w in WRONG])
def test_a_wrong_answer_fails_its_own_cell_and_no_other(
    what: str, cell: str, old: str, new: str, idea: str, tmp_path: Path
) -> None:
    nbformat.write(with_answer(read(SOURCE), cell, old, new), tmp_path / "wrong.ipynb")
    names = load_cells(tmp_path / "wrong.ipynb")
    failing = {}
    for name, check in CELLS.items():
        outcomes = run_cases(check, names, check.check.cases)
        if not all(outcome.passed for outcome in outcomes):
            failing[name] = next(outcome.message for outcome in outcomes if not outcome.passed)
    own = "memory" if cell == "memory_prediction" else cell
    assert list(failing) == [own], failing
    message = " ".join(failing[own].split())
    assert idea in message, failing[own]
    assert all(len(line) <= 83 for line in failing[own].splitlines()), "nbgrader validate would cut this"


# Other ways to be right: (what is different, the cell, what stands there, what stands there instead).
RIGHT = [
    (
        "takes blocks from the other end",
        "block_manager",
        "[self.free.popleft() for _ in range(self.blocks_for(num_tokens))]",
        "[self.free.pop() for _ in range(self.blocks_for(num_tokens))]",
    ),
    (
        "a truthy answer",
        "block_manager",
        "return self.lengths[seq_id] < len(self.tables[seq_id]) * self.block_size or len(self.free) > 0",
        "return self.lengths[seq_id] % self.block_size or len(self.free)",
    ),
    (
        "PyTorch's own attention",
        "attention",
        "    group = q.shape[0] // k.shape[1]\n",
        "    return F.scaled_dot_product_attention(\n"
        "        q[:, None], k.transpose(0, 1), v.transpose(0, 1), enable_gqa=True\n    )[:, 0]\n"
        "    group = q.shape[0] // k.shape[1]\n",
    ),
    (
        "gathers token by token",
        "attention",
        "    keys = pool.keys[layer, table].flatten(0, 1)",
        "    places = [(table[p // pool.block_size], p % pool.block_size) for p in range(length)]\n"
        "    return [torch.stack([m[layer, b, o] for b, o in places]) for m in (pool.keys, pool.values)]\n"
        "    keys = pool.keys[layer, table].flatten(0, 1)",
    ),
    (
        "one sequence at a time",
        "decode",
        "    positions = [",
        "    if len(seq_ids) > 1:\n"
        "        pairs = zip(seq_ids, tokens, strict=True)\n"
        "        return torch.cat([decode(model, pool, manager, [s], [t]) for s, t in pairs])\n"
        "    positions = [",
    ),
    (
        "slots from the table itself",
        "decode",
        "manager.slot(*where) for where in zip(seq_ids, positions, strict=True)",
        "manager.tables[s][p // pool.block_size] * pool.block_size + p % pool.block_size"
        " for s, p in zip(seq_ids, positions, strict=True)",
    ),
    (
        "attention of its own",
        "decode",
        "paged_attention(q[row], pool, index, manager.tables[seq_id], manager.lengths[seq_id])",
        "F.scaled_dot_product_attention(q[row][:, None],"
        " *(m[index, manager.tables[seq_id]].flatten(0, 1)[: manager.lengths[seq_id]].transpose(0, 1)"
        " for m in (pool.keys, pool.values)), enable_gqa=True)[:, 0]",
    ),
    (
        "retires inside the admission, one by one",
        "engine",
        "            self.running.append(request)\n",
        "            self.running.append(request)\n            self._retire()\n",
    ),
    (
        "retires at the end of the admission",
        "engine",
        "        self._admit()\n        self._retire()  # a prefill makes a token too, and it may have been the last\n",
        "        self._admit()\n        self._retire()\n        self._retire()\n",
    ),
    (
        "rebuilds the list of running requests",
        "engine",
        "            self.running.remove(request)\n",
        "            self.running = [other for other in self.running if other is not request]\n",
    ),
    (
        "numbers of NumPy's",
        "memory",
        '"paged": 1 - used / allocated',
        '"paged": torch.tensor(1 - used / allocated).double().numpy()[()]',
    ),
    (
        "asks forgiveness, not permission",
        "preempt",
        "            while request in self.running and not self.manager.can_append(request.id):\n"
        "                self._preempt(self.running[-1])\n"
        "            if request in self.running:\n"
        "                self.manager.append_slot(request.id)\n",
        "            while request in self.running:\n"
        "                try:\n"
        "                    self.manager.append_slot(request.id)\n"
        "                    break\n"
        "                except OutOfBlocks:\n"
        "                    self._preempt(self.running[-1])\n",
    ),
    (
        "counts its way through the running",
        "preempt",
        "        for request in list(self.running):\n"
        "            while request in self.running and not self.manager.can_append(request.id):\n"
        "                self._preempt(self.running[-1])\n"
        "            if request in self.running:\n"
        "                self.manager.append_slot(request.id)\n",
        "        served = 0\n"
        "        while served < len(self.running):\n"
        "            if self.manager.can_append(self.running[served].id):\n"
        "                self.manager.append_slot(self.running[served].id)\n"
        "                served += 1\n"
        "            else:\n"
        "                self._preempt(self.running[-1])\n",
    ),
]


@pytest.mark.parametrize(("what", "cell", "old", "new"), RIGHT, ids=[f"{r[1]}: {r[0]}" for r in RIGHT])
def test_another_right_answer_passes(what: str, cell: str, old: str, new: str, tmp_path: Path) -> None:
    names = load_cells(_write(with_answer(read(SOURCE), cell, old, new), tmp_path))
    check = CELLS[cell]
    for outcome in run_cases(check, names, check.check.cases + tuple(HIDDEN[cell])):
        assert outcome.passed, outcome.message


def test_points_are_partial_and_plain_floats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = load_cells(SOURCE)
    hidden = SOURCE.parent / "hidden_chapter.json"
    assert check_cell("block_manager", names, hidden) == 6.0
    # Right for blocks of 4 alone: most visible cases pass, most of the grader's do not.
    names = load_cells(_write(with_answer(read(SOURCE), "block_manager", *_BLOCKS_OF_4), tmp_path))
    earned = check_cell("block_manager", names, hidden)
    assert type(earned) is float
    assert earned == round(6 * (VISIBLE_SHARE * 4 / 5 + (1 - VISIBLE_SHARE) * 1 / 5), 4)
    with pytest.raises(CellFailed, match="1 of 5 cases fail"):
        check_cell("block_manager", names)
    assert "further cases" in capsys.readouterr().out
    assert points(CELLS["decode"], [True, False], [True, True, False, True]) == round(4 * (0.4 / 2 + 0.6 * 3 / 4), 4)
    assert points(CELLS["decode"], [True, True], []) == 4.0


_BLOCKS_OF_4 = ("return -(-num_tokens // self.block_size)", "return (num_tokens + 3) // 4")


def _write(notebook: nbformat.NotebookNode, folder: Path) -> Path:
    nbformat.write(notebook, folder / "changed.ipynb")
    return folder / "changed.ipynb"


def test_a_cell_that_does_not_run_costs_itself_alone(tmp_path: Path) -> None:
    for cell in ("block_manager", "engine"):
        notebook = read(SOURCE)
        answers_of(notebook)[cell].source = "class Broken(:\n"
        names = load_cells(_write(notebook, tmp_path))
        failing = [n for n, c in CELLS.items() if not all(o.passed for o in run_cases(c, names, c.check.cases))]
        assert failing == [cell]


def test_the_graders_cases_are_what_their_maker_makes() -> None:
    stored = (SOURCE.parent / "hidden_chapter.json").read_text(encoding="utf-8")
    assert stored == make_hidden_chapter.text(), "run `uv run python -m solutions.m13.make_hidden_chapter`"
    assert set(HIDDEN) == set(CHAPTER) - set(QUESTIONS), "all but the self-checks have cases that nobody has seen"


# The student's version --------------------------------------------------------------------------------------------


def test_run_all_stops_at_the_first_unwritten_cell_and_says_what_to_write() -> None:
    notebook = read(RELEASED)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3")
    with pytest.raises(CellExecutionError, match="kv_bytes_per_token is not written yet"):
        client.execute()
    ran = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.execution_count]
    assert ran[-1].metadata.nbgrader.grade_id == "test_kv_bytes"


def test_nbgrader_validate_names_what_to_write_in_every_graded_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = Validator().validate(str(RELEASED))
    assert set(result) == {"failed"}, "no locked cell has changed, and none passes"
    by_source = {item["source"]: item["error"] for item in result["failed"]}
    for name, check in CELLS.items():
        errors = [error for source, error in by_source.items() if f'check_cell("{name}"' in source]
        assert len(errors) == 1, name
        error = " ".join(html.unescape(errors[0]).split())
        assert "is not written yet" in error, error
        assert check.task in error, error


def test_the_students_version_holds_no_answer() -> None:
    solution, student = answers_of(read(SOURCE)), read(RELEASED)
    text = RELEASED.read_text(encoding="utf-8")
    assert "BEGIN SOLUTION" not in text and "HIDDEN" not in text and "hidden_chapter" not in text
    shown = {line.strip() for cell in student.cells for line in cell.source.splitlines()}
    given = {line.strip() for line in (repo_root() / "src/ai_playground/chapter.py").read_text().splitlines()}
    for cell in read(SOURCE).cells:
        outside = re.sub(r"### BEGIN (\w+).*?### END \1", "", cell.source, flags=re.DOTALL)
        given |= {line.strip() for line in outside.splitlines()}
    for name, cell in solution.items():
        regions = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source, re.DOTALL)
        lines = {line.strip() for region in regions for line in region.splitlines() if len(line.strip()) > 20}
        assert not (lines - given) & shown, f"{name}: {(lines - given) & shown}"
    assert set(answers_of(student)) == set(solution)
