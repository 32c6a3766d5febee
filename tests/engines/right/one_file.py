"""Everything in one serve_myllm.py, in functions; slots are flat, and requests are admitted after the decode."""

import heapq
import time
from datetime import UTC, datetime

import torch

from ai_playground.models import Transformer
from ai_playground.models.layers import apply_rope
from ai_playground.prompts import FINALE_PROMPTS
from ai_playground.workspace import default_workspace, load_checkpoint, load_tokenizer


def load_model(ws):
    checkpoint = load_checkpoint(ws)
    with torch.device("meta"):
        model = Transformer(checkpoint["config"])
    try:
        model.load_state_dict({k: v.clone() for k, v in checkpoint["model"].items()}, strict=True, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{ws}: {error}") from None
    ready = Transformer(checkpoint["config"])  # its rotations are not on the meta device
    ready.load_state_dict(model.state_dict())
    for parameter in ready.parameters():
        parameter.requires_grad = False
    ready.train(False)
    return ready


def refuse(name, prompt, n, config):
    if len(prompt) < 1:
        raise ValueError(f"{name} has an empty prompt")
    if min(prompt) < 0 or max(prompt) >= config.vocab_size:
        raise ValueError(f"{name}: tokens {min(prompt)} to {max(prompt)} are not all below {config.vocab_size}")
    if len(prompt) + n > config.max_seq_len:
        raise ValueError(f"{name}: {len(prompt)} + {n} > {config.max_seq_len}")


@torch.no_grad()
def greedy_reference(prompt_ids, n, *, model=None):
    model = model or load_model(default_workspace())
    refuse("the request", prompt_ids, n, model.config)
    out = []
    while len(out) < n:
        out.append(model(torch.tensor([prompt_ids + out]))[0].argmax(-1)[-1].item())
    return out


@torch.no_grad()
def step(model, k_pool, v_pool, rows):
    """One pass over `rows` of (tokens, first position, slots of all positions up to the last); their next tokens."""
    c = model.config
    embedding = model.embedding.weight
    flat = [token for tokens, _, _ in rows for token in tokens]
    positions = torch.tensor([start + i for tokens, start, _ in rows for i in range(len(tokens))])
    slots = torch.tensor([all_slots[start + i] for tokens, start, all_slots in rows for i in range(len(tokens))])
    row_of = torch.tensor([r for r, (tokens, _, _) in enumerate(rows) for _ in tokens])
    # All rows' tokens in one long line: key j of row r is visible to a token of row r at position >= j.
    key_slots = torch.tensor([slot for _, _, all_slots in rows for slot in all_slots])
    key_row = torch.tensor([r for r, (_, _, all_slots) in enumerate(rows) for _ in all_slots])
    key_position = torch.tensor([p for _, _, all_slots in rows for p in range(len(all_slots))])
    visible = (row_of[:, None] == key_row) & (positions[:, None] >= key_position)
    x = embedding[torch.tensor(flat)]
    angles = model.rope_frequencies(x.device)[positions]
    for number, layer in enumerate(model.layers):
        h = layer.attn_norm(x)
        q = layer.attn.wq(h).reshape(len(flat), c.n_heads, c.head_dim)
        k = layer.attn.wk(h).reshape(len(flat), c.n_kv_heads, c.head_dim)
        q, k = apply_rope(q, k, angles)
        k_pool.select(0, number).index_copy_(0, slots, k)
        v_pool.select(0, number).index_copy_(0, slots, layer.attn.wv(h).reshape(len(flat), c.n_kv_heads, c.head_dim))
        keys, values = k_pool[number].index_select(0, key_slots), v_pool[number].index_select(0, key_slots)
        q = q.reshape(len(flat), c.n_kv_heads, -1, c.head_dim)
        scores = torch.einsum("tkgd,ckd->kgtc", q.float(), keys.float()) / c.head_dim**0.5
        weights = torch.where(visible, scores, -torch.inf).softmax(-1).to(values.dtype)
        x = x + layer.attn.wo(torch.einsum("kgtc,ckd->tkgd", weights, values).reshape(len(flat), -1))
        x = x + layer.ffn(layer.ffn_norm(x))
    last = torch.tensor([len(tokens) for tokens, _, _ in rows]).cumsum(0) - 1
    return model.unembed(model.norm(x[last])).argmax(-1).tolist()


def pools(model, slots):
    c, dtype = model.config, model.embedding.weight.dtype
    shape = (c.n_layers, slots, c.n_kv_heads, c.head_dim)
    return torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)


