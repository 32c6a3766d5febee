"""How models are stretched beyond the context that they were first trained on: factors of RoPE's frequencies."""

import math
from pathlib import Path
from typing import Any

from ai_playground.importing.refusals import ImportRefused

SERVED = ("default", "linear", "llama3", "yarn")


def rope_factors(
    settings: dict[str, Any], head_dim: int, theta: float, context: int, path: Path
) -> tuple[tuple[float, ...] | None, float]:
    """The numbers that `precompute_rope_frequencies` takes as `factors` and `scale`.

    Args:
        settings: `rope_scaling` or `rope_parameters` of a config.json.
        head_dim: numbers in a head.
        theta: the base of the frequencies.
        context: `max_position_embeddings`.

    Raises:
        ImportRefused: another way of stretching, or one that lacks a number.
    """
    kind = settings.get("rope_type", settings.get("type")) or "default"
    if kind not in SERVED:
        raise ImportRefused(
            f"{path}: RoPE scaling {kind!r} is not supported, only {', '.join(SERVED)}; found {settings}"
        )
    if settings.get("partial_rotary_factor", 1.0) != 1.0:
        raise ImportRefused(f"{path}: RoPE on a part of each head is not supported, found {settings}")
    if kind == "default":
        return None, 1.0
    try:
        if kind == "linear":
            return (float(settings["factor"]),) * (head_dim // 2), 1.0
        if kind == "llama3":
            return _llama3(settings, head_dim, theta), 1.0
        return _yarn(settings, head_dim, theta, context)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise ImportRefused(f"{path}: RoPE scaling {kind!r} cannot be computed from {settings} ({error!r})") from None


def _llama3(settings: dict[str, Any], head_dim: int, theta: float) -> tuple[float, ...]:
    """Llama 3.1: long waves are stretched, short ones are left, and between the two it goes over."""
    factor, low, high = (float(settings[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    first = float(settings["original_max_position_embeddings"])
    factors = []
    for pair in range(head_dim // 2):
        wave = 2 * math.pi * theta ** (2 * pair / head_dim)  # positions for one turn
        share = (first / wave - low) / (high - low)  # 0 and below: a long wave; 1 and above: a short one
        share = min(max(share, 0.0), 1.0)
        factors.append(1 / ((1 - share) / factor + share))
    return tuple(factors)


def _yarn(settings: dict[str, Any], head_dim: int, theta: float, context: int) -> tuple[tuple[float, ...], float]:
    """YaRN (Peng et al., 2023): the same by number of turns, and scores that grow a little."""
    first = float(settings.get("original_max_position_embeddings") or context)
    factor = float(settings.get("factor") or context / first)

    def growth(weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(first / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = pair_that_turns(settings.get("beta_fast") or 32)
    high = pair_that_turns(settings.get("beta_slow") or 1)
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    factors = []
    for pair in range(head_dim // 2):
        stretched = min(max((pair - low) / (high - low if high != low else 0.001), 0.0), 1.0)
        factors.append(1 / (stretched / factor + 1 - stretched))
    scale = settings.get("attention_factor")
    if scale is None:
        both = settings.get("mscale"), settings.get("mscale_all_dim")
        scale = growth(both[0]) / growth(both[1]) if all(both) else growth()
    return tuple(factors), float(scale)
