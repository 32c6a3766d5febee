"""p3's probes: they run in the worker beside the student's code and judge nothing."""

import ast
import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

from checking.calling import observed, refusal
from checking.student_engine import Engine
from milestones.p3.given_models import build_gpt

# What `variants` takes away from a case; see `given_models.changed_gpt` for the changes of the model.
CHANGES = ("same keys and values", "no attention", "no feed-forward")


def variants(case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A case of `generate_cached` with one thing at a time taken away, so that a failure can be traced to it."""
    spec = case["model"]
    shallow = spec | {"gpt": spec["gpt"] | {"n_layers": 1}}
    models = {"one layer": shallow} | {name: spec | {"change": name} for name in CHANGES}
    return {name: case | {"model": model} for name, model in models.items()}


def _call(engine: Engine, case: dict[str, Any]) -> Any:
    return getattr(engine, case["function"])(build_gpt(case["model"]), list(case["prompt"]), case["n"])


def generate(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """Call `case["function"]`: `generate_full` or `generate_cached`, on `model`, `prompt` and `n`; twice."""
    prompt = list(case["prompt"])
    output = getattr(engine, case["function"])(build_gpt(case["model"]), prompt, case["n"])
    try:
        again = _call(engine, case)
    except Exception as error:  # the first call went well, so this tells more than the error does
        again = f"{type(error).__name__}: {error}"
    return {"output": output, "prompt_after": prompt, "again": again}


def generate_variants(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`generate`, and what comes out for each of `variants`; None where it raises."""
    evidence: dict[str, Any] = generate(engine, case) | {"variants": {}}
    for name, changed in variants(case).items():
        evidence["variants"][name] = None
        with contextlib.suppress(Exception):
            evidence["variants"][name] = _call(engine, changed)
    return evidence


def generate_refusal(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`generate`, where a ValueError is expected."""
    return refusal(lambda: _call(engine, case))


def generate_work(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`generate_cached`, with what PyTorch sees of it and its calls of the model's full forward pass."""
    model = build_gpt(case["model"])
    with _forward_calls(type(model)) as calls:
        evidence = observed(model, lambda: _call(engine, case))
    return evidence | {"forward_calls": calls}


@contextlib.contextmanager
def _forward_calls(model_class: type) -> Iterator[list[list[int]]]:
    """The shape of the tokens of each call of `forward`. Replaced in the class, so `model.forward(...)` counts too."""
    calls: list[list[int]] = []
    forward = model_class.forward

    def noted(self: Any, tokens: Any) -> Any:
        calls.append(list(tokens.shape))
        return forward(self, tokens)

    model_class.forward = noted
    try:
        yield calls
    finally:
        model_class.forward = forward


def _logits(case: dict[str, Any]) -> torch.Tensor:
    values = [float("-inf") if value is None else value for value in case["logits"]]  # None, since JSON has no -inf
    return torch.tensor(values).to(getattr(torch, case.get("dtype", "float32")))


def sample(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """`draws` calls of `top_p_sample` with one generator, and whether the logits are as they were."""
    logits = _logits(case)
    generator = torch.Generator().manual_seed(case["generator"])
    draws = [engine.top_p_sample(logits, case["p"], generator) for _ in range(case["draws"])]
    return {"draws": draws, "logits_changed": not bool((logits == _logits(case)).all())}


def sample_refusal(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """One call of `top_p_sample`, where a ValueError is expected."""
    return refusal(lambda: engine.top_p_sample(_logits(case), case["p"], torch.Generator().manual_seed(0)))


def sample_states(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """Draws from generators in the same and in other states, while torch's global random state differs."""

    def draw(seed: int, global_seed: int) -> list[Any]:
        torch.manual_seed(global_seed)
        generator = torch.Generator().manual_seed(seed)
        return [engine.top_p_sample(_logits(case), case["p"], generator) for _ in range(case["draws"])]

    with torch.random.fork_rng(devices=[]):
        same = [draw(case["generator"], global_seed) for global_seed in (1, 1, 2)]
        other = draw(case["generator"] + 1, 1)
        torch.manual_seed(3)
        before = torch.get_rng_state()
        engine.top_p_sample(_logits(case), case["p"], torch.Generator().manual_seed(0))
        global_used = not torch.equal(before, torch.get_rng_state())
    return {"same": same, "other": other, "global_used": global_used}


def inference_imports(engine: Engine, case: dict[str, Any]) -> dict[str, Any]:
    """Where the student's module names `ai_playground.inference`, and whether it is loaded after its functions ran.

    The text is read before anything of it is run.
    """
    source = engine.source("generate_full")
    found = forbidden_imports(source.read_text(encoding="utf-8"))
    for name in [name for name in sys.modules if _FORBIDDEN.search(name)]:
        del sys.modules[name]
    if not found:
        generate(engine, case | {"function": "generate_full"})
        generate(engine, case | {"function": "generate_cached"})
        sample(engine, case)
    loaded = sorted(name for name in sys.modules if _FORBIDDEN.search(name))
    return {"file": source.name, "found": found, "loaded": loaded}


_FORBIDDEN = re.compile(r"(^|\.)ai_playground\.inference(\.|$)")


def forbidden_imports(source: str) -> list[list[Any]]:
    """Every import of `ai_playground.inference` or of what is in it, from the syntax tree: [line, its text].

    Seen are `import` and `from ... import` in all their forms, relative ones included; the attribute `inference` of
    an imported `ai_playground`, under whatever alias; and the names as constant strings in a call or as an index,
    whichever function is called (`importlib.import_module`, `__import__`, an alias of them) or `sys.modules`.
    Comments and docstrings are not code, so what they say does not matter.

    Raises:
        SyntaxError: the source does not parse.
    """
    tree = ast.parse(source)
    packages = {
        name.asname or "ai_playground"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for name in node.names
        if name.name == "ai_playground" or (name.asname is None and name.name.startswith("ai_playground."))
    }
    found = [[node.lineno, ast.unparse(node)] for node in ast.walk(tree) if _names_inference(node, packages)]
    return sorted(found)


def _names_inference(node: ast.AST, packages: set[str]) -> bool:
    if isinstance(node, ast.Import):
        return any(_FORBIDDEN.search(name.name) for name in node.names)
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        full = [f"{module}.{name.name}" for name in node.names]
        if node.level:  # from . import inference, from ..inference import generate, from .. import ai_playground
            return any("inference" in name.split(".") for name in full)
        return any(_FORBIDDEN.search(name) for name in full)
    if isinstance(node, ast.Attribute):
        return node.attr == "inference" and isinstance(node.value, ast.Name) and node.value.id in packages
    if isinstance(node, ast.Call):
        strings = _strings([*node.args, *(keyword.value for keyword in node.keywords)])
    elif isinstance(node, ast.Subscript):
        strings = _strings([node.slice])
    else:
        return False
    names = [string.lstrip(".") for string in strings]
    # import_module(".inference", "ai_playground") and __import__("ai_playground", fromlist=["inference"])
    in_parts = any(name.split(".")[0] == "inference" for name in names) and "ai_playground" in names
    return in_parts or any(_FORBIDDEN.search(name) for name in names)


def _strings(nodes: list[ast.expr]) -> list[str]:
    """The constant strings among some arguments, and in lists and tuples among them."""
    inner = [item for node in nodes for item in (node.elts if isinstance(node, ast.List | ast.Tuple) else [node])]
    return [item.value for item in inner if isinstance(item, ast.Constant) and isinstance(item.value, str)]
