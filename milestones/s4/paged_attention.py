"""Section 3: attention through a block table."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ai_playground.chapter import KVPool
from ai_playground.models import TransformerConfig
from checking.check import CheckFailed
from milestones.s4.answers import Case, names_of
from milestones.s4.tensors import close, numbers, tensor_of


def _attention_inputs(case: Case) -> tuple[Tensor, Tensor, Tensor, KVPool]:
    """q, contiguous k and v, and a pool full of other sequences' values in which k and v are scattered."""
    rng = torch.Generator().manual_seed(case["seed"])
    heads, kv_heads, head_dim = case["heads"]
    config = TransformerConfig(
        vocab_size=2, dim=2, n_layers=2, n_heads=heads, n_kv_heads=kv_heads, head_dim=head_dim, hidden_dim=2,
        max_seq_len=2,
    )  # fmt: skip
    pool = KVPool(config, case["num_blocks"], case["block_size"])
    pool.keys.copy_(torch.randn(pool.keys.shape, generator=rng) * 3)
    pool.values.copy_(torch.randn(pool.values.shape, generator=rng) * 3)
    q = torch.randn(heads, head_dim, generator=rng) * 2
    k = torch.randn(len(case["slots"]), kv_heads, head_dim, generator=rng)
    v = torch.randn(len(case["slots"]), kv_heads, head_dim, generator=rng)
    pool.write(case["layer"], torch.tensor(case["slots"]), k, v)
    return q, k, v, pool


def probe_attention(engine: Any, case: Case) -> Any:
    names = names_of(engine, "attention")
    q, _, _, pool = _attention_inputs(case)
    length = len(case["slots"])
    gathered = names["gather_kv"](pool, case["layer"], list(case["table"]), length)
    if not isinstance(gathered, tuple | list) or len(gathered) != 2:
        gathered = (None, None)
    out = names["paged_attention"](q.clone(), pool, case["layer"], list(case["table"]), length)
    return {"k": numbers(gathered[0]), "v": numbers(gathered[1]), "out": numbers(out)}


def judge_attention(case: Case, found: Any) -> None:
    q, k, v, pool = _attention_inputs(case)
    heads, kv_heads, head_dim = case["heads"]
    layer = case["layer"]
    for name, right in (("k", k), ("v", v)):
        got = tensor_of(
            found[name],
            list(right.shape),
            f"gather_kv's {name}, (length, n_kv_heads, head_dim)",
            "gather whole blocks, then cut to the sequence's length: the tail of the last block is not its own",
        )
        if close(got, right):
            continue
        cause = "follow the block table: its order is the order of the tokens, whatever the blocks' numbers are"
        memory = pool.keys if name == "k" else pool.values
        if close(got, memory[1 - layer].flatten(0, 1)[case["slots"]]):
            cause = "these are another layer's: index the pool with `layer` first"
        raise CheckFailed(f"gather_kv to give the sequence's {name} in the order of its tokens", "other values", cause)

    got = tensor_of(found["out"], [heads, head_dim], "paged_attention's result, (n_heads, head_dim)")
    if close(got, attend(q, k, v)):
        return
    group = heads // kv_heads
    whole_k = pool.keys[layer].flatten(0, 1)[_table_slots(case)]
    whole_v = pool.values[layer].flatten(0, 1)[_table_slots(case)]
    guesses = {
        "attention ran over the unused tail of the last block as well: cut the gathered keys to the length": attend(
            q, whole_k, whole_v
        ),
        "the scores are not scaled: divide by the square root of head_dim before the softmax": attend(
            q * head_dim**0.5, k, v
        ),
        f"GQA: query heads 0 to {group - 1} share KV head 0, the next {group} share KV head 1, and so on; yours go "
        "round in turn (repeat where repeat_interleave is meant)": attend(
            q, k.repeat(1, group, 1), v.repeat(1, group, 1)
        ),
        "the last token was left out: a token attends to itself too": attend(q, k[:-1], v[:-1]),
    }  # fmt: skip
    cause = next((cause for cause, guess in guesses.items() if close(got, guess)), "")
    raise CheckFailed(
        "attention over the gathered keys and values, as over contiguous ones",
        f"a result that is off by up to {(got - attend(q, k, v)).abs().max():.2g}",
        cause or "over which axis is the softmax taken? It must be the one of the tokens",
    )


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`(n_heads, head_dim)` from contiguous keys and values."""
    if not len(k):
        return torch.zeros_like(q)
    out = F.scaled_dot_product_attention(q[:, None], k.transpose(0, 1), v.transpose(0, 1), enable_gqa=True)
    return out[:, 0]


def _table_slots(case: Case) -> list[int]:
    size = case["block_size"]
    return [block * size + offset for block in case["table"] for offset in range(size)]
