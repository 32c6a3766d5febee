"""M13a: `load_model(ws)` gives back the very model that was trained."""

from typing import Any

import torch

from ai_playground.workspace import default_workspace
from checking.check import Check, CheckFailed
from checking.evidence import judge_refusal
from checking.reference import build_model
from checking.shapes import SHAPES
from milestones.m13 import probes
from milestones.subjects import M13

READ = "milestones/m13/m13a.md"
SHIPPED = str(default_workspace())


def judge_load(case: dict[str, Any], evidence: Any) -> None:
    """Eval mode, no gradient, the configuration, and logits within 1e-5 of the reference's."""
    if evidence is None or evidence.get("returned") != "Module":
        returned = (evidence or {}).get("returned", "NoneType")
        found = "None" if returned == "NoneType" else f"a {returned}"
        cause = "the function must `return` the model"
        if returned in ("dict", "OrderedDict"):
            cause = "that is the state dict, names and tensors: return the module that you loaded it into"
        raise CheckFailed("a torch.nn.Module", found, cause)
    model = build_model(case.get("model") or {"workspace": case["workspace"]})
    if evidence["training"]:
        raise CheckFailed("every module in eval mode", f"train mode in {evidence['training'][:3]}", "call `.eval()`")
    if evidence["requires_grad"]:
        raise CheckFailed(
            "no parameter that asks for a gradient",
            f"{evidence['requires_grad'][:3]} do",
            "call `.requires_grad_(False)`",
        )
    if evidence["config"] != model.config.to_dict():
        raise CheckFailed(
            f"model.config as the workspace has it: {model.config.to_dict()}",
            f"{evidence['config']}",
            "build the model from the checkpoint's configuration, not from defaults",
        )
    tokens = torch.tensor(case["tokens"])
    with torch.no_grad():
        expected = model(tokens)
    if evidence["logits_shape"] != list(expected.shape):
        raise CheckFailed(f"logits of shape {list(expected.shape)}", f"{evidence['logits_shape']}")
    found = torch.tensor(evidence["logits"]).view_as(expected)
    # Not `max`: a NaN must fail too.
    close = (found - expected).abs() <= 1e-5 * expected.abs().clamp(min=1.0)
    if not bool(close.all()):
        worst = (found - expected).abs().max().item()
        raise CheckFailed(
            "logits that agree with the reference to 1e-5", f"a difference of {worst:.3g}", _differing(model, evidence)
        )


def _differing(model: Any, evidence: dict[str, Any]) -> str:
    """Which tensors of the checkpoint did not arrive as they are, by name."""
    arrived = evidence["tensors"]
    expected = {name: probes.fingerprint(tensor) for name, tensor in model.state_dict().items()}
    wrong = [name for name in expected if arrived.get(name) != expected[name]]
    extra = [name for name in arrived if name not in expected]
    if "head.weight" in extra:
        return "with tie_embeddings there is no head.weight: the head is the embedding's own matrix"
    if not wrong:
        return "every tensor arrived as it is in the checkpoint, so the forward pass differs"
    by_value = {str(value): name for name, value in expected.items()}
    swapped = [f"{name} holds {by_value[key]}" for name in wrong if (key := str(arrived.get(name))) in by_value]
    cause = f"these tensors are not the checkpoint's: {', '.join(wrong[:4])}"
    if len(wrong) > 4:
        cause += f" and {len(wrong) - 4} more"
    if len(wrong) > 1 and wrong == [name for name in expected if "norm" in name]:
        cause = f"all {len(wrong)} norm weights, and no others, are not the checkpoint's: {wrong[0]}, ..., {wrong[-1]}"
    if swapped:
        return f"{cause} ({'; '.join(swapped[:2])})"
    rounded = [name for name in wrong if name in arrived and _nearly(arrived[name], expected[name])]
    return f"{cause} (they are rounded: has a shorter dtype come in between?)" if rounded == wrong else cause


def _nearly(found: list[Any], expected: list[Any]) -> bool:
    return found[0] == expected[0] and abs(found[2] - expected[2]) <= 0.01 * abs(expected[2])


def judge_damaged(case: dict[str, Any], evidence: Any) -> None:
    """The damaged tensor is named."""
    ((kind, name),) = case["damage"].items()
    what = {"drop": "is missing", "add": "does not belong there", "cut": "has the wrong shape"}[kind]
    judge_refusal(evidence, [name], f"the tensor {name} {what}")


TOKENS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5]]
TINY = {"config": SHAPES["gqa"], "seed": 11}

CHECKS = (
    Check(
        name="m13a.shipped_model",
        claim="the trained model arrives whole, in eval mode, without gradients",
        probe=probes.load,
        form=probes.LOADED,
        cases=({"label": "load_model(checkpoints/myllm)", "workspace": SHIPPED, "tokens": TOKENS},),
        judge=judge_load,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13a.other_shapes",
        claim="models of other shapes load too: the configuration in the workspace decides",
        probe=probes.load,
        form=probes.LOADED,
        cases=tuple(
            {"label": f"a random {name} model", "model": {"config": config, "seed": 7}, "tokens": TOKENS}
            for name, config in SHAPES.items()
        ),
        judge=judge_load,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13a.damaged_checkpoint",
        claim="a checkpoint that does not match its configuration is refused by the name of the tensor",
        probe=probes.load,
        form=(probes.REFUSAL, probes.LOADED),
        cases=tuple(
            {"label": label, "model": TINY, "damage": damage}
            for label, damage in (
                ("a checkpoint without layers.1.attn.wk.weight", {"drop": "layers.1.attn.wk.weight"}),
                ("a checkpoint without norm.weight", {"drop": "norm.weight"}),
                ("a checkpoint with an extra layers.7.attn.wq.weight", {"add": "layers.7.attn.wq.weight"}),
                ("a checkpoint with one row of layers.0.ffn.up.weight cut off", {"cut": "layers.0.ffn.up.weight"}),
            )
        ),
        judge=judge_damaged,
        read=READ,
        subject=M13,
    ),
)
