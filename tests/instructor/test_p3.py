"""p3's checks: what the wrong solutions get told, that right ones pass, and the parts that decide it."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ai_playground.checkout import repo_root
from checking.check import Check, Result
from checking.judging import run_check
from checking.reference import greedy
from checking.supervisor import Worker
from milestones.p3 import decoders, p3, sampler
from milestones.p3.decoder_probes import forbidden_imports
from milestones.p3.given_models import build_gpt
from milestones.points import P3, P3_SHOWN_WHOLE
from projects.p3_kv_serve.given_model import GPTConfig, given_model

FOLDER = repo_root() / "solutions" / "p3_kv_serve"
SOLUTION = (FOLDER / "kv_generate.py").read_text(encoding="utf-8")
CHECKS = {check.name: check for check in p3.CHECKS}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def run(source: str, folder: Path, worker: Worker, checks: list[Check]) -> dict[str, Result]:
    (folder / "kv_generate.py").write_text(source, encoding="utf-8")
    return {check.name: run_check(check, folder, worker) for check in checks}


# ---- wrong solutions -------------------------------------------------------------------------------------------

ADDED = """\
        keys = torch.cat((cache[index][0], k), dim=1)  # (n_heads, context, head_dim)
        values = torch.cat((cache[index][1], v), dim=1)
        cache[index] = keys, values
"""
FED_FORWARD = """\
        x = x + block.proj(mixed.transpose(0, 1).flatten(1))  # (T, dim)
        x = x + block.down(F.gelu(block.up(block.ln_2(x))))
"""
NEW_CACHE = "    cache = [(empty, empty)] * config.n_layers\n"
MASK = "hidden = torch.arange(past + len(new)) > positions[:, None]  # (T, context)"
STEP = "logits = decode(model, cache, tokens[done:])"
DRAW = """\
    choice = torch.multinomial(kept / kept.sum(), num_samples=1, generator=generator)
    return int(ids[choice])
