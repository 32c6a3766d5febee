"""The probes: they call a student's engine and write down, as plain JSON, what they see.

They run in the worker, in the same process as the student's code, and judge nothing. What they write is
evidence, to be doubted; a judge elsewhere compares it with what it computed itself.
"""

import contextlib
import hashlib
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ai_playground.workspace import default_workspace, read_config, save_checkpoint
from checking.calling import OutOfPatience, garbage, observed, patience, refusal
from checking.form import ANY, Form
from checking.observe import Finite, Observer, TokenLog
from checking.reference import build_model, prompt_ids
from checking.student_engine import Engine

# What the probes write, as `checking.form` reads it.
REFUSAL: Form = ({"raised": str, "message": str}, {"raised": type(None), "returned": str})
LOADED: Form = (
    {
        "returned": str,
        "training": [str],
        "requires_grad": [str],
        "config": ANY,
        "tensors": ANY,
        "logits_shape": [int],
        "logits": [float],
    },
    {"returned": str},
    type(None),
)
GREEDY: Form = {"output": ANY, "not_finite": str}
SEEN: Form = GREEDY | {"canaries": [int], "flops": int, "lookups": [[int]], "memory": [int]}
SERVED: Form = {
    "report": ANY,
    "stopped": bool,
    "not_finite": str,
    "requests_after": ANY,
    "lookups": ([[int]], type(None)),
    "memory": ([int], type(None)),
}
BOTH_SERVED: Form = {"continuous": SERVED, "static": SERVED}
FINALE: Form = {
    "report": ANY,
    "wall_seconds": float,
    "tokens_seen": int,
    "seconds_seen": float,
    "metrics": (str, type(None)),
}

SERVE_SECONDS = 6.0  # of CPU time; a right engine needs less than one for any case


def imports(engine: Engine, case: dict[str, Any]) -> bool:
    """Whether the modules of `functions` can be imported."""
    return all(callable(getattr(engine, name)) for name in case["functions"])


def load(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """Call `load_model` on the case's workspace.

    The case has `workspace` (a folder), or `model` (a spec, see `build_model`) of which a workspace is made;
    `damage` may `drop`, `add` or `cut` one tensor of it by name.
    """
    if "workspace" in case:
        return _describe(engine.load_model(Path(case["workspace"])), case["tokens"])
    model = build_model(case["model"])
    weights = dict(model.state_dict())
    damage = case.get("damage", {})
    if "drop" in damage:
        del weights[damage["drop"]]
    if "add" in damage:
        weights[damage["add"]] = torch.zeros(2)
    if "cut" in damage:
        weights[damage["cut"]] = weights[damage["cut"]][:-1]
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder), model.config, weights)
        if damage:
            return refusal(lambda: engine.load_model(Path(folder)))
        return _describe(engine.load_model(Path(folder)), case["tokens"])


def _describe(model: Any, tokens: list[list[int]]) -> dict[str, Any]:
    if not isinstance(model, torch.nn.Module):
        return {"returned": type(model).__name__}
    with torch.no_grad():
        logits = model(torch.tensor(tokens))
    config = getattr(model, "config", None)
    return {
        "returned": "Module",
        "training": [name or "the model" for name, module in model.named_modules() if module.training],
        "requires_grad": [name for name, parameter in model.named_parameters() if parameter.requires_grad],
        "config": config.to_dict() if hasattr(config, "to_dict") else None,
        "tensors": {name: fingerprint(tensor) for name, tensor in model.state_dict().items()},
        "logits_shape": list(logits.shape),
        "logits": logits.float().flatten().tolist(),
    }


def fingerprint(tensor: Tensor) -> list[Any]:
    """Shape, a hash of the values as float32, and the sum of their sizes: two tensors are the same if these are."""
    values = tensor.detach().float().contiguous()
    return [list(values.shape), hashlib.sha256(values.numpy().tobytes()).hexdigest(), float(values.abs().sum())]


