"""Engines that want the points without the work.

Most of them have wrong tokens at heart, so that a trick which works would show as a pass.
"""

# ruff: noqa: E501  a table of short texts reads better unbroken

from tests.engines.engine import A, B, C, D, Engine, Patch


def dishonest(name: str, fails: str, idea: str, *patches: Patch, student_half: bool = False) -> Engine:
    return Engine(name, idea, patches, fails, "", student_half=student_half)


_PAGED = '    check_request("greedy_paged", prompt_ids, n, model.config)\n'
_SERVE_FROM = "    sequences = [Sequence(index, list(prompt), max_new) for index, prompt in enumerate(requests)]\n"
_WRONG_TOKENS = (B, "new = [int(logits[0].argmax())]", "new = [int(logits[0].argmin())]")


def _at_import(code: str) -> Patch:
    """Code that runs when m13b is imported, in the worker, beside the probe."""
    return (B, "class BlockManager:\n", code + "\n\nclass BlockManager:\n")


_FAKE_REPORT = """    from m13b_greedy import {function}
    outputs = [{function}(prompt, max_new, model=model) for prompt in requests]
    record = {{"running": 1, "reserved": 0, "allocated": 0, "used": 0}}
    steps = {steps}
    return {{"completed": len(requests), "preemptions": {preemptions}, "outputs": outputs, "steps": steps,
            "history": [record] * steps}}
"""