"""
KEPT = "    kept = probs.masked_fill(mass_before >= p, 0.0)  # the token that reaches p is kept\n"
SORTED = "    probs, ids = logits.float().softmax(dim=-1).sort(descending=True)\n"

# name: (the check that must fail, words that its message must have, [(old, new) in the solution])
WRONG: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    # generate_full
    "the first row of logits": (
        "p3.full_tokens",
        "last position's row",
        [("logits[0, -1].argmax()", "logits[0, 0].argmax()")],
    ),
    "only the newest token goes in": (
        "p3.full_tokens",
        "does the whole sequence",
        [("logits = model(torch.tensor([tokens]))", "logits = model(torch.tensor([tokens[-1:]]))")],
    ),
    "the prompt is not returned": (
        "p3.full_tokens",
        "the prompt comes first",
        [("[0, -1].argmax()))\n    return tokens", "[0, -1].argmax()))\n    return tokens[len(prompt_ids):]")],
    ),
    "the caller's list grows": (
        "p3.full_tokens",
        "begin with a copy",
        [
            (
                "tokens = list(prompt_ids)\n    for _ in range(n_new):\n        logits = model",
                "tokens = prompt_ids\n    for _ in range(n_new):\n        logits = model",
            )
        ],
    ),
    "one token too many": (
        "p3.full_tokens",
        "their number",
        [("for _ in range(n_new):\n        logits = model", "for _ in range(n_new + 1):\n        logits = model")],
    ),
    "tensors in the list": (
        "p3.full_tokens",
        "use `int(...)`",
        [("int(logits[0, -1].argmax())", "logits[0, -1].argmax()")],
    ),
    "ties go to the highest id": (
        "p3.full_edges",
        "the lowest token id",
        [("int(logits[0, -1].argmax())", "logits.shape[-1] - 1 - int(logits[0, -1].flip(0).argmax())")],
    ),
    "the limit is refused too": (
        "p3.full_edges",
        "max_seq_len",
        [("n_new > config.max_seq_len", "n_new >= config.max_seq_len")],
    ),
    "one over the limit is not refused": (
        "p3.full_refusals",
        "one more than max_seq_len",
        [("n_new > config.max_seq_len", "n_new > config.max_seq_len + 1")],
    ),
    "an empty prompt raises something else": (
        "p3.cached_refusals",
        "the prompt is empty",
        [("if not prompt_ids:", "if False:")],
    ),
    # generate_cached: positions, mask, norms
    "position off by one": (
        "p3.cached_tokens",
        "positions: the new tokens get one too few",
        [("model.position_embedding(positions)", "model.position_embedding(positions - int(past > 0))")],
    ),
    "every new token is at position 0": (
        "p3.cached_tokens",
        "positions: the new tokens get 0 each time",
        [("model.position_embedding(positions)", "model.position_embedding(positions - past)")],
    ),
    "mask missing in the prefill": (
        "p3.cached_tokens",
        "the causal mask in the prefill",
        [(MASK, "hidden = torch.zeros(len(new), past + len(new), dtype=torch.bool)")],
    ),
    "stale ln_2 input": (
        "p3.cached_tokens",
        "ln_2 normalises x after attention was added to it, not a stale x",
        [(FED_FORWARD, "        stale = block.ln_2(x)\n" + FED_FORWARD.replace("block.ln_2(x)", "stale"))],
    ),
    "stale ln_1 input": (
        "p3.cached_tokens",
        "not a stale one",
        [
            (
                "    for index, block in enumerate(model.blocks):\n        h = block.ln_1(x)",
                "    first = x\n    for index, block in enumerate(model.blocks):\n"
                "        h = block.ln_1(first if past else x)",
            ),
        ],
    ),
    "ln_1 skipped in decode": (
        "p3.cached_tokens",
        "from ln_1(x), in the prefill and in each decode",
        [("h = block.ln_1(x)", "h = x if past else block.ln_1(x)")],
    ),
    "ln_f skipped": ("p3.cached_tokens", "each ln", [("model.ln_f(x[-1])", "x[-1]")]),
    # generate_cached: the cache
    "cache not copied": (
        "p3.cached_tokens",
        "the cache is not copied",
        [
            ("past = cache[0][0].shape[1]", "past = sum(k.shape[1] for k, _ in cache[0])"),
            (NEW_CACHE, "    cache = [[(empty, empty)] for _ in model.blocks]\n    buffers.clear()\n"),
            ("Cache = list", "buffers = {}\nCache = list"),
            (
                ADDED,
                "        if past:  # each step writes into the same memory\n"
                "            k, v = buffers.setdefault(index, torch.stack((k, v))).copy_(torch.stack((k, v)))\n"
                "        cache[index].append((k, v))\n"
                "        keys, values = (torch.cat(parts, dim=1) for parts in zip(*cache[index]))\n",
            ),
        ],
    ),
    "new tokens not added": (
        "p3.cached_tokens",
        "the cache does not grow",
        [
            ("new: list[int]) -> Tensor:", "new: list[int], past: int) -> Tensor:"),
            ("    past = cache[0][0].shape[1]\n", ""),
            (MASK, "hidden = torch.arange(cache[0][0].shape[1] + len(new)) > positions[:, None]"),
            (
                "        cache[index] = keys, values\n",
                "        if past == 0:\n            cache[index] = keys, values\n",
            ),
            ("tokens[done:])\n", "tokens[done:], done)\n"),
        ],
    ),
    "the new token does not see itself": (
        "p3.cached_tokens",
        "a new token does not see itself",
        [("> positions[:, None]", "> positions[:, None] - int(past > 0)")],
    ),
    "cache of the last layer only": (
        "p3.cached_tokens",
        "Each layer has keys and values of its own",
        [(ADDED, ADDED.replace("(cache[index]", "(cache[-1]"))],
    ),
    "cache kept between calls": (
        "p3.cached_tokens",
        "something is kept between calls",
        [
            (NEW_CACHE, "    cache = kept.setdefault(id(model), [(empty, empty)] * config.n_layers)\n"),
            ("Cache = list", "kept = {}\nCache = list"),
        ],
    ),
    "keys of another head": (
        "p3.cached_tokens",
        "each query with the keys of its own head",
        [("q @ keys.transpose(1, 2)", "q @ keys.flip(0).transpose(1, 2)")],
    ),
    "scale missing": ("p3.cached_tokens", "sqrt(head_dim)", [(" / math.sqrt(config.head_dim)", "")]),
    "the prefill's token is dropped": (
        "p3.cached_tokens",
        "the first new token is missing",
        [
            (
                "        tokens.append(int(logits.argmax()))\n    return tokens\n",
                "        tokens.append(int(logits.argmax()))\n"
                "    tokens.append(int(decode(model, cache, tokens[done:]).argmax()))\n"
                "    return prompt_ids + tokens[len(prompt_ids) + 1 :]\n",
            )
        ],
    ),
    "the full forward pass in disguise": (
        "p3.cached_work",
        "decode from the cache",
        [(STEP, "logits = model(torch.tensor([tokens]))[0, -1]")],
    ),
    "the cache is thrown away": (
        "p3.cached_work",
        "go through the layers again",
        [(STEP, "cache = [(empty, empty)] * config.n_layers\n        logits = decode(model, cache, tokens)")],
    ),
    "work hidden in a thread": (
        "p3.cached_work",
        "in this thread",
        [
            (STEP, "logits = ThreadPoolExecutor().submit(unseen, model, cache, tokens[done:]).result()"),
            ("import math\n", "import math\nfrom concurrent.futures import ThreadPoolExecutor\n"),
            (
                "### END SOLUTION\n\n\n@torch.no_grad()\ndef generate_full",
                "unseen = torch.no_grad()(lambda *a: decode(*a))\n\n\n@torch.no_grad()\ndef generate_full",
            ),
        ],
    ),
    # top_p_sample
    "un-renormalised mass": (
        "p3.sampler_distribution",
        "not renormalised",
        [
            (
                DRAW,
                "    u = torch.rand((), generator=generator)\n"
                "    rank = int((kept.cumsum(0) < u).sum())\n"
                "    return int(ids[min(rank, int((kept > 0).sum()) - 1)])\n",
            )
        ],
    ),
    "un-renormalised mass, the rest to the first token": (
        "p3.sampler_distribution",
        "not renormalised",
        [
            (
                DRAW,
                "    u = torch.rand((), generator=generator)\n"
                "    return int(ids[int((kept.cumsum(0) >= u).int().argmax())])\n",
            )
        ],
    ),
    "threshold token dropped": (
        "p3.sampler_distribution",
        "the token that makes the mass reach p is dropped",
        [(KEPT, "    kept = probs.masked_fill(probs.cumsum(dim=-1) > p, 0.0)\n")],
    ),
    "sorted index instead of token id": (
        "p3.sampler_distribution",
        "an index into the sorted probabilities",
        [("int(ids[choice])", "int(choice)")],
    ),
    "one token more when the mass is exactly p": (
        "p3.sampler_edges",
        "One token too many".lower(),
        [("mass_before >= p", "mass_before > p")],
    ),
    "p ignored": ("p3.sampler_distribution", "p is ignored", [("mass_before >= p", "mass_before > 1")]),
    "all of the nucleus alike": (
        "p3.sampler_distribution",
        "drawn evenly",
        [("kept / kept.sum()", "(kept > 0).float()")],
    ),
    "greedy": ("p3.sampler_distribution", "nothing is drawn", [("int(ids[choice])", "int(ids[0])")]),
    "sorted the wrong way": ("p3.sampler_distribution", "largest first", [("descending=True", "descending=False")]),
    "another temperature": (
        "p3.sampler_distribution",
        "the frequencies are not",
        [("kept / kept.sum()", "kept ** 2")],
    ),
    "exp without the maximum subtracted": (
        "p3.sampler_edges",
        "RuntimeError",  # from multinomial: it names the line, and the input says why
        [("logits.float().softmax(dim=-1)", "(logits.float().exp() / logits.float().exp().sum())")],
    ),
    "the caller's logits are changed": (
        "p3.sampler_distribution",
        "written into",
        [(SORTED, SORTED + "    logits[ids[probs.cumsum(dim=-1) - probs >= p]] = -math.inf\n")],
    ),
    "torch's global random state": (
        "p3.sampler_generator",
        "pass generator=generator",
        [("num_samples=1, generator=generator", "num_samples=1")],
    ),
    "a new generator each time": (
        "p3.sampler_generator",
        "no new one with a seed of its own",
        [("num_samples=1, generator=generator", "num_samples=1, generator=torch.Generator().manual_seed(0)")],
    ),
    "a tensor instead of an int": (
        "p3.sampler_distribution",
        "use `int(...)`",
        [("return int(ids[choice])", "return ids[choice]")],
    ),
    "p is not checked": ("p3.sampler_refusals", "p=0.0 is outside", [("if not 0 < p <= 1:", "if False:")]),
    # the rule
    "the library's sampler": (
        "p3.no_inference_import",
        "kv_generate.py:8: from ai_playground.inference import sample_top_p",
        [("\nimport torch\n", "\nfrom ai_playground.inference import sample_top_p\nimport torch\n")],
    ),
    "the library, by a name made at run time": (
        "p3.no_inference_import",
        "put together at run time",
        [
            (
                "### END SOLUTION\n\n\n@torch.no_grad()\ndef generate_full",
                '__import__("importlib").import_module("ai_" + "playground.inference")\n\n\n'
                "@torch.no_grad()\ndef generate_full",
            )
        ],
    ),
    # whatever it is
    "an exception": (
        "p3.cached_tokens",
        "kv_generate.py",
        [(STEP, "logits = decode(model, cache, tokens[done:])[:, 0]")],
    ),
    "a NotImplementedError of torch's": (
        "p3.cached_tokens",
        "kv_generate.py",
        [(STEP, STEP + "\n        logits = logits - (logits > 0)")],
    ),
    "a loop without an end": (
        "p3.full_tokens",
        "a loop that never ends",
        [
            (
                "for _ in range(n_new):\n        logits = model",
                "while True:\n        tokens = tokens[: model.config.max_seq_len - 1]\n        logits = model",
            )
        ],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_solution_fails_and_is_told_why(name: str, tmp_path: Path, worker: Worker) -> None:
    check, words, changes = WRONG[name]
    source = SOLUTION
    for old, new in changes:
        assert source.count(old) == 1, f"the solution has changed: {source.count(old)} times {old!r}"
        source = source.replace(old, new)
    first = dataclasses.replace(CHECKS[check], limit=8.0 if "without an end" in name else CHECKS[check].limit)
    if check in ("p3.full_tokens", "p3.cached_tokens", "p3.sampler_distribution"):  # one input is enough, and faster
        first = dataclasses.replace(first, cases=first.cases[:1])
    (result,) = run(source, tmp_path, worker, [first]).values()
    print(result.message)  # for a reader: pytest -s
    assert result.status == "failed"
    assert words in result.message
    assert f'uv run pytest projects/p3_kv_serve -k "p3 and {check[3:]}"' in result.message


# ---- right solutions -------------------------------------------------------------------------------------------

# Preallocated slabs, the prompt's keys and values caught by hooks during the one full forward pass, weights used as
# matrices, one head at a time; the sampler is a walk along the distribution in plain Python.
ANOTHER_STYLE = """
import math

