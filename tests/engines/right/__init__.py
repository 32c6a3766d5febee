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

_PREFILLS = "        for prompt, table in zip(prompts, tables, strict=True):\n            next_tokens += self._forward([prompt], [list(range(len(prompt)))], [table])\n        return next_tokens\n"
_RELEASED = "self.free.extend(self.tables.pop(seq_id))"

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
    right("flat_batch", "vLLM v1: one flat batch a step, chunks and decodes mixed, computed-token counts, a pool of NaN", files="flat_batch"),
    right("prefix_sharing", "blocks found by contents, counted by reference, hit again after a preemption", files="prefix_sharing"),
    right("lazy_preemption", "a preempted request keeps its blocks until they are needed, and recomputes only what was lost", files="lazy_preemption"),
    right("room_first", "room first, admission after it in the same pass; a slot ahead; a tensor a key/value head", files="room_first"),
    right("tensor_tables", "texts, tables, owners and phases are tensors; the pool begins as garbage", files="tensor_tables"),
    right("left_padded", "prefill in one rectangle padded on the left; a pool a layer; first-in-first-out blocks", files="left_padded"),
    right("prefill_but_last", "a prefill makes no token: the first one comes from the batch, one step later", files="prefill_but_last"),
    right("coroutines", "each request is a coroutine that asks for blocks and passes; passes are grouped by width", files="coroutines"),
    right("linked_blocks", "no tables: a block knows the one before it; a pass a request", files="linked_blocks"),
    right("online_softmax", "attention block by block with a running maximum; nothing is gathered", files="online_softmax"),
    right("grouped_prefill", "what is admitted together is prefilled in groups of equal length",
          (C, _PREFILLS, "        groups = {}\n        for index, prompt in enumerate(prompts):\n            groups.setdefault(len(prompt), []).append(index)\n"
                         "        found = {}\n        for length, group in sorted(groups.items()):\n"
                         "            found.update(zip(group, self._forward([prompts[i] for i in group], [list(range(length))] * len(group), [tables[i] for i in group])))\n"
                         "        return [found[index] for index in range(len(prompts))]\n")),
    right("last_admitted_first_prefilled", "what is admitted together is prefilled from the last to the first",
          (C, _PREFILLS, _PREFILLS.replace("zip(prompts, tables, strict=True)", "zip(prompts[::-1], tables[::-1], strict=True)")
                                  .replace("return next_tokens", "return next_tokens[::-1]"))),
    right("pool_of_garbage", "the pool begins with large numbers, which the mask hides",
          (B, _POOL, _POOL.replace("torch.zeros(shape,", "torch.full(shape, 1e4,"))),
    right("pool_begins_as_nan", "the pool begins as NaN, and what is masked is selected away",
          (B, _POOL, _POOL.replace("torch.zeros(shape,", "torch.full(shape, torch.nan,")),
          (B, _GATHER, _GATHER.replace(".flatten(1, 2),", ".flatten(1, 2).nan_to_num(),") + ".nan_to_num()")),
    right("highest_block_first", "the free block with the highest number is taken, always",
          (B, _RELEASED, "self.free = sorted(self.free + self.tables.pop(seq_id))")),
    right("any_free_block", "a free block is drawn by chance",
          (B, "table.append(self.free.pop())", "table.append(self.free.pop(int(torch.randint(len(self.free), ()))))")),
    right("released_backwards", "blocks are given back from the last to the first",
          (B, _RELEASED, "self.free.extend(reversed(self.tables.pop(seq_id)))")),
    right("last_empty_step", "the step in which nobody is left is counted too",
          (C, "    while engine.waiting or engine.running:\n        history.append(engine.step())",
              "    engine.left = len(requests)\n    while engine.left:\n        engine.left = len(engine.waiting) + len(engine.running)\n        history.append(engine.step())")),
    right("admission_leaves_a_block", "a request joins others only if a block is left for them",
          (C, "            if not self.manager.reserve(seq.seq_id, len(seq)):\n                break",
              "            left = len(self.manager.free) - self.manager.blocks_for(len(seq))\n"
              "            if left < bool(self.running) or not self.manager.reserve(seq.seq_id, len(seq)):\n                break")),
    right("a_slot_ahead", "an admission reserves the slot of the token that it makes",
          (C, "if not self.manager.reserve(seq.seq_id, len(seq)):\n                break",
              "if not self.manager.reserve(seq.seq_id, min(len(seq) + 1, len(seq.prompt) + seq.max_new - 1)):\n                break")),
    right("room_on_both_sides", "room for the newest tokens before an admission and after it",
          (C, _STEP, _STEP.replace("        self._admit()\n", "        self._make_room()\n        self._admit()\n"))),
    right("room_then_admission", "room first, then admission; who has no slot for its first token waits for the next step",
          (C, _STEP, "        full = not self.continuous and bool(self.running)\n        self._make_room()\n        old = list(self.running)\n        if not full:\n            self._admit()\n"
                     "        new = [seq for seq in self.running if seq not in old]\n        self.running = old\n        batch = len(old) + len(new)\n"
                     "        self._decode()\n        self.running += new\n        self._retire()\n")),
    right("heads_before_slots", "heads before slots in the pool",
          (B, _SHAPE, "shape = (config.n_layers, config.n_kv_heads, num_blocks, block_size, config.head_dim)"),
          (B, _WRITE, _WRITE.replace("keys[layer].flatten(0, 1)[slots] = k ", "keys[layer].flatten(1, 2)[:, slots] = k.permute(2, 0, 1, 3) ")
                            .replace("values[layer].flatten(0, 1)[slots] = v", "values[layer].flatten(1, 2)[:, slots] = v.permute(2, 0, 1, 3)")),
          (B, _GATHER, "return tuple(pool[layer][:, block_tables].flatten(2, 3).permute(1, 2, 0, 3) for pool in (self.keys, self.values))")),
    right("one_line_of_memory", "the pool is one line of numbers, and keys and values are strides in it",
          (B, _POOL, "        numbers = torch.Size(shape).numel()\n        self.line = torch.zeros(2 * numbers, dtype=weight.dtype, device=weight.device)\n"
                     "        strides = torch.empty(shape, device='meta').stride()\n"
                     "        self.keys, self.values = (self.line.as_strided(shape, strides, start) for start in (0, numbers))\n")),
    right("additive_mask", "a mask of -inf that is added",
          (B, "mask = (context <= positions[..., None]).unsqueeze(1)", "mask = torch.zeros((), dtype=next(model.parameters()).dtype).where((context <= positions[..., None]).unsqueeze(1), -torch.inf)")),
    right("keys_and_values_in_double", "attention in float64",
          (B, _SDPA, _SDPA.replace("q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)", "q.transpose(1, 2).double(), keys.transpose(1, 2).double(), values.transpose(1, 2).double()")
                     + "        out = out.to(x.dtype)\n")),
)  # fmt: skip