def slots_of(blocks, size, length):
    return [blocks[p // size] * size + p % size for p in range(length)]


def greedy_paged(prompt_ids, n, *, model=None, block_size=16):
    model = model or load_model(default_workspace())
    refuse("the request", prompt_ids, n, model.config)
    count = (len(prompt_ids) + n + block_size - 1) // block_size
    k_pool, v_pool = pools(model, count * block_size)
    blocks = list(reversed(range(count)))
    sequence, start = list(prompt_ids), 0
    for _ in range(n):
        row = (sequence[start:], start, slots_of(blocks, block_size, len(sequence)))
        start = len(sequence)
        sequence += step(model, k_pool, v_pool, [row])
    return sequence[len(prompt_ids) :]


def serve(
    requests,
    max_new,
    block_budget=None,
    *,
    model=None,
    block_size=16,
    max_batch=8,
    continuous=True,
    eos_id=None,
    on_step=None,
):
    model = model or load_model(default_workspace())
    for number, prompt in enumerate(requests):
        refuse(f"request {number}", prompt, max_new, model.config)

    def needs(tokens):
        return (tokens + block_size - 1) // block_size

    most = [needs(len(prompt) + max_new - 1) if max_new else 0 for prompt in requests]
    if block_budget is None:
        block_budget = max([0, *most, (sum(most[:max_batch]) + sum(needs(len(p)) for p in requests[:max_batch])) // 2])
    for number, blocks in enumerate(most):
        if blocks > block_budget:
            raise ValueError(f"request {number}: {blocks} blocks needed, {block_budget} there")
    k_pool, v_pool = pools(model, block_budget * block_size)
    free = list(range(block_budget))
    owned = {}
    sequences = [list(prompt) for prompt in requests]
    made = [0] * len(requests)
    queue = list(range(len(requests))) if max_new else []
    heapq.heapify(queue)  # by arrival, so that a preempted request is at the front again
    batch, history, preemptions = [], [], 0
    ends = eos_id if isinstance(eos_id, tuple) else (eos_id,)

    def grow(number):
        lacking = needs(len(sequences[number])) - len(owned.setdefault(number, []))
        if lacking > len(free):
            return False
        owned[number] += [heapq.heappop(free) for _ in range(lacking)]
        return True

    def give_back(number):
        for block in owned.pop(number):
            heapq.heappush(free, block)

    def advance(numbers, whole):
        rows = []
        for n in numbers:
            start = 0 if whole else len(sequences[n]) - 1
            rows.append((sequences[n][start:], start, slots_of(owned[n], block_size, len(sequences[n]))))
        for n, token in zip(numbers, step(model, k_pool, v_pool, rows), strict=True):
            sequences[n].append(token)
            made[n] += 1
            if made[n] == max_new or token in ends:
                give_back(n)
                batch.remove(n)

    while queue or batch:
        for number in list(batch):
            while number in batch and not grow(number):
                victim = batch.pop()
                give_back(victim)
                heapq.heappush(queue, victim)
                preemptions += 1
        size = len(batch)
        if batch:
            advance(list(batch), whole=False)
        if continuous or not batch:
            while queue and len(batch) < max_batch:
                owned.pop(queue[0], None)
                if not grow(queue[0]):
                    owned.pop(queue[0])
                    break
                batch.append(heapq.heappop(queue))
                advance([batch[-1]], whole=True)
        history.append(
            {
                "running": size,
                "reserved": sum(len(requests[n]) + max_new for n in batch),
                "allocated": sum(len(owned[n]) for n in batch) * block_size,
                "used": sum(len(sequences[n]) - 1 for n in batch),
            }
        )
        if on_step:
            on_step(history[-1])
    outputs = [sequence[len(prompt) :] for sequence, prompt in zip(sequences, requests, strict=True)]
    return {
        "completed": len(requests),
        "preemptions": preemptions,
        "outputs": outputs,
        "steps": len(history),
        "history": history,
    }


def finale(ws, *, on_step=None):
    model, tokenizer = load_model(ws), load_tokenizer(ws)
    prompts = tokenizer.encode_batch(list(FINALE_PROMPTS))
    begin = time.monotonic()
    report = serve(prompts, 64, model=model, eos_id=model.config.eos_id, on_step=on_step)
    seconds = time.monotonic() - begin
    count = sum(len(output) for output in report["outputs"])
    total = {key: sum(record[key] for record in report["history"]) for key in report["history"][0]}
    return {
        "text": tokenizer.decode(report["outputs"][0]),
        "output_ids": report["outputs"][0],
        "tokens": count,
        "seconds": seconds,
        "tokens_per_sec": count / seconds,
        "steps": report["steps"],
        "completed": report["completed"],
        "preemptions": report["preemptions"],
        "mean_occupancy": total["running"] / 8 / report["steps"],
        "kv_waste_naive": 1 - total["used"] / total["reserved"],
        "kv_waste_paged": 1 - total["used"] / total["allocated"],
        "engine": "serve_myllm.py",
        "torch_version": torch.__version__,
        "when": datetime.now(UTC).isoformat(),
    }