def greedy(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """Call `case["function"]`: `greedy_reference` or `greedy_paged`, on `prompt` and `n`.

    Unwritten memory holds garbage, and whether the logits were numbers is written down.
    """
    options = _options(case)
    with garbage(), Finite(options.get("model")) as finite:
        output = getattr(engine, case["function"])(prompt_ids(case["prompt"]), case["n"], **options)
    return {"output": output, "not_finite": finite.first}


def greedy_refusal(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`greedy`, where a ValueError is expected."""
    function = getattr(engine, case["function"])
    return refusal(lambda: function(prompt_ids(case["prompt"]), case["n"], **_options(case)))


def greedy_observed(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`greedy`, with what PyTorch sees of it: tokens looked up, work, memory."""
    options = _options(case)
    function = getattr(engine, case["function"])
    return observed(options["model"], lambda: function(prompt_ids(case["prompt"]), case["n"], **options))


def serve(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """Call `serve`: `requests`, `max_new`, optionally `block_budget`, `model` and the keyword-only sizes.

    With `observe` the case also asks for what PyTorch sees: `"tokens"` looked up, or `"memory"` too.
    """
    options, watch = _options(case), case.get("observe")
    if not watch:
        return _serve(engine, case, options, None)
    if watch == "memory":
        seen: TokenLog | Observer = Observer(options["model"])
        return _serve(engine, case, options, seen) | {"lookups": seen.calls, "memory": seen.memory}
    seen = TokenLog(options.get("model"))
    evidence = _serve(engine, case, options, seen)
    if not seen.calls and "model" not in case:
        # The engine's own model is known to nobody before it is used, and this one reads its embedding by no module.
        seen = _observer_of_any_model(case)
        evidence = _serve(engine, case, options, seen)
    return evidence | {"lookups": seen.calls}


def _serve(
    engine: Engine, case: dict[str, Any], options: dict[str, Any], seen: TokenLog | Observer | None
) -> dict[str, Any]:
    requests = [prompt_ids(prompt) for prompt in case["requests"]]
    report, stopped = None, False
    with garbage(), Finite(options.get("model")) as finite, seen or contextlib.nullcontext():
        try:
            with patience(SERVE_SECONDS):
                report = engine.serve(requests, case["max_new"], case.get("block_budget"), **options)
        except OutOfPatience:
            stopped = True
    return {
        "report": report,
        "stopped": stopped,
        "not_finite": finite.first,
        "requests_after": requests,  # a prompt that the engine wrote into shows
        "lookups": None,
        "memory": None,
    }


def serve_refusal(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`serve`, where a ValueError is expected."""
    seen: dict[str, Any] = {}
    return refusal(lambda: seen.update(serve(engine, case)) or seen["report"]) | {"stopped": seen.get("stopped", False)}


def serve_both(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`serve` with continuous and with static batching."""
    return {name: serve(engine, case | {"continuous": name == "continuous"}) for name in ("continuous", "static")}


def finale(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """Call `finale` on a copy of the workspace, and look at that copy's metrics.json before and after.

    The tokens that go through a model are seen (`"observe"`). With a `model` in the case, its weights stand in the
    place of the workspace's.
    """
    evidence = _finale(engine, case, TokenLog())
    # An engine that reads its embedding by no module is looked at again, as in `serve`.
    return evidence if evidence["tokens_seen"] else _finale(engine, case, _observer_of_any_model(case))


def _finale(engine: Engine, case: dict[str, Any], seen: TokenLog | Observer) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        ws = Path(folder) / "myllm"
        shutil.copytree(case["workspace"], ws, ignore=shutil.ignore_patterns("src", "*.partial"))
        if "model" in case:
            model = build_model(case["model"])
            save_checkpoint(ws, model.config, model.state_dict())
        metrics = ws / "metrics.json"
        kept = {"kept_by_the_check": {"value": 1}}
        metrics.write_text(json.dumps(kept), encoding="utf-8")
        start = time.perf_counter()
        with seen:
            report = engine.finale(ws)
        if type(report) is dict and type(report.get("torch_version")) is type(torch.__version__):
            report["torch_version"] = str(torch.__version__)  # torch's own is a subclass of str
        return {
            "report": report,
            "wall_seconds": time.perf_counter() - start,
            "tokens_seen": sum(map(len, seen.calls)),
            "seconds_seen": seen.times[-1] - seen.times[0] if seen.times else 0.0,
            "metrics": metrics.read_text(encoding="utf-8") if metrics.exists() else None,
        }


def _observer_of_any_model(case: dict[str, Any]) -> Observer:
    """One for a model that nobody has before the engine loads it; the workspace tells the vocabulary's length."""
    return Observer(None, read_config(Path(case.get("workspace", default_workspace()))).vocab_size)


def _options(case: dict[str, Any]) -> dict[str, Any]:
    options = {key: case[key] for key in ("block_size", "max_batch", "continuous", "eos_id") if key in case}
    if isinstance(options.get("eos_id"), list):
        options["eos_id"] = tuple(options["eos_id"])
    if "model" in case:
        options["model"] = build_model(case["model"])
    return options
