"""All state in tensors: texts, lengths, block tables and the owner of each block; a step is arithmetic on them.

Requests stand in rows in the order in which they came, and the running ones are a mask over the rows. The lowest free
block is taken first.
"""

import torch
import torch.nn.functional as F

from ai_playground.models.layers import apply_rope
from m13b_greedy import check_request, default_model

FREE, WAITING, RUNNING, DONE = -1, 0, 1, 2


class State:
    def __init__(self, requests, max_new, blocks, size):
        count, longest = len(requests), max(map(len, requests), default=0) + max_new
        self.size = size
        self.text = torch.zeros(count, longest + 1, dtype=torch.long)
        self.prompt = torch.tensor([len(prompt) for prompt in requests], dtype=torch.long)
        for row, prompt in enumerate(requests):
            self.text[row, : len(prompt)] = torch.tensor(prompt)
        self.length, self.cached = self.prompt.clone(), torch.zeros(count, dtype=torch.long)
        self.table = torch.full((count, -(-(longest + 1) // size)), FREE)
        self.owner = torch.full((blocks,), FREE)
        self.phase = torch.full((count,), WAITING if max_new else DONE)

    def rows(self, phase):
        return (self.phase == phase).nonzero()[:, 0]

    def reserve(self, row):
        """Blocks for all tokens of a row; whether there were enough."""
        have = int((self.table[row] != FREE).sum())
        missing = -(-int(self.length[row]) // self.size) - have
        free = (self.owner == FREE).nonzero()[:, 0]
        if missing > len(free):
            return False
        if missing > 0:
            self.table[row, have : have + missing] = free[:missing]
            self.owner[free[:missing]] = row
        return True

    def leave(self, row, phase):
        self.owner[self.owner == row] = FREE
        self.table[row] = FREE
        self.cached[row] = 0
        self.phase[row] = phase


@torch.no_grad()
def advance(model, pool, state, rows):
    """Compute what `rows`, which miss equally many tokens, have not in the cache; their next tokens `(B,)`."""
    new = int(state.length[rows[0]] - state.cached[rows[0]])
    position = state.cached[rows, None] + torch.arange(new)  # (B, T)
    token = state.text[rows].gather(1, position)
    width = int(-(-state.length[rows].max() // state.size))
    table = state.table[rows, :width].clamp(min=0)
    block, offset = table.gather(1, position // state.size), position % state.size
    visible = torch.arange(width * state.size) <= position[..., None]  # (B, T, context)
    bias = torch.zeros(visible.shape, dtype=pool.dtype).masked_fill(~visible, -torch.inf)[:, None]
    angles, head_dim = model.rope_frequencies(position.device)[position], model.config.head_dim
    x = model.embedding(token)
    for number, layer in enumerate(model.layers):
        h = layer.attn_norm(x)
        q, k, v = (w(h).unflatten(-1, (-1, head_dim)) for w in (layer.attn.wq, layer.attn.wk, layer.attn.wv))
        q, k = apply_rope(q, k, angles)
        pool[number, 0].index_put_((block, offset), k)
        pool[number, 1].index_put_((block, offset), v)
        keys, values = pool[number][:, table].flatten(2, 3).transpose(2, 3)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, bias, enable_gqa=True)
        x = x + layer.attn.wo(out.transpose(1, 2).flatten(2))
        x = x + layer.ffn(layer.ffn_norm(x))
    return model.unembed(model.norm(x[:, -1])).argmax(-1)


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
    model = model or default_model()
    c = model.config
    for i, prompt in enumerate(requests):
        check_request(f"request {i}", prompt, max_new, c)
    lengths = torch.tensor([len(prompt) for prompt in requests], dtype=torch.long)
    most = (lengths + max_new - 1 + block_size - 1) // block_size if max_new else torch.zeros_like(lengths)
    if block_budget is None:
        first = (lengths + block_size - 1) // block_size
        block_budget = max([int(first[:max_batch].sum() + most[:max_batch].sum()) // 2, *most.tolist()])
    for i in (most > block_budget).nonzero()[:, 0].tolist():
        raise ValueError(f"request {i}: {int(most[i])} blocks at its end, and the pool has {block_budget}")
    state = State(requests, max_new, block_budget, block_size)
    shape = (c.n_layers, 2, block_budget, block_size, c.n_kv_heads, c.head_dim)
    pool = torch.empty(shape, dtype=model.embedding.weight.dtype).fill_(123.0)  # garbage, but finite: it is masked
    stops = torch.tensor([] if eos_id is None else [eos_id] if isinstance(eos_id, int) else list(eos_id))
    history, preemptions = [], 0

    def put(rows):
        token = advance(model, pool, state, rows)
        state.cached[rows] = state.length[rows]
        state.text[rows, state.length[rows]] = token
        state.length[rows] += 1
        ended = (state.length[rows] - state.prompt[rows] == max_new) | torch.isin(token, stops)
        for row in rows[ended]:
            state.leave(row, DONE)

    while len(state.rows(DONE)) < len(requests):
        if continuous or not len(state.rows(RUNNING)):
            while len(state.rows(WAITING)) and len(state.rows(RUNNING)) < max_batch:
                row = state.rows(WAITING)[0]
                if not state.reserve(row):
                    break
                state.phase[row] = RUNNING
                put(row[None])
        for row in state.rows(RUNNING):
            while state.phase[row] == RUNNING and not state.reserve(row):
                state.leave(state.rows(RUNNING)[-1], WAITING)
                preemptions += 1
        batch = state.rows(RUNNING)
        if len(batch):
            put(batch)
        running = state.rows(RUNNING)
        history.append(
            {
                "running": len(batch),
                "reserved": int((state.prompt[running] + max_new).sum()),
                "allocated": int((state.owner != FREE).sum()) * block_size,
                "used": int(state.cached[running].sum()),
            }
        )
        if on_step:
            on_step(history[-1])
    made = [state.text[i, state.prompt[i] : state.length[i]].tolist() for i in range(len(requests))]
    return {
        "completed": int((state.phase == DONE).sum()),
        "preemptions": preemptions,
        "outputs": made,
        "steps": len(history),
        "history": history,
    }