import torch

class Decoder:
    def __init__(self, model, prompt, room):
        self.model, self.length = model, len(prompt)
        c = model.config
        self.k = torch.full((c.n_layers, room, c.dim), float("nan"))
        self.v = torch.full((c.n_layers, room, c.dim), float("nan"))
        handles = [b.qkv.register_forward_hook(self.catch(i)) for i, b in enumerate(model.blocks)]
        try:
            self.logits = model(torch.tensor(prompt).unsqueeze(0))[0, -1]
        finally:
            for handle in handles:
                handle.remove()

    def catch(self, i):
        def hook(module, inputs, output):
            _, self.k[i, : self.length], self.v[i, : self.length] = output[0].tensor_split(3, dim=1)
        return hook

    def step(self, token):
        m, at = self.model, self.length
        size = m.config.dim // m.config.n_heads
        x = m.token_embedding.weight[token] + m.position_embedding.weight[at]
        for i, b in enumerate(m.blocks):
            qkv = b.qkv.weight @ b.ln_1(x) + b.qkv.bias
            q, self.k[i, at], self.v[i, at] = qkv.tensor_split(3)
            heads = []
            for start in range(0, m.config.dim, size):
                part = slice(start, start + size)
                scores = self.k[i, : at + 1, part] @ q[part] * size**-0.5
                heads.append(torch.softmax(scores, 0) @ self.v[i, : at + 1, part])
            x = x + b.proj(torch.cat(heads))
            x = x + b.down(torch.nn.functional.gelu(b.up(b.ln_2(x))))
        self.length += 1
        self.logits = m.head(m.ln_f(x))

