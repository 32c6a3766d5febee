"""Right engines: the folders and files beside this module, and the reference solution with parts done otherwise."""

from tests.engines.engine import B, C, Engine, Patch

# ruff: noqa: E501  a table of short texts reads better unbroken


def right(name: str, idea: str, *patches: Patch, files: str = "") -> Engine:
    return Engine(name, idea, patches, files=files)


_POOL = "        self.keys = torch.zeros(shape, dtype=weight.dtype, device=weight.device)\n        self.values = torch.zeros(shape, dtype=weight.dtype, device=weight.device)\n"
_SHAPE = "shape = (config.n_layers, num_blocks, block_size, config.n_kv_heads, config.head_dim)"
_WRITE = "        self.keys[layer].flatten(0, 1)[slots] = k  # flatten is a view here: the pool itself is written\n        self.values[layer].flatten(0, 1)[slots] = v\n"
_GATHER = "return self.keys[layer][block_tables].flatten(1, 2), self.values[layer][block_tables].flatten(1, 2)"
_STEP = "        self._admit()\n        self._make_room()\n        batch = len(self.running)\n        self._decode()\n        self._retire()\n"
_FORWARD = "return paged_forward(self.model, self.cache, rows, places, padded).argmax(dim=-1).tolist()"
_ADMITTED = "            admitted.append(seq)\n"
_SDPA = """        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, enable_gqa=True
        )  # (B, n_heads, T, head_dim)
"""

RIGHT = (
    right("reference", "the reference solution as it is"),
    right("per_sequence", "loops over sequences and tokens, manual softmax, heads before offsets", files="per_sequence"),
    right("separate_phases", "a step is padded prefills or one decode; deques; K and V in one tensor; inference mode", files="separate_phases"),
    right("block_tensors", "a tensor for each block, made lazily; layers innermost", files="block_tensors"),
    right("one_file", "one serve_myllm.py in functions; flat slots; one long line of tokens; admits after the decode", files="one_file.py"),
    right("one_tensor", "K and V in one tensor",
          (B, _POOL, "        self.kv = torch.zeros((2, *shape), dtype=weight.dtype, device=weight.device)\n"),
          (B, _WRITE, "        self.kv[:, layer].flatten(1, 2)[:, slots] = torch.stack((k, v))\n"),
          (B, _GATHER, "return tuple(self.kv[:, layer][:, block_tables].flatten(2, 3))")),
    right("layers_innermost", "layers innermost in the pool",
          (B, _SHAPE, "shape = (num_blocks, block_size, config.n_layers, config.n_kv_heads, config.head_dim)"),
          (B, _WRITE, "        self.keys.flatten(0, 1)[slots, layer] = k\n        self.values.flatten(0, 1)[slots, layer] = v\n"),
          (B, _GATHER, "return self.keys[block_tables][:, :, :, layer].flatten(1, 2), self.values[block_tables][:, :, :, layer].flatten(1, 2)")),
    right("functional_pool", "the pool is replaced, not written in place",
          (B, _WRITE, "        keys, values = self.keys[layer].flatten(0, 1), self.values[layer].flatten(0, 1)\n"
                      "        keys, values = keys.index_put((slots,), k), values.index_put((slots,), v)\n"
                      "        keep = torch.arange(len(self.keys)) == layer\n"
                      "        keep = keep[:, None, None, None, None]\n"
                      "        self.keys = torch.where(keep, keys.view_as(self.keys[0])[None], self.keys)\n"
                      "        self.values = torch.where(keep, values.view_as(self.values[0])[None], self.values)\n")),
    right("float32_pool", "a float32 pool, also for a bfloat16 model",
          (B, _POOL, _POOL.replace("weight.dtype", "torch.float32")),
          (B, _WRITE, _WRITE.replace("= k", "= k.float()").replace("= v", "= v.float()")),
          (B, _SDPA, _SDPA.replace("q.transpose(1, 2)", "q.float().transpose(1, 2)") + "        out = out.to(x.dtype)\n")),
    right("manual_attention", "repeat_interleave and softmax instead of scaled_dot_product_attention",
          (B, _SDPA, "        group = q.shape[2] // keys.shape[2]\n"
                     "        keys, values = keys.repeat_interleave(group, 2), values.repeat_interleave(group, 2)\n"
                     "        scores = torch.einsum('bthd,bchd->bhtc', q, keys) / q.shape[-1] ** 0.5\n"
                     "        out = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values.transpose(1, 2)\n")),
    right("logits_of_all_rows", "the head for every row, the last one taken",
          (B, "return model.unembed(model.norm(x[:, -1]))", "return model.unembed(model.norm(x))[:, -1]")),
    right("oldest_block_first", "a queue of free blocks instead of a stack", (B, "table.append(self.free.pop())", "table.append(self.free.pop(0))")),
    right("padded_with_minus_one", "tables padded with -1, which the mask hides", (C, "table + [0] * (width - len(table))", "table + [-1] * (width - len(table))")),
    right("null_block", "one block more than the budget, for padding",
          (B, _SHAPE, _SHAPE.replace("num_blocks,", "num_blocks + 1,")),
          (C, "table + [0] * (width - len(table))", "table + [self.cache.keys.shape[1] - 1] * (width - len(table))")),
    right("large_pool_for_one", "greedy_paged with a pool of fixed size",
          (B, "num_blocks = -(-(len(prompt_ids) + n) // block_size)", "num_blocks = model.config.max_seq_len // block_size + 1")),
    right("decode_one_by_one", "a forward pass for each running request",
          (C, _FORWARD, "out = []\n        for row in range(len(rows)):\n"
                        "            out += paged_forward(self.model, self.cache, rows[row : row + 1], places[row : row + 1], "
                        "padded[row : row + 1]).argmax(dim=-1).tolist()\n        return out")),
    right("prefill_in_chunks", "a prefill goes through the model in chunks of 5 tokens",
          (C, _FORWARD, "for at in range(0, rows.shape[1], 5):\n"
                        "            logits = paged_forward(self.model, self.cache, rows[:, at : at + 5], places[:, at : at + 5], padded)\n"
                        "        return logits.argmax(dim=-1).tolist()")),
    right("prefill_token_by_token", "a prefill is decode steps, one after the other",
          (C, _FORWARD, "for at in range(rows.shape[1]):\n"
                        "            logits = paged_forward(self.model, self.cache, rows[:, at : at + 1], places[:, at : at + 1], padded)\n"
                        "        return logits.argmax(dim=-1).tolist()")),
    right("one_admission_a_step", "at most one request is admitted in a step",
          (C, _ADMITTED, _ADMITTED + "            break\n")),
    right("admits_after_decode", "requests join after the decode of a step",
          (C, _STEP, "        self._make_room()\n        batch = len(self.running)\n        self._decode()\n        self._retire()\n        self._admit()\n")),
    right("position_in_a_deque", "running is a deque; the victim is taken by its position",
          (C, "self.running: list[Sequence] = []", "self.running = deque()"),
          (C, "        self.running = still_running\n", "        self.running = deque(still_running)\n"),
          (C, "self._preempt(self.running.pop())", "victim = self.running[len(self.running) - 1]\n                self.running.remove(victim)\n                self._preempt(victim)")),
    right("inference_mode", "torch.inference_mode around the pass",
          (B, "@torch.no_grad()\ndef paged_forward(", "@torch.inference_mode()\ndef paged_forward(")),
)  # fmt: skip