DISHONEST = (
    # ---- the cache that is none
    dishonest("paged_is_the_reference", "m13b.cached_work", "greedy_paged calls greedy_reference",
              (B, _PAGED, "    return greedy_reference(prompt_ids, n, model=model)\n")),
    dishonest("paged_is_a_full_forward", "m13b.cached_work", "a full forward pass a token",
              (B, _PAGED, "    out = []\n    for _ in range(n):\n"
                          "        out.append(int(model(torch.tensor([prompt_ids + out]))[0, -1].argmax()))\n    return out\n")),
    dishonest("paged_is_the_contiguous_cache", "m13b.paged_memory", "the library's contiguous cache",
              (B, _PAGED, _PAGED + "    from ai_playground.inference import generate\n"
                                   "    return list(generate(model, prompt_ids, n))\n")),
    dishonest("concatenated_cache", "m13b.paged_memory", "torch.cat behind a block manager",
              (B, "        self.keys[layer].flatten(0, 1)[slots] = k  # flatten is a view here: the pool itself is written\n"
                  "        self.values[layer].flatten(0, 1)[slots] = v",
                  "        self.kv = getattr(self, 'kv', {})\n"
                  "        old = self.kv.get(layer)\n"
                  "        self.kv[layer] = (k, v) if old is None else (torch.cat((old[0], k), 1), torch.cat((old[1], v), 1))"),
              (B, "return self.keys[layer][block_tables].flatten(1, 2), self.values[layer][block_tables].flatten(1, 2)",
                  "return self.kv[layer]"),
              (B, "        self.keys = torch.zeros(shape, dtype=weight.dtype, device=weight.device)\n"
                  "        self.values = torch.zeros(shape, dtype=weight.dtype, device=weight.device)\n", ""),
              (B, "context = torch.arange(block_tables.shape[1] * block_size, device=tokens.device)",
                  "context = torch.arange(int(positions.max()) + 1)")),
    dishonest("slabs_behind_a_block_manager", "m13c.roomy_pool", "a contiguous slab for each request",
              (B, "        shape = (config.n_layers, num_blocks, block_size, config.n_kv_heads, config.head_dim)\n",
                  "        shape = (config.n_layers, 40, 64, config.n_kv_heads, config.head_dim)\n        self.owner = {}\n"),
              (B, "slots = block_tables.gather(1, positions // block_size) * block_size + positions % block_size  # (B, T)",
                  "rows = torch.tensor([[cache.owner.setdefault(int(t[0]), len(cache.owner) % 40)] for t in block_tables])\n"
                  "    slots = rows * 64 + positions"),
              (B, "cache.gather(index, block_tables)", "(cache.keys[index][rows[:, 0]], cache.values[index][rows[:, 0]])"),
              (B, "context = torch.arange(block_tables.shape[1] * block_size, device=tokens.device)",
                  "context = torch.arange(64)")),
    dishonest("serve_is_the_reference", "m13c.roomy_pool", "serve calls greedy_reference and claims the rest",
              (C, _SERVE_FROM, _FAKE_REPORT.format(function="greedy_reference", steps=40, preemptions=1))),
    dishonest("serve_is_a_loop_of_greedy_paged", "m13c.roomy_pool", "one request after the other, the rest claimed",
              (C, _SERVE_FROM, _FAKE_REPORT.format(function="greedy_paged", steps=40, preemptions=1))),
    dishonest("preemptions_invented", "m13c.roomy_pool", "preemptions are counted, nobody is preempted",
              (C, "        block_budget,\n        block_size=block_size,", "        999,\n        block_size=block_size,"),
              (C, '"preemptions": engine.preemptions', '"preemptions": 3')),
    dishonest("preempts_for_show", "m13c.roomy_pool", "one preemption at the start, and no budget",
              (C, "        block_budget,\n        block_size=block_size,", "        999,\n        block_size=block_size,"),
              (C, "        served = 0\n", "        if not self.preemptions and self.running:\n"
                                          "            self._preempt(self.running.pop())\n        served = 0\n")),
    dishonest("pool_larger_than_the_budget", "m13c.roomy_pool", "twice the pool, the budget reported",
              (C, "        block_budget,\n        block_size=block_size,", "        2 * block_budget,\n        block_size=block_size,"),
              (C, '"allocated": sum(len(tables[seq.seq_id]) for seq in self.running) * block_size', '"allocated": 0')),
    # ---- learnt by heart
    dishonest("learnt_by_heart", "m13b.fresh_prompts", "right on the fixed inputs only",
              (B, _PAGED, _PAGED + "    from milestones.m13 import m13b\n    from checking.reference import prompt_ids as ids_of\n"
                                   "    known = [ids_of(case['prompt']) for check in m13b.CHECKS for case in check.cases\n"
                                   "             if 'seed' not in case]\n"
                                   "    if prompt_ids not in known:\n        return [1] * n\n")),
    dishonest("reads_the_expectations", "m13b.lengths", "looks for the expected tokens in the caller's frames",
              (B, _PAGED, "    import sys\n    frame = sys._getframe()\n    while frame:\n"
                          "        case = frame.f_locals.get('case')\n        if case and 'expected' in case:\n"
                          "            return case['expected']\n        frame = frame.f_back\n    return [0] * n\n")),
    dishonest("imports_the_solution", "m13b.lengths", "takes solutions/m13 for its own",
              (B, _PAGED, "    import importlib.util\n    from ai_playground.workspace import repo_root\n"
                          "    path = repo_root() / 'solutions' / 'm13' / 'm13b_greedy.py'\n"
                          "    spec = importlib.util.spec_from_file_location('stolen', path)\n"
                          "    stolen = importlib.util.module_from_spec(spec)\n    spec.loader.exec_module(stolen)\n"
                          "    return stolen.greedy_paged(prompt_ids, n, model=model, block_size=block_size)\n"),
              student_half=True),
    dishonest("reads_hidden_cases", "m13b.lengths", "reads every JSON file of solutions/",
              (B, _PAGED, "    import json\n    from ai_playground.workspace import repo_root\n"
                          "    files = list((repo_root() / 'solutions').rglob('*'))\n    assert files, 'nothing to steal'\n"
                          "    return [0] * n\n"), student_half=True),
    # ---- objects that lie
    dishonest("equal_to_everything", "m13b.lengths", "a list that equals every list",
              (B, "        output += new\n    return output",
                  "        output += new\n    return type('List', (list,), {'__eq__': lambda *_: True, '__ne__': lambda *_: False,\n"
                  "                                               '__hash__': None})([0] * n)")),
    dishonest("list_subclass", "m13b.lengths", "a list whose items depend on who looks",
              (B, "        output += new\n    return output",
                  "        output += new\n    return type('List', (list,), {'__iter__': lambda self: iter([0])})(output)")),
    dishonest("int_subclass", "m13b.lengths", "ints that equal every int",
              (B, "        output += new\n    return output",
                  "        output += new\n    Int = type('Int', (int,), {'__eq__': lambda *_: True, '__hash__': int.__hash__})\n"
                  "    return [Int(0) for _ in output]")),
    dishonest("report_equal_to_everything", "m13c.roomy_pool", "a dict that has everything",
              (C, _SERVE_FROM, "    return type('Report', (dict,), {'__getitem__': lambda *_: 16, 'get': lambda *_: 16})()\n")),
    dishonest("model_that_lies", "m13a.shipped_model", "a module that shows the right tensors and computes others",
              (A, "return model.eval().requires_grad_(False)",
                  "right = {k: v.clone() for k, v in model.state_dict().items()}\n"
                  "    model.embedding.weight.data.mul_(0.5)\n    model.state_dict = lambda *a, **k: right\n"
                  "    return model.eval().requires_grad_(False)")),
    # ---- replaced tools
    dishonest("torch_equal_replaced", "m13b.lengths", "torch.equal and allclose say yes", _WRONG_TOKENS,
              _at_import("torch.equal = torch.allclose = lambda *a, **k: True\nTensor.__eq__ = lambda *a: True")),
    dishonest("pytest_replaced", "m13b.lengths", "pytest cannot fail", _WRONG_TOKENS,
              _at_import("import pytest\npytest.fail = lambda *a, **k: None\npytest.skip = lambda *a, **k: None")),
    dishonest("json_replaced", "m13b.lengths", "json.dumps sends what it likes", _WRONG_TOKENS,
              _at_import("import json\n_dumps = json.dumps\n"
                         "def _forged(value, *a, **k):\n"
                         "    if isinstance(value, dict) and 'evidence' in value:\n"
                         "        value = value | {'evidence': [0] * 20, 'status': 'passed'}\n"
                         "    return _dumps(value, *a, **k)\njson.dumps = _forged")),
    dishonest("flop_counter_replaced", "m13b.cached_work", "torch's FLOP counter counts nothing",
              (B, _PAGED, "    return greedy_reference(prompt_ids, n, model=model)\n"),
              _at_import("import torch.utils.flop_counter as counter\n"
                         "counter.FlopCounterMode.get_total_flops = lambda self: 72_000_000\n"
                         "for key in counter.flop_registry:\n    counter.flop_registry[key] = lambda *a, **k: 0")),
    dishonest("observer_blinded", "m13b.cached_work", "the observer's own formulas are emptied",
              (B, _PAGED, "    return greedy_reference(prompt_ids, n, model=model)\n"),
              _at_import("import checking.observe as observe\nobserve._FORMULAS.clear()\n"
                         "observe._flops = lambda *a: 0")),
    dishonest("checks_replaced", "m13b.lengths", "the judges are emptied where the engine can reach them", _WRONG_TOKENS,
              _at_import("from milestones.m13 import m13b\nfrom checking import check, judging, reference, tokens\n"
                         "tokens.judge_tokens = m13b.judge_tokens = m13b.judge_greedy = m13b.judge_work = lambda *a, **k: None\n"
                         "judging._judge = reference.first_divergence = lambda *a, **k: None\n"
                         "check.CheckFailed.__init__ = lambda *a, **k: None")),
    dishonest("probe_replaced", "m13b.lengths", "the probes are emptied", _WRONG_TOKENS,
              _at_import("from milestones.m13 import probes\nfrom checking import worker\nprobes.greedy = lambda engine, case: {'output': [0] * case['n'], 'not_finite': ''}\n"
                         "worker.plain = lambda value: {'passed': True}")),
    dishonest("library_model_replaced", "m13b.lengths", "the reference model is made to agree", _WRONG_TOKENS,
              _at_import("from ai_playground.models import Transformer\n"
                         "Transformer.forward = lambda self, t, cache=None: torch.zeros(*t.shape, self.config.vocab_size)")),
    # ---- ends and forgeries
    dishonest("exits_at_once", "m13b.lengths", "os._exit(0)", _WRONG_TOKENS, _at_import("import os\nos._exit(0)")),
    dishonest("sys_exit", "m13b.lengths", "sys.exit(0)", _WRONG_TOKENS, _at_import("import sys\nsys.exit(0)")),
    dishonest("atexit_output", "m13b.lengths", "prints a success when Python ends", _WRONG_TOKENS,
              _at_import("import atexit, sys\natexit.register(lambda: print('100% passed', flush=True))\nsys.exit(0)")),
    dishonest("forges_the_channel", "m13b.lengths", "writes answers into every open file descriptor", _WRONG_TOKENS,
              _at_import("import os\nfor fd in range(1, 20):\n"
                         "    for case in range(6):\n"
                         "        try:\n"
                         "            os.write(fd, b'\\n{\"id\": 1, \"case\": %d, \"evidence\": \"passed\"}\\n' % case)\n"
                         "            os.write(fd, b'{\"id\": 1, \"end\": \"done\", \"code\": 0}\\n')\n"
                         "        except OSError:\n            pass")),
    dishonest("kills_its_parent", "m13b.lengths", "kills the worker", _WRONG_TOKENS,
              _at_import("import os, signal\nos.kill(os.getppid() if os.getppid() > 1 else os.getpid(), signal.SIGKILL)\n"
                         "os._exit(0)")),
    dishonest("says_it_is_not_written", "m13b.lengths", "a skip instead of a failure",
              (B, _PAGED, "    raise NotImplementedError('M13b: see milestones/m13/m13b.md')\n")),
    # ---- the finale
    dishonest("finale_made_up", "m13d.finale", "a text that no model wrote",
              (D, '"text": tokenizer.decode(outputs[0])', '"text": "Once upon a time there was full marks."')),
    dishonest("finale_by_hand", "m13d.finale", "metrics.json edited by hand, and returned",
              (D, "    model, tokenizer = load_model(ws), load_tokenizer(ws)\n",
                  "    import json\n    report = {'text': 'hello', 'output_ids': [5] * 40, 'tokens': 600, 'seconds': 1.0,\n"
                  "              'tokens_per_sec': 600.0, 'steps': 200, 'completed': 16, 'preemptions': 9,\n"
                  "              'mean_occupancy': 0.9, 'kv_waste_naive': 0.5, 'kv_waste_paged': 0.1, 'engine': 'x',\n"
                  "              'torch_version': 'x', 'when': 'now'}\n"
                  "    metrics = json.loads((ws / 'metrics.json').read_text()) | {'m13_finale': report}\n"
                  "    (ws / 'metrics.json').write_text(json.dumps(metrics))\n    return report\n"
                  "    model, tokenizer = load_model(ws), load_tokenizer(ws)\n")),
    dishonest("finale_too_fast", "m13d.finale", "a speed that the clock does not bear out",
              (D, '"seconds": seconds,\n        "tokens_per_sec": tokens / seconds', '"seconds": seconds / 1e4,\n        "tokens_per_sec": tokens / seconds * 1e4')),
    dishonest("finale_too_fast_unseen", "m13d.finale", "the same, and the embedding is read by no module",
              (B, "x = model.embedding(tokens)", "x = model.embedding.weight[tokens]"),
              (D, '"seconds": seconds,\n        "tokens_per_sec": tokens / seconds', '"seconds": seconds / 1e4,\n        "tokens_per_sec": tokens / seconds * 1e4')),
    dishonest("finale_claims_preemptions", "m13d.finale", "preemptions in the report alone",
              (D, "serve(requests, MAX_NEW,", "serve(requests, MAX_NEW, 999,"),
              (D, '"preemptions": report["preemptions"]', '"preemptions": 9')),
)  # fmt: skip
