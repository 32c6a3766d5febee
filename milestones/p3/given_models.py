"""p3's given model, whole or with a part of it taken away."""

import json
from functools import lru_cache
from typing import Any

import torch

from projects.p3_kv_serve.given_model import GPT, GPTConfig, given_model


def changed_gpt(config: dict[str, Any], seed: int, change: str | None) -> GPT:
    """p3's given model, with a part of it made to matter not at all (or to make ties).

    A wrong decoder that is right on a changed model is wrong in what the change took away: that is how p3's judge
    finds causes.
    """
    model = given_model(GPTConfig(**config), seed)
    with torch.no_grad():
        if change == "same keys and values":  # what is cached, and what is seen of it, makes no difference
            for block in model.blocks:
                block.ln_1.weight.zero_()
        elif change == "no attention":
            for block in model.blocks:
                block.proj.weight.zero_()
        elif change == "no feed-forward":
            for block in model.blocks:
                block.down.weight.zero_()
        elif change == "ties":  # every logit is exactly 0 or 1, and several are 1
            model.ln_f.weight.zero_()
            model.ln_f.bias.zero_()[0] = 1.0
            model.head.weight.zero_()[[7, 8, -1], 0] = 1.0
        elif change is not None:
            raise ValueError(f"unknown change {change!r}")
    return model


def build_gpt(spec: dict[str, Any]) -> GPT:
    """The model that a case asks for; each is made once.

    Args:
        spec: `{"gpt": {...}, "seed": int}`, which may have a `"change"` (see `changed_gpt`).
    """
    return _build(json.dumps(spec, sort_keys=True))


@lru_cache(maxsize=64)
def _build(text: str) -> GPT:
    spec = json.loads(text)
    return changed_gpt(spec["gpt"], spec["seed"], spec.get("change"))
