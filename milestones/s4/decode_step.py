"""Section 4: one new token for each sequence of a batch."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ai_playground.chapter import KVPool, prefill
from ai_playground.models import Transformer, TransformerConfig
from ai_playground.models.layers import apply_rope
from checking.check import CheckFailed
from checking.reference import random_model
from milestones.s4.answers import Case, names_of, stand_ins
from milestones.s4.paged_attention import attend
from milestones.s4.tensors import close, numbers, tensor_of


def _one_block(pool: KVPool, layer: int, table: list[int], length: int) -> tuple[Tensor, Tensor]:
    """The stand-in for the gather: with one block a sequence, the cache is contiguous already."""
    return pool.keys[layer, table[0], :length], pool.values[layer, table[0], :length]


def _decode_model(case: Case) -> Transformer:
    return random_model(TransformerConfig(**case["config"]), case["seed"])


def probe_decode(engine: Any, case: Case) -> Any:
    """Prefill each context into a block of its own, then let the student decode one token for each."""
    names = names_of(engine, "decode")
    model, contexts = _decode_model(case), case["contexts"]
    size = case["config"]["max_seq_len"]
    pool = KVPool(model.config, len(contexts) + 1, size)
    rng = torch.Generator().manual_seed(case["seed"])
    for memory in (pool.keys, pool.values):
        memory.copy_(torch.randn(memory.shape, generator=rng))
    # Sequence ids that are not row numbers, and blocks that are not in their order.
    ids = [10 + 3 * row for row in range(len(contexts))]
    tables = {seq_id: [len(contexts) - row] for row, seq_id in enumerate(ids)}
    manager = SimpleNamespace(
        block_size=size,
        tables=tables,
        lengths={seq_id: len(context) + 1 for seq_id, context in zip(ids, contexts, strict=True)},
        slot=lambda seq_id, position: tables[seq_id][0] * size + position,
    )
    for seq_id, context in zip(ids, contexts, strict=True):
        if context:
            prefill(model, pool, manager, seq_id, context)
    before = pool.keys.clone()
    with stand_ins(names, gather_kv=_one_block, paged_attention=lambda q, *where: attend(q, *_one_block(*where))):
        logits = names["decode"](model, pool, manager, list(ids), list(case["tokens"]))
    changed = (pool.keys != before).any(dim=-1).any(dim=-1).flatten(1)  # (n_layers, slots)
    return {
        "logits": numbers(logits),
        "changed": [layer.nonzero().flatten().tolist() for layer in changed],
        "keys": numbers(torch.stack([pool.keys[0, tables[s][0], manager.lengths[s] - 1] for s in ids])),
    }


@torch.no_grad()
def judge_decode(case: Case, found: Any) -> None:
    model, contexts, tokens = _decode_model(case), case["contexts"], case["tokens"]
    config = model.config
    slots = [
        (len(contexts) - row) * config.max_seq_len + len(context) for row, context in enumerate(contexts)
    ]  # where probe_decode put them
    # The first layer's keys depend on the token and its position alone, so they tell which position was used.
    got = tensor_of(found["keys"], [len(contexts), config.n_kv_heads, config.head_dim], "the keys of the new tokens")
    layer = model.layers[0]
    raw = layer.attn.wk(layer.attn_norm(model.embedding(torch.tensor(tokens)))).unflatten(-1, (-1, config.head_dim))
    freqs = model.rope_frequencies(raw.device)
    for row, context in enumerate(contexts):
        everywhere, _ = apply_rope(raw[row].expand(1, config.max_seq_len, -1, -1), raw[row][None, None], freqs)
        if close(got[row], everywhere[0, len(context)]):
            continue
        found_at = [p for p in range(config.max_seq_len) if close(got[row], everywhere[0, p])]
        what = f"the key of the new token of sequence {row}, whose context is {len(context)} tokens"
        if found_at:
            raise CheckFailed(
                f"{what}, rotated for position {len(context)}",
                f"a key rotated for position {found_at[0]}",
                "RoPE: every sequence of the batch stands at a position of its own; the new token's is length - 1",
            )
        if slots[row] not in found["changed"][0]:
            raise CheckFailed(
                f"{what}, written to slot {slots[row]}",
                f"slot {slots[row]} unchanged; written were {found['changed'][0]}",
                "write the new keys and values to the pool, at manager.slot(seq_id, position), before attending",
            )
        if close(got[row], raw[row]):
            raise CheckFailed(what + ", rotated", "a key that was not rotated", "apply RoPE before the key is stored")
        raise CheckFailed(what, "another key in its slot", "normed, projected by wk, rotated: is this order kept?")
    for index, changed in enumerate(found["changed"]):
        if sorted(changed) != sorted(slots):
            raise CheckFailed(
                f"layer {index} to write the slots {sorted(slots)}, one for each sequence, and no other",
                f"slots {changed}",
                "one new token a sequence, written once in every layer; the slot belongs to its position",
            )
    got = tensor_of(found["logits"], [len(contexts), config.vocab_size], "decode's logits, (B, vocab_size)")
    rows = [model(torch.tensor([[*context, token]]))[0, -1] for context, token in zip(contexts, tokens, strict=True)]
    for row, right in enumerate(rows):
        if close(got[row], right):
            continue
        others = [other for other in range(len(rows)) if other != row and close(got[row], rows[other])]
        cause = "does the query see every token up to and with its own? Write first, then attend; residuals kept?"
        if others:
            cause = f"the rows are mixed up: this is the result of sequence {others[0]}"
        raise CheckFailed(
            f"the logits of full recompute for sequence {row} ({len(contexts[row])} tokens of context)",
            f"logits that are off by up to {(got[row] - right).abs().max():.2g}",
            cause,
        )
