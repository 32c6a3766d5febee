"""Section 1: the size of the cache."""

from typing import Any

from checking.check import CheckFailed
from milestones.s4.answers import Case, names_of


def probe_kv_bytes(engine: Any, case: Case) -> Any:
    return names_of(engine, "kv_bytes")["kv_bytes_per_token"](*case["shape"])


def judge_kv_bytes(case: Case, found: Any) -> None:
    layers, kv_heads, head_dim, size = case["shape"]
    expected = 2 * layers * kv_heads * head_dim * size
    if type(found) is int and found == expected:
        return
    cause = ""
    if found == expected / 2:
        cause = "the cache keeps a key and a value: two vectors a head, not one"
    elif found == expected:
        cause = "bytes are whole numbers: return an int"
    raise CheckFailed(f"{expected:,} bytes (int)", f"{found!r}", cause)
