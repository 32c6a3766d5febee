"""No tables: a block knows the block before it, and a request knows its last one.

A request's context is found by walking back from its end. Each request goes through the model by itself, and one that
leaves gives its chain of blocks back at once.
"""

import torch
import torch.nn.functional as F

from ai_playground.models.layers import apply_rope
from m13b_greedy import check_request, default_model

NONE = -1


class Chain:
    """The pool's blocks: the free ones and the owned ones are chains through the same list."""

    def __init__(self, count):
        self.before = [NONE, *range(count - 1)][:count]
        self.free, self.left = count - 1, count

    def take(self, last):
        block = self.free
        self.free, self.before[block] = self.before[block], last
        self.left -= 1
        return block

    def put_back(self, last):
        while last != NONE:
            following = self.before[last]
            self.before[last], self.free = self.free, last
            self.left += 1
            last = following

    def walk(self, last):
        found = []
        while last != NONE:
            found.insert(0, last)
            last = self.before[last]
        return found


class Client:
    def __init__(self, prompt):
        self.prompt, self.output = tuple(prompt), []
        self.last, self.blocks, self.stored = NONE, 0, 0

    def __len__(self):
        return len(self.prompt) + len(self.output)


@torch.no_grad()
def prefill_or_decode(model, keys, values, client, chain, size):
    c, end = model.config, len(client)
    text = [*client.prompt, *client.output][client.stored :]
    place = torch.arange(end)
    block = torch.tensor(chain.walk(client.last))[place // size]
    new = slice(client.stored, end)
    x = model.embedding(torch.tensor(text))[None]
    angles = model.rope_frequencies(x.device)[new]
    visible = place <= place[new, None]
    for i, layer in enumerate(model.layers):
        h = layer.attn_norm(x)
        q, k = layer.attn.wq(h).unflatten(-1, (-1, c.head_dim)), layer.attn.wk(h).unflatten(-1, (-1, c.head_dim))
        q, k = apply_rope(q, k, angles)
        keys[block[new], :, i, place[new] % size] = k[0]
        values[block[new], :, i, place[new] % size] = layer.attn.wv(h).unflatten(-1, (-1, c.head_dim))[0]
        context = (pool[block, :, i, place % size].transpose(0, 1)[None] for pool in (keys, values))
        out = F.scaled_dot_product_attention(q.transpose(1, 2), *context, visible, enable_gqa=True)
        x = x + layer.attn.wo(out.transpose(1, 2).flatten(2))
        x = x + layer.ffn(layer.ffn_norm(x))
    client.stored = end
    client.output.append(int(model.unembed(model.norm(x[0, -1])).argmax()))


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
    need = [(len(prompt) + max_new - 2) // block_size + 1 if max_new else 0 for prompt in requests]
    if block_budget is None:
        block_budget = max([0, *need, sum(need[:max_batch]) // 2])
    for i, blocks in enumerate(need):
        if blocks > block_budget:
            raise ValueError(f"request {i} needs {blocks} blocks to end; the pool has {block_budget}")
    clients = [Client(prompt) for prompt in requests]
    line, inside, chain = list(clients) if max_new else [], [], Chain(block_budget)
    shape = (block_budget, c.n_kv_heads, c.n_layers, block_size, c.head_dim)
    keys, values = (torch.zeros(shape, dtype=model.embedding.weight.dtype) for _ in range(2))
    history, preemptions = [], 0
    last_ones = [eos_id] if type(eos_id) is int else list(eos_id or [])

    def grow(client):
        missing = (len(client) - 1) // block_size + 1 - client.blocks
        if missing > chain.left:
            return False
        for _ in range(missing):
            client.last = chain.take(client.last)
            client.blocks += 1
        return True

    def leave(client):
        chain.put_back(client.last)
        client.last, client.blocks, client.stored = NONE, 0, 0
        inside.remove(client)

    def over(client):
        return len(client.output) == max_new or (client.output and client.output[-1] in last_ones)

    while line or inside:
        if continuous or not inside:
            while line and len(inside) < max_batch and grow(line[0]):
                inside.append(line.pop(0))
                prefill_or_decode(model, keys, values, inside[-1], chain, block_size)
                if over(inside[-1]):
                    leave(inside[-1])
        while any(not grow(client) for client in inside):
            line.insert(0, inside[-1])
            leave(inside[-1])
            preemptions += 1
        batch = list(inside)
        for client in batch:
            prefill_or_decode(model, keys, values, client, chain, block_size)
            if over(client):
                leave(client)
        history.append(
            {
                "running": len(batch),
                "reserved": sum(len(client.prompt) + max_new for client in inside),
                "allocated": sum(client.blocks for client in inside) * block_size,
                "used": sum(client.stored for client in inside),
            }
        )
        if on_step:
            on_step(history[-1])
    return {
        "completed": len(clients),
        "preemptions": preemptions,
        "outputs": [client.output for client in clients],
        "steps": len(history),
        "history": history,
    }