def refuse(model, ids, n):
    size, most = model.config.vocab_size, model.config.max_seq_len
    if len(ids) == 0:
        raise ValueError("empty prompt")
    bad = [i for i in ids if i < 0 or i >= size]
    if bad:
        raise ValueError(f"ids {bad} are not among the {size} of the vocabulary")
    if n < 0 or len(ids) + n > most:
        raise ValueError(f"cannot make {n} tokens after {len(ids)}: the model takes {most} in all")

def best(logits):
    return logits.tolist().index(max(logits.tolist()))

def generate_full(model, prompt_ids, n_new):
    refuse(model, prompt_ids, n_new)
    out = prompt_ids[:]
    while len(out) < len(prompt_ids) + n_new:
        out += [best(model(torch.tensor([out], dtype=torch.long))[0][-1])]
    return out

def generate_cached(model, prompt_ids, n_new):
    refuse(model, prompt_ids, n_new)
    if not n_new:
        return prompt_ids[:]
    decoder = Decoder(model, prompt_ids, len(prompt_ids) + n_new)
    out = prompt_ids + [best(decoder.logits)]
    for _ in range(n_new - 1):
        decoder.step(out[-1])
        out.append(best(decoder.logits))
    return out

def top_p_sample(logits, p, generator):
    if p <= 0 or p > 1:
        raise ValueError(f"p={p}")
    logits = logits.double().tolist()
    weights = [math.exp(logit - max(logits)) for logit in logits]
    total = sum(weights)
    ranked = sorted(((w / total, t) for t, w in enumerate(weights) if w > 0), reverse=True)
    nucleus, mass = [], 0.0
    for prob, token in ranked:
        nucleus.append((prob, token))
        mass += prob
        if mass >= p:
            break
    u = torch.rand(1, generator=generator, dtype=torch.float64).item() * mass
    for prob, token in nucleus:
        u -= prob
        if u < 0:
            return token
    return nucleus[-1][1]
