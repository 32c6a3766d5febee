"""The probes: they call a student's engine and write down, as plain JSON, what they see.

They run in the worker, in the same process as the student's code, and judge nothing. What they write is
evidence, to be doubted; a judge elsewhere compares it with what it computed itself.
"""

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ai_playground.workspace import save_checkpoint
from milestones.engines import Engine
from milestones.reference import build_model, prompt_ids


def warm_up() -> None:
    """Make torch import what its FLOP counter needs, which takes seconds on first use."""
    with FlopCounterMode(display=False):
        torch.ones(1, 1) @ torch.ones(1, 1)


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
    """Shape and a hash of the values as float32: two tensors are the same if these are."""
    data = tensor.detach().float().contiguous().numpy().tobytes()
    return [list(tensor.shape), hashlib.sha256(data).hexdigest()]


def refusal(call: Any) -> dict[str, Any]:
    """Whether a call raises ValueError, and what it says."""
    try:
        value = call()
    except ValueError as error:
        return {"raised": "ValueError", "message": str(error)}
    except NotImplementedError:
        raise
    except Exception as error:
        return {"raised": type(error).__name__, "message": str(error)}
    return {"raised": None, "returned": repr(value)[:200]}


def greedy(engine: Engine, case: dict[str, Any]) -> Any:
    """Call `case["function"]`: `greedy_reference` or `greedy_paged`, on `prompt` and `n`."""
    return getattr(engine, case["function"])(prompt_ids(case["prompt"]), case["n"], **_options(case))


def greedy_refusal(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`greedy`, where a ValueError is expected."""
    function = getattr(engine, case["function"])
    return refusal(lambda: function(prompt_ids(case["prompt"]), case["n"], **_options(case)))


def greedy_flops(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`greedy`, with PyTorch counting the floating-point operations.

    A product of known size is counted with it: if that is missing from the total, the counter is broken.
    """
    function = getattr(engine, case["function"])
    options = _options(case)
    canary = torch.ones(8, 16), torch.ones(16, 32)
    with FlopCounterMode(display=False) as counter:
        canary[0] @ canary[1]
        before = counter.get_total_flops()
        output = function(prompt_ids(case["prompt"]), case["n"], **options)
        total = counter.get_total_flops()
        canary[0] @ canary[1]
        after = counter.get_total_flops()
    return {"output": output, "canary": [before, after - total], "flops": total - before}


def serve(engine: Engine, case: dict[str, Any]) -> Any:
    """Call `serve`: `requests`, `max_new`, optionally `block_budget`, `model` and the keyword-only sizes."""
    requests = [prompt_ids(prompt) for prompt in case["requests"]]
    report = engine.serve(requests, case["max_new"], case.get("block_budget"), **_options(case))
    if type(report) is dict:
        report["requests_after"] = requests  # a prompt that the engine wrote into would show
    return report


def serve_refusal(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`serve`, where a ValueError is expected."""
    return refusal(lambda: serve(engine, case))


def finale(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """Call `finale` on a copy of the workspace, and look at that copy's metrics.json before and after."""
    with tempfile.TemporaryDirectory() as folder:
        ws = Path(folder) / "myllm"
        shutil.copytree(case["workspace"], ws, ignore=shutil.ignore_patterns("src", "*.partial"))
        metrics = ws / "metrics.json"
        kept = {"kept_by_the_check": {"value": 1}}
        metrics.write_text(json.dumps(kept), encoding="utf-8")
        report = engine.finale(ws)
        return {"report": report, "metrics": metrics.read_text(encoding="utf-8") if metrics.exists() else None}


def _options(case: dict[str, Any]) -> dict[str, Any]:
    options = {key: case[key] for key in ("block_size", "max_batch", "continuous", "eos_id") if key in case}
    if "model" in case:
        options["model"] = build_model(case["model"])
    return options


def serve_both(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`serve` with continuous and with static batching."""
    return {name: serve(engine, case | {"continuous": name == "continuous"}) for name in ("continuous", "static")}


class Lookups(TorchDispatchMode):
    """Writes down every token that is looked up in an embedding, call by call.

    This is seen by PyTorch's dispatcher, whichever function the engine uses: what a model reads of its input
    must come through an embedding lookup.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.calls: list[list[int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten.embedding.default, torch.ops.aten.index_select.default):
            table, tokens = args[0], args[-1]
        elif function is torch.ops.aten.index.Tensor:
            table, tokens = args[0], args[1][0]
        else:
            return function(*args, **(kwargs or {}))
        if table.dim() == 2 and table.shape[0] == self.vocab_size and tokens is not None:
            self.calls.append(tokens.flatten().tolist())
        return function(*args, **(kwargs or {}))


def serve_order(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`serve`, and the tokens that went through the model, call by call."""
    with Lookups(case["model"]["config"]["vocab_size"]) as lookups:
        report = serve(engine, case)
    return {"report": report, "lookups": lookups.calls}