"""
SAMPLER = [name for name in CHECKS if "sampler" in name]
LOG_PROBABILITIES = SORTED.replace("float().softmax(dim=-1)", "double().log_softmax(dim=-1).exp()")
GUMBEL = """    keep = ids[mass_before < p]  # Gumbel's trick: the largest of logit + noise is a draw from the softmax
    noise = -torch.empty(len(keep)).exponential_(generator=generator).log()
    return int(keep[(logits.float()[keep] + noise).argmax()])
"""
RIGHT = {
    "another style": (ANOTHER_STYLE, list(CHECKS)),
    "the sampler by Gumbel's trick": (SOLUTION.replace(KEPT + DRAW, GUMBEL), SAMPLER),
    "the sampler with log-probabilities": (SOLUTION.replace(SORTED, LOG_PROBABILITIES), SAMPLER),
}


def hidden_checks() -> list[Check]:
    """The same checks with the cases that stay with the instructor."""
    hidden = json.loads((FOLDER / "hidden_p3.json").read_text(encoding="utf-8"))
    return [dataclasses.replace(CHECKS[name], cases=tuple(cases)) for name, cases in hidden.items()]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_solution_passes_everything(name: str, tmp_path: Path, worker: Worker) -> None:
    source, names = RIGHT[name]
    assert source != SOLUTION
    for checks in (CHECKS.values(), hidden_checks()):
        results = run(source, tmp_path, worker, [check for check in checks if check.name in names])
        assert {name: result.message for name, result in results.items() if result.status != "passed"} == {}


def test_the_solution_passes_the_hidden_cases(tmp_path: Path, worker: Worker) -> None:
    results = run(SOLUTION, tmp_path, worker, hidden_checks())
    assert {name: result.message for name, result in results.items() if result.status != "passed"} == {}


def test_hidden_cases_are_like_the_visible_ones_and_others() -> None:
    for check in hidden_checks():
        shown = [json.dumps(case, sort_keys=True) for case in CHECKS[check.name].cases]
        keys = [set(case) - {"dtype"} for case in CHECKS[check.name].cases]
        for case in check.cases:
            assert set(case) - {"dtype"} in keys, case["label"]
            assert json.dumps(case, sort_keys=True) not in shown


def test_one_function_at_a_time_can_be_written(tmp_path: Path, worker: Worker) -> None:
    start = SOLUTION.index("    ### BEGIN", SOLUTION.index("def generate_cached"))
    end = SOLUTION.index("    ### END", start)
    unwritten = 'raise NotImplementedError("p3: generate_cached is not written yet.")\n'
    results = run(SOLUTION[:start] + "    " + unwritten + SOLUTION[end:], tmp_path, worker, list(CHECKS.values()))
    skipped = {name for name, result in results.items() if result.status == "not_written"}
    assert skipped == {name for name in CHECKS if "cached" in name} | {"p3.no_inference_import"}
    assert {result.status for name, result in results.items() if name not in skipped} == {"passed"}
    assert "(kv_generate.py:" in results["p3.cached_work"].message


# ---- the parts -------------------------------------------------------------------------------------------------


def test_the_points_are_a_hundred_and_for_every_check() -> None:
    points_of = {name: points for part in P3.values() for name, points in part.items()}
    assert set(points_of) == set(CHECKS) and sum(points_of.values()) == 100
    assert {check.name for check in hidden_checks()} == set(CHECKS) - set(P3_SHOWN_WHOLE)
    brief = (repo_root() / "projects" / "p3_kv_serve" / "README.md").read_text(encoding="utf-8")
    for name, points in points_of.items():
        short = name.removeprefix("p3.")
        assert f"`{short}` {points}" in brief or f"`{short}`, once all three functions are there | {points} |" in brief


@pytest.mark.parametrize("shape", decoders.SHAPES)
def test_the_ideal_work_is_what_torch_counts_for_one_pass(shape: str) -> None:
    model = given_model(GPTConfig(**decoders.SHAPES[shape]))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 23, dtype=torch.int64))
    assert counter.get_total_flops() == decoders.forward_flops(decoders.SHAPES[shape], 23)


def test_the_given_model_depends_on_its_seed_alone_and_its_text_varies() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, same, other = (given_model(seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], same[name]) and not torch.equal(first[name], other[name]) for name in first)
    for case in (*CHECKS["p3.cached_tokens"].cases, *hidden_case_list("p3.cached_tokens")):
        text = greedy(build_gpt(case["model"]), case["prompt"], case["n"])
        assert len(set(text)) >= len(text) / 3, case["label"]


def hidden_case_list(name: str) -> tuple[dict, ...]:
    return next(check.cases for check in hidden_checks() if check.name == name)


def test_the_ties_are_exact_and_the_lowest_id_is_greedy() -> None:
    case = next(case for case in CHECKS["p3.full_edges"].cases if case["model"].get("change") == "ties")
    logits = build_gpt(case["model"])(torch.tensor([case["prompt"]]))[0, -1]
    assert (logits == logits.max()).nonzero().flatten().tolist() == [7, 8, len(logits) - 1]


def test_the_critical_values_are_the_upper_millionth_points() -> None:
    for freedom, value in enumerate(sampler.CRITICAL, 1):
        half = torch.tensor([freedom / 2, value / 2], dtype=torch.float64)
        assert torch.special.gammaincc(half[0], half[1]).item() == pytest.approx(1e-6, rel=0.01)


@pytest.mark.parametrize(
    "case",
    [*CHECKS["p3.sampler_distribution"].cases, *CHECKS["p3.sampler_edges"].cases],
    ids=lambda case: case["label"],
)
def test_no_rounding_decides_what_the_nucleus_is(case: dict) -> None:
    """The mass comes near p only where all are equal and the sum is exact; and there are bins enough, but not more
    than critical values."""
    logits = [float("-inf") if value is None else value for value in case["logits"]]
    probs = sampler.softmax(logits)
    mass = torch.tensor([probs[token] for token in sampler.nucleus(probs, 2.0)], dtype=torch.float64).cumsum(0)
    exact = len(set(logits) - {float("-inf")}) == 1
    near = (mass - case["p"]).abs() < 1e-3
    assert exact or case["p"] == 1.0 or len(probs) > 100 or not near.any()
    kept = sampler.nucleus(probs, case["p"])
    total = sum(probs[token] for token in kept)
    _, freedom = sampler.chi_square([kept[0]] * case["draws"], probs, {token: probs[token] / total for token in kept})
    assert freedom <= len(sampler.CRITICAL)
    if case in CHECKS["p3.sampler_distribution"].cases:
        assert freedom >= 1


def test_the_statistic_is_pearsons() -> None:
    probs = [0.5, 0.3, 0.2, 0.0]
    draws = [0] * 60 + [1] * 30 + [2] * 10
    statistic, freedom = sampler.chi_square(draws, probs, {0: 0.5, 1: 0.3, 2: 0.2})
    assert freedom == 2 and statistic == pytest.approx(10**2 / 50 + 0 + 10**2 / 20)
    assert sampler.chi_square([3], probs, {0: 0.5, 1: 0.3, 2: 0.2})[0] == float("inf")


FORBIDDEN = [
    "import ai_playground.inference",
    "import os, ai_playground.inference as x",
    "import ai_playground.inference.generate as g",
    "from ai_playground import inference",
    "from ai_playground import inference as anything",
    "from ai_playground.inference import *",
    "from ai_playground.inference.generate import sample_top_p as s",
    "import src.ai_playground.inference",
    "from . import inference",
    "from .inference import generate",
    "from ..ai_playground.inference import generate",
    "from ... import inference as x",
    "def f():\n    if True:\n        from ai_playground.inference import generate",
    "import importlib\nimportlib.import_module('ai_playground.inference')",
    "from importlib import import_module as load\nload('ai_playground.inference.generate')",
    "import importlib\nimportlib.import_module('.inference', package='ai_playground')",
    "__import__('ai_playground.inference')",
    "__import__('ai_playground', fromlist=['inference'])",
    "import sys\nsys.modules['ai_playground.inference']",
    "import ai_playground\nai_playground.inference.generate(None, [], 1)",
    "import ai_playground as ap\nap.inference",
    "import ai_playground.models\nai_playground.inference",
]
ALLOWED = [
    "# from ai_playground.inference import generate",
    '"""Not from ai_playground.inference, which is forbidden."""',
    'def f():\n    """ai_playground.inference"""\n',
    "import torch\nwith torch.inference_mode():\n    pass",
    "from ai_playground.models import Transformer",
    "import ai_playground.models as m\nm.inference",
    "raise ValueError('do not use ai_playground.inference here')",
    "class A:\n    inference = 1\nA().inference",
    "from .given_model import GPT",
    "import my_ai_playground.inference",
]


@pytest.mark.parametrize("source", FORBIDDEN)
def test_an_import_of_the_librarys_inference_is_found(source: str) -> None:
    found = forbidden_imports("import math\n" + source)
    assert len(found) == 1 and found[0][0] >= 2, found


@pytest.mark.parametrize("source", ALLOWED)
def test_what_only_resembles_one_is_not(source: str) -> None:
    assert forbidden_imports(source) == []
