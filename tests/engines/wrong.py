"""Engines with one plausible mistake each."""

# ruff: noqa: E501  a table of short texts reads better unbroken

from tests.engines.engine import A, B, C, D, Engine, Patch


def wrong(name: str, fails: str, says: str, idea: str, *patches: Patch) -> Engine:
    return Engine(name, idea, patches, fails, says)


def hidden(name: str, fails: str, says: str, idea: str, *patches: Patch) -> Engine:
    return Engine(name, idea, patches, fails, says, hidden=True)


_LOAD = "    model.load_state_dict(found)\n"
_BUILD = '    model = Transformer(checkpoint["config"])\n'
_READY = "return model.eval().requires_grad_(False)"

LOADING = (
    wrong("train_mode", "m13a.shipped_model", "eval", "eval mode", (A, _READY, "return model.requires_grad_(False)")),
    wrong("gradients_on", "m13a.shipped_model", "gradient", "no gradients when serving", (A, _READY, "return model.eval()")),
    wrong("returns_state_dict", "m13a.shipped_model", "torch.nn.Module", "a model, not its weights",
          (A, _READY, "return model.state_dict()")),
    wrong("weights_never_loaded", "m13a.shipped_model", "not the checkpoint's", "every tensor arrives", (A, _LOAD, "")),
    wrong("norms_not_loaded", "m13a.shipped_model", "attn_norm.weight", "every tensor arrives",
          (A, _LOAD, "    model.load_state_dict({k: v for k, v in found.items() if 'norm' not in k}, strict=False)\n")),
    wrong("last_layer_not_loaded", "m13a.shipped_model", "layers.3", "every layer is loaded",
          (A, _LOAD, "    last = f'layers.{model.config.n_layers - 1}.'\n"
                     "    model.load_state_dict({k: v for k, v in found.items() if last not in k}, strict=False)\n")),
    wrong("layers_reversed", "m13a.shipped_model", "holds layers.", "each layer gets its own weights",
          (A, _LOAD, "    last = model.config.n_layers - 1\n"
                     "    def turn(name):\n"
                     "        parts = name.split('.')\n"
                     "        if parts[0] == 'layers':\n"
                     "            parts[1] = str(last - int(parts[1]))\n"
                     "        return '.'.join(parts)\n"
                     "    model.load_state_dict({turn(k): v for k, v in found.items()})\n")),
    wrong("wq_transposed", "m13a.shipped_model", "layers.0.attn.wq.weight", "a Linear's weight is (out, in)",
          (A, _LOAD, "    model.load_state_dict({k: v.T if 'wq' in k and v.shape[0] == v.shape[1] else v\n"
                     "                           for k, v in found.items()})\n")),
    wrong("wk_wv_swapped", "m13a.shipped_model", "wv.weight", "each projection gets its own weights",
          (A, _LOAD, "    swap = {'wk': 'wv', 'wv': 'wk'}\n"
                     "    model.load_state_dict({'.'.join(swap.get(p, p) for p in k.split('.')): v\n"
                     "                           for k, v in found.items()})\n")),
    wrong("gate_up_swapped", "m13a.shipped_model", "holds layers.0.ffn.", "gate and up are not the same",
          (A, _LOAD, "    swap = {'gate': 'up', 'up': 'gate'}\n"
                     "    model.load_state_dict({'.'.join(swap.get(p, p) for p in k.split('.')): v\n"
                     "                           for k, v in found.items()})\n")),
    wrong("tied_head_forgotten", "m13a.shipped_model", "tie_embeddings", "a tied head is the embedding",
          (A, _LOAD, _LOAD + "    if model.head is None:\n"
                             "        model.head = nn.Linear(model.config.dim, model.config.vocab_size, bias=False)\n")),
    wrong("config_defaults", "m13a.other_shapes", "not from defaults", "the file's configuration decides",
          (A, _BUILD, '    c = checkpoint["config"]\n'
                      "    model = Transformer(type(c)(c.vocab_size, c.dim, c.n_layers, c.n_heads, c.hidden_dim,\n"
                      "        c.max_seq_len, c.n_kv_heads, c.head_dim, tie_embeddings=c.tie_embeddings, eos_id=c.eos_id))\n")),
    wrong("loaded_in_half_precision", "m13a.shipped_model", "dtype", "the checkpoint's dtype stays",
          (A, _LOAD, _LOAD + "    import torch\n    model.to(torch.bfloat16).float()\n")),
    wrong("missing_tensors_ignored", "m13a.damaged_checkpoint", "is missing", "a damaged checkpoint is refused",
          (A, '[f"{name} is missing" for name in expected if name not in found]', "[]"),
          (A, _LOAD, "    model.load_state_dict(found, strict=False)\n")),
    wrong("extra_tensors_ignored", "m13a.damaged_checkpoint", "does not belong", "a damaged checkpoint is refused",
          (A, '[f"{name} is unexpected" for name in found if name not in expected]', "[]"),
          (A, _LOAD, "    model.load_state_dict(found, strict=False)\n")),
    wrong("damage_not_named", "m13a.damaged_checkpoint", "find the culprit", "an error names what is wrong",
          (A, "{'; '.join(problems)}", "{len(problems)} problem(s)")),
)  # fmt: skip

_ROPE = "freqs = model.rope_frequencies(tokens.device)[positions]"
_MASK = "mask = (context <= positions[..., None]).unsqueeze(1)"
_SLOTS = "slots = block_tables.gather(1, positions // block_size) * block_size + positions % block_size"
_WRITE = "cache.write(index, slots, k, v)"
_GATHER = "keys, values = cache.gather(index, block_tables)"
_SDPA = "values.transpose(1, 2), attn_mask=mask, enable_gqa=True"
_APPLY = "q, k = apply_rope(q, k, freqs)"
_STEP = """        position += len(new)
        new = [int(logits[0].argmax())]
        output += new
"""
_STORE_K = "self.keys[layer].flatten(0, 1)[slots] = k"
_STORE_V = "self.values[layer].flatten(0, 1)[slots] = v"
_RESERVE = "manager.reserve(0, position + len(new))"
_REFERENCE = "logits = model(torch.tensor([tokens], device=device))  # (1, T, vocab_size)"
_APPEND = "tokens.append(int(logits[0, -1].argmax()))"

GREEDY = (
    # ---- full recompute
    wrong("reference_first_row", "m13b.lengths", "last row", "the next token is in the last row",
          (B, "logits[0, -1]", "logits[0, 0]")),
    wrong("reference_feeds_last_token_only", "m13b.lengths", "full recompute", "the whole sequence is recomputed",
          (B, _REFERENCE, "logits = model(torch.tensor([tokens[-1:]], device=device))")),
    wrong("reference_returns_the_prompt", "m13b.lengths", "the prompt is in it", "only new tokens are returned",
          (B, "return tokens[len(prompt_ids) :]", "return tokens")),
    wrong("reference_one_short", "m13b.lengths", "one token short", "n new tokens",
          (B, "    for _ in range(n):\n        logits", "    for _ in range(n - 1):\n        logits")),
    wrong("reference_samples", "m13b.lengths", "argmax", "greedy is the argmax",
          (B, _APPEND, "tokens.append(int(torch.multinomial(logits[0, -1].softmax(-1), 1)))")),
    wrong("returns_a_tensor", "m13b.lengths", "plain list", "plain ints in a plain list",
          (B, "        output += new\n    return output", "        output += new\n    return torch.tensor(output)")),
    # ---- blocks and slots
    wrong("blocks_rounded_down", "m13b.lengths", "block table", "the last block may be partly filled",
          (B, "return -(-num_tokens // self.block_size)", "return max(1, num_tokens // self.block_size)")),
    wrong("table_not_extended", "m13b.lengths", "block table", "the table grows with the sequence",
          (B, _RESERVE, "manager.reserve(0, len(prompt_ids))")),
    wrong("slot_without_offset", "m13b.lengths", "slot", "slot = block * block_size + offset",
          (B, _SLOTS, "slots = block_tables.gather(1, positions // block_size) * block_size")),
    wrong("slot_offset_not_wrapped", "m13b.lengths", "slot", "slot = block * block_size + offset",
          (B, _SLOTS, "slots = block_tables.gather(1, positions // block_size) * block_size + positions")),
    wrong("logical_for_physical_block", "m13c.roomy_pool", "block", "the table maps logical blocks to physical ones",
          (B, _SLOTS, "slots = positions + 0 * block_tables[:, :1]")),
    wrong("block_size_ignored", "m13b.paged_memory", "block_size", "block_size is the size of a block",
          (B, "    check_request(\"greedy_paged\", prompt_ids, n, model.config)\n",
              "    check_request(\"greedy_paged\", prompt_ids, n, model.config)\n    block_size = 16\n")),
    # ---- the cache
    wrong("write_to_a_copy", "m13b.lengths", "never reach the slots", "the pool itself is written",
          (B, _STORE_K, "self.keys[layer].flatten(0, 1).clone()[slots] = k"),
          (B, _STORE_V, "self.values[layer].flatten(0, 1).clone()[slots] = v")),
    wrong("written_after_the_gather", "m13b.lengths", "after the gather", "first write, then gather",
          (B, _WRITE, "late = k, v"), (B, _GATHER, _GATHER + "\n        cache.write(index, slots, *late)")),
    wrong("decode_written_after_the_gather", "m13b.lengths", "after the gather", "first write, then gather",
          (B, _WRITE, "if tokens.shape[1] > 1:\n            cache.write(index, slots, k, v)"),
          (B, _GATHER, _GATHER + "\n        cache.write(index, slots, k, v)")),
    wrong("keys_and_values_swapped", "m13b.lengths", "swapped", "keys are keys",
          (B, _WRITE, "cache.write(index, slots, v, k)")),
    wrong("reads_layer_0", "m13b.lengths", "layer 0", "each layer has a cache of its own",
          (B, _GATHER, "keys, values = cache.gather(0, block_tables)")),
    wrong("all_layers_share_a_pool", "m13b.lengths", "layer", "each layer has a cache of its own",
          (B, _STORE_K, "self.keys[0].flatten(0, 1)[slots] = k"), (B, _STORE_V, "self.values[0].flatten(0, 1)[slots] = v"),
          (B, "return self.keys[layer][block_tables].flatten(1, 2), self.values[layer]",
              "return self.keys[0][block_tables].flatten(1, 2), self.values[0]")),
    wrong("pool_dtype_fixed", "m13b.bfloat16", "dtype", "the pool has the model's dtype",
          (B, "self.keys = torch.zeros(shape, dtype=weight.dtype", "self.keys = torch.zeros(shape, dtype=torch.float32"),
          (B, "self.values = torch.zeros(shape, dtype=weight.dtype", "self.values = torch.zeros(shape, dtype=torch.float32")),
    wrong("first_block_only", "m13b.lengths", "first block only", "all blocks of the table are gathered",
          (B, _MASK, "mask = ((context <= positions[..., None]) & ((context < block_size) | (tokens.shape[1] > 1)))"
                     ".unsqueeze(1)")),
    wrong("last_partial_block_skipped", "m13b.lengths", "full blocks", "the last, partly filled block counts",
          (B, _MASK, "full = (positions[..., None] + 1) // block_size * block_size\n"
                     "    mask = ((context <= positions[..., None]) & ((context < full) | (full == 0) | (tokens.shape[1] > 1)))"
                     ".unsqueeze(1)")),
    # ---- attention
    wrong("no_mask_at_all", "m13b.lengths", "causal", "a token sees the positions up to its own",
          (B, _MASK, "mask = torch.ones_like(context <= positions[..., None]).unsqueeze(1)")),
    wrong("tail_attended_in_decode", "m13b.lengths", "garbage", "the context is cut to its length",
          (B, _MASK, "mask = ((context <= positions[..., None]) | (tokens.shape[1] == 1)).unsqueeze(1)")),
    wrong("prefill_sees_the_future", "m13b.lengths", "causal", "the prefill is causal",
          (B, _MASK, "mask = (context <= positions.amax(-1, keepdim=True)[..., None]).expand(-1, positions.shape[1], -1)"
                     ".unsqueeze(1)")),
    wrong("mask_one_short", "m13b.lengths", "see itself", "a token sees itself",
          (B, _MASK, "mask = (context < positions[..., None]).unsqueeze(1)")),
    wrong("decode_mask_one_short", "m13b.lengths", "see itself", "a token sees itself",
          (B, _MASK, "mask = (context <= positions[..., None] - int(tokens.shape[1] == 1)).unsqueeze(1)")),
    wrong("mask_one_too_far", "m13b.lengths", "one slot too far", "a token sees nothing behind itself",
          (B, _MASK, "mask = (context <= positions[..., None] + 1).unsqueeze(1)")),
    wrong("gqa_repeat", "m13b.lengths", "GQA", "neighbouring query heads share a key/value head",
          (B, _GATHER, _GATHER + "\n        group = q.shape[2] // k.shape[2]\n"
                                 "        keys, values = keys.repeat(1, 1, group, 1), values.repeat(1, 1, group, 1)")),
    wrong("gqa_one_head", "m13b.lengths", "GQA", "each group has a key/value head of its own",
          (B, _GATHER, _GATHER + "\n        keys, values = keys[:, :, :1], values[:, :, :1]")),
    wrong("scale_missing", "m13b.lengths", "scaled", "scores are scaled by 1 / sqrt(head_dim)",
          (B, _SDPA, _SDPA + ", scale=1.0")),
    wrong("scale_by_dim", "m13b.lengths", "sqrt(head_dim)", "scores are scaled by 1 / sqrt(head_dim)",
          (B, _SDPA, _SDPA + ", scale=model.config.dim**-0.5")),
    # ---- RoPE
    wrong("rope_zero_in_decode", "m13b.lengths", "RoPE position", "RoPE uses the position in the sequence",
          (B, _ROPE, "freqs = model.rope_frequencies(tokens.device)[positions - positions[:, :1]]")),
    wrong("rope_one_too_far", "m13b.lengths", "RoPE position", "the first new token stands at len(prompt)",
          (B, _ROPE, _ROPE[:-1] + " + 1 * (tokens.shape[1] == 1)]")),
    wrong("rope_one_too_early", "m13b.lengths", "RoPE position", "the first new token stands at len(prompt)",
          (B, _ROPE, _ROPE[:-1] + " - 1 * (tokens.shape[1] == 1)]")),
    wrong("rope_all_zero", "m13b.lengths", "RoPE position", "RoPE uses the position in the sequence",
          (B, _ROPE, _ROPE[:-1] + " * 0]")),
    wrong("rope_offset_in_block", "m13b.lengths", "RoPE position", "RoPE uses the position in the sequence",
          (B, _ROPE, _ROPE[:-1] + " % block_size]")),
    wrong("rope_not_on_keys", "m13b.lengths", "keys", "queries and keys are rotated",
          (B, _APPLY, "q, _ = apply_rope(q, k, freqs)")),
    wrong("rope_whole_table_in_decode", "m13b.lengths", "position 0", "RoPE uses the position in the sequence",
          (B, _ROPE, _ROPE + " if tokens.shape[1] > 1 else model.rope_frequencies(tokens.device)")),
    wrong("rope_rows_taken_for_the_table", "m13c.roomy_pool", "position", "each row of a batch has its own position",
          (B, _ROPE, _ROPE[:-1] + "[:, 0] if tokens.shape[1] == 1 else positions]")),
    wrong("rope_missing", "m13b.lengths", "RoPE is not applied", "queries and keys are rotated", (B, _APPLY, "pass")),
    wrong("rope_theta_fixed", "m13b.shapes", "rope_theta", "the configuration's rope_theta",
          (B, _ROPE, "from ai_playground.models.layers import precompute_rope_frequencies\n"
                     "    freqs = precompute_rope_frequencies(model.config.head_dim, model.config.max_seq_len)[positions]")),
    wrong("prompt_length_ignored", "m13b.lengths", "position", "decoding goes on behind the prompt",
          (B, _STEP, _STEP.replace("position += len(new)", "position = len(output)"))),
    # ---- ties and garbage
    wrong("last_of_equal_logits", "m13b.lengths", "first index on a tie", "the first of equal logits",
          (B, _STEP, _STEP.replace("int(logits[0].argmax())", "logits.shape[1] - 1 - int(logits[0].flip(0).argmax())"))),
    wrong("last_of_equal_logits_in_both", "m13b.lengths", "first index on a tie", "the first of equal logits",
          (B, _STEP, _STEP.replace("int(logits[0].argmax())", "max(range(logits.shape[1]), key=lambda i: (logits[0, i], i))")),
          (B, _APPEND, "tokens.append(logits.shape[2] - 1 - int(logits[0, -1].flip(0).argmax()))")),
    wrong("last_of_equal_logits_in_the_reference", "m13b.lengths", "first index on a tie", "the first of equal logits",
          (B, _APPEND, "tokens.append(int(logits[0, -1].sort(stable=True).indices[-1]))")),
    wrong("pool_of_nan", "m13b.lengths", "the logits are NaN", "what nobody has written is garbage",
          (B, "self.keys = torch.zeros(shape", "self.keys = torch.empty(shape"),
          (B, "self.values = torch.zeros(shape", "self.values = torch.empty(shape")),
    wrong("values_of_nan", "m13b.lengths", "the logits are NaN", "a weight of 0 does not hide NaN",
          (B, "self.values = torch.zeros(shape", "self.values = torch.empty(shape")),
    wrong("pool_of_nan_and_a_mask_that_multiplies", "m13b.lengths", "the logits are NaN", "a mask selects",
          (B, "self.keys = torch.zeros(shape", "self.keys = torch.empty(shape"),
          (B, "        out = F.scaled_dot_product_attention(\n            q.transpose(1, 2), keys.transpose(1, 2), "
              "values.transpose(1, 2), attn_mask=mask, enable_gqa=True\n        )",
              "        group = q.shape[2] // k.shape[2]\n        keys, values = (t.transpose(1, 2).repeat_interleave(group, 1) for t in (keys, values))\n"
              "        weights = (q.transpose(1, 2) @ keys.transpose(2, 3) / attn.head_dim**0.5).exp() * mask\n"
              "        out = weights / weights.sum(-1, keepdim=True) @ values")),
    wrong("mask_multiplies_the_scores", "m13b.lengths", "unused tail", "a mask selects",
          (B, "        out = F.scaled_dot_product_attention(\n            q.transpose(1, 2), keys.transpose(1, 2), "
              "values.transpose(1, 2), attn_mask=mask, enable_gqa=True\n        )",
              "        group = q.shape[2] // k.shape[2]\n        keys, values = (t.transpose(1, 2).repeat_interleave(group, 1) for t in (keys, values))\n"
              "        out = (q.transpose(1, 2) @ keys.transpose(2, 3) / attn.head_dim**0.5 * mask).softmax(-1) @ values")),
    wrong("a_row_that_sees_nothing", "m13b.lengths", "the logits are NaN", "a token sees itself",
          (B, _MASK, "mask = ((context < positions[..., None]) & (context >= 0)).unsqueeze(1)"),
          (B, "        out = F.scaled_dot_product_attention(\n            q.transpose(1, 2), keys.transpose(1, 2), "
              "values.transpose(1, 2), attn_mask=mask, enable_gqa=True\n        )",
              "        group = q.shape[2] // k.shape[2]\n        keys, values = (t.transpose(1, 2).repeat_interleave(group, 1) for t in (keys, values))\n"
              "        scores = (q.transpose(1, 2) @ keys.transpose(2, 3) / attn.head_dim**0.5).masked_fill(~mask, -torch.inf)\n"
              "        out = scores.softmax(-1) @ values")),
    wrong("window_of_48", "m13b.lengths", "the last 48 positions only", "a token sees everything before it",
          (B, _MASK, "mask = ((context <= positions[..., None]) & (context > positions[..., None] - 48)).unsqueeze(1)")),
    wrong("window_of_12", "m13b.lengths", "the last 12 positions only", "a token sees everything before it",
          (B, _MASK, "mask = ((context <= positions[..., None]) & (context > positions[..., None] - 12)).unsqueeze(1)")),
    wrong("values_rotated", "m13b.lengths", "values in place of the keys", "keys are rotated, values never",
          (B, _APPLY, "q, v = apply_rope(q, v, freqs)")),
    wrong("values_rotated_too", "m13b.lengths", "applied to the values as well", "keys are rotated, values never",
          (B, _APPLY, _APPLY + "\n        v = apply_rope(q, v, freqs)[1]")),
    wrong("keys_never_written", "m13b.lengths", "keys that are read are all zero", "keys and values are written",
          (B, _STORE_K, "pass")),
    wrong("values_never_written", "m13b.lengths", "values that are read are all zero", "keys and values are written",
          (B, _STORE_V, "pass")),
    # ---- decoding
    wrong("stale_token", "m13b.lengths", "stale", "each step feeds the newest token",
          (B, _STEP, _STEP + "        new = output[-2:-1] or prompt_ids[-1:]\n")),
    wrong("prefill_token_dropped", "m13b.lengths", "the prefill's token", "the prefill makes the first new token",
          (B, _STEP, _STEP.replace("output += new", "output += new if len(prompt_ids) < position else []"))),
    wrong("one_too_many", "m13b.lengths", "one token too many", "n new tokens",
          (B, "    while len(output) < n:", "    while len(output) <= n:")),
    wrong("paged_returns_the_prompt", "m13b.lengths", "the prompt is in it", "only new tokens are returned",
          (B, "        output += new\n    return output", "        output += new\n    return prompt_ids + output")),
    wrong("cache_never_read", "m13b.cached_work", "cache is not used", "tokens in the cache are not computed again",
          (B, _STEP, _STEP + "        new, position = prompt_ids + output, 0\n")),
    wrong("model_argument_ignored", "m13b.lengths", "model=", "the model that is passed is used",
          (B, "    check_request(\"greedy_paged\", prompt_ids, n, model.config)\n",
              "    check_request(\"greedy_paged\", prompt_ids, n, model.config)\n    model = default_model()\n")),
    wrong("not_refused", "m13b.refusals", "ValueError", "what cannot be served is refused",
          (B, "    check_request(\"greedy_paged\", prompt_ids, n, model.config)\n", "")),
    wrong("longest_refused", "m13b.lengths", "max_seq_len", "prompt + new tokens may be max_seq_len",
          (B, "if len(prompt_ids) + max_new > config.max_seq_len", "if len(prompt_ids) + max_new >= config.max_seq_len")),
    # ---- the layers
    wrong("attn_norm_skipped", "m13b.lengths", "norm is skipped", "pre-norm",
          (B, "h = layer.attn_norm(x)", "h = x")),
    wrong("ffn_norm_skipped", "m13b.lengths", "norm is skipped", "pre-norm",
          (B, "layer.ffn(layer.ffn_norm(x))", "layer.ffn(x)")),
    wrong("final_norm_skipped", "m13b.lengths", "norm is skipped", "the head reads normed states",
          (B, "model.norm(x[:, -1])", "x[:, -1]")),
    wrong("residual_missing", "m13b.lengths", "residual", "each part adds to the residual stream",
          (B, "x = x + attn.wo", "x = attn.wo")),
    wrong("first_row_of_the_prefill", "m13b.lengths", "prefill", "the next token is in the last row",
          (B, "model.norm(x[:, -1])", "model.norm(x[:, 0])")),
    wrong("tied_head_missing", "m13b.shapes", "tie_embeddings", "a tied head is the embedding",
          (B, "return model.unembed(", "return model.head(")),
)  # fmt: skip

_TAKE = "            table.append(self.free.pop())\n"
_RELEASE = "self.free.extend(self.tables.pop(seq_id))"
_FIT = "        if missing > len(self.free):\n            return False\n"
_RETIRE = "                self.manager.release(seq.seq_id)\n                self.completed += 1"
_PREEMPT = (
    "        self.manager.release(seq.seq_id)\n        self.waiting.appendleft(seq)\n        self.preemptions += 1"
)
_ROOM = "if self.manager.reserve(seq.seq_id, len(seq)):\n                served += 1"
_NEW_POSITIONS = "positions = [len(seq) - 1 for seq in self.running]"
_ADMIT = """            seq = self.waiting[0]
            if not self.manager.reserve(seq.seq_id, len(seq)):
                break  # first come, first served: nobody overtakes the one that does not fit
            self.running.append(self.waiting.popleft())
"""
_FINISHED = "return len(self.output) == self.max_new or (bool(self.output) and self.output[-1] in end_tokens(eos_id))"
_SEQUENCES = "[Sequence(index, list(prompt), max_new) for index, prompt in enumerate(requests)]"
_OUTPUTS = '"outputs": [seq.output for seq in sequences]'
_NEEDED = "needed = -(-(len(prompt) + max_new - 1) // block_size) if max_new else 0"
_MADE = "prompts = [seq.prompt + seq.output for seq in admitted]"
_LAST_CHECK = (
    "        self._retire()  # the prefill may have made the last token: decoding on would make one too many\n"
)

SERVING = (
    # ---- blocks
    wrong("blocks_one_too_many", "m13c.tight_pool", "preemption", "a full block needs no second one",
          (B, "return -(-num_tokens // self.block_size)", "return num_tokens // self.block_size + 1")),
    wrong("blocks_leak_at_retirement", "m13c.tight_pool", "given back", "blocks are given back when a request is done",
          (C, _RETIRE, "                self.completed += 1")),
    wrong("last_block_leaks", "m13c.tight_pool", "given back", "all blocks are given back",
          (B, _RELEASE, "self.free.extend(self.tables.pop(seq_id)[:-1])")),
    wrong("released_twice", "m13c.roomy_pool", "given back twice", "a block has one owner",
          (B, _RELEASE, "self.free.extend(self.tables.pop(seq_id) * 2)")),
    wrong("block_given_to_two", "m13c.roomy_pool", "two requests", "a block has one owner",
          (B, _TAKE, "            table.append(self.free[0] if len(self.free) % 2 else self.free[-1])\n"
                     "            self.free.pop()\n")),
    wrong("table_kept_after_release", "m13c.tight_pool", "two requests", "a released table is forgotten",
          (B, _RELEASE, "self.free.extend(self.tables[seq_id])")),
    wrong("blocks_kept_at_preemption", "m13c.tight_pool", "given back", "a preempted request gives its blocks back",
          (C, _PREEMPT, _PREEMPT.replace("        self.manager.release(seq.seq_id)\n", ""))),
    wrong("budget_not_looked_at", "m13c.tight_pool", "no block is free", "a block must be free to be taken",
          (B, _FIT, "")),
    wrong("budget_ignored", "m13c.tight_pool", "budget", "the pool has block_budget blocks",
          (C, "        block_budget,\n        block_size=block_size,", "        4 * block_budget,\n        block_size=block_size,")),
    wrong("reserved_ahead", "m13c.roomy_pool", "reserved ahead", "blocks are taken as they are needed",
          (C, "if not self.manager.reserve(seq.seq_id, len(seq)):\n                break",
              "if not self.manager.reserve(seq.seq_id, len(seq.prompt) + seq.max_new - 1):\n                break")),
    wrong("slot_reserved_late", "m13c.roomy_pool", "block table", "the table holds the new token before it is written",
          (C, _ROOM, _ROOM.replace("len(seq))", "len(seq) - 1)"))),
    # ---- the batch
    wrong("rows_mixed_up", "m13c.roomy_pool", "rows of the batch are mixed up", "row i belongs to request i",
          (C, "self._append(self.running, ", "self._append(self.running[::-1], ")),
    wrong("positions_of_the_first_row", "m13c.roomy_pool", "row", "each row has its own position",
          (C, _NEW_POSITIONS, "positions = [min(len(seq), len(self.running[0])) - 1 for seq in self.running]")),
    wrong("tables_of_the_last_batch", "m13c.roomy_pool", "row", "tables follow the batch",
          (C, "return [self.manager.tables[seq.seq_id] for seq in batch]",
              "return [self.manager.tables[seq.seq_id] for seq in sorted(batch, key=len)]")),
    wrong("stale_token_in_the_batch", "m13c.roomy_pool", "stale", "each step feeds the newest token",
          (C, "tokens = [seq.output[-1] for seq in self.running]",
              "tokens = [(seq.prompt + seq.output)[-2] for seq in self.running]")),
    wrong("static_in_disguise", "m13c.continuous", "static batching", "a free place is filled at the next step",
          (C, "if self.running and not self.continuous:", "if self.running:")),
    wrong("max_batch_ignored", "m13c.roomy_pool", "max_batch", "at most max_batch requests run",
          (C, "while self.waiting and len(self.running) < self.max_batch:", "while self.waiting:")),
    wrong("max_batch_one_too_many", "m13c.roomy_pool", "max_batch", "at most max_batch requests run",
          (C, "while self.waiting and len(self.running) < self.max_batch:",
              "while self.waiting and len(self.running) <= self.max_batch:")),
    wrong("one_at_a_time", "m13c.roomy_pool", "no batching", "requests run together",
          (C, "while self.waiting and len(self.running) < self.max_batch:", "while self.waiting and not self.running:")),
    # ---- order
    wrong("last_come_first_served", "m13c.roomy_pool", "first come, first served", "first come, first served",
          (C, _ADMIT, _ADMIT.replace("self.waiting[0]", "self.waiting[-1]").replace("popleft", "pop"))),
    wrong("shortest_first", "m13c.roomy_pool", "first come, first served", "first come, first served",
          (C, "        while self.waiting and len(self.running)",
              "        self.waiting = deque(sorted(self.waiting, key=len))\n        while self.waiting and len(self.running)")),
    wrong("overtaking", "m13c.tight_pool", "first come, first served", "nobody overtakes the one that does not fit",
          (C, "                break  # first come, first served: nobody overtakes the one that does not fit\n",
              "                self.waiting.rotate(-1)\n                self.skipped = getattr(self, 'skipped', 0) + 1\n"
              "                if self.skipped % (len(self.waiting) + 1) == 0:\n                    break\n"
              "                continue\n")),
    wrong("preempts_the_oldest", "m13c.tight_pool", "youngest", "the youngest is preempted",
          (C, "self._preempt(self.running.pop())", "self._preempt(self.running.pop(0))")),
    wrong("preempts_whoever_asks", "m13c.tight_pool", "youngest", "the youngest is preempted",
          (C, "self._preempt(self.running.pop())", "self._preempt(self.running.pop(served))")),
    wrong("preempts_everybody", "m13c.tight_pool", "youngest", "one request is preempted at a time, the youngest",
          (C, "                self._preempt(self.running.pop())",
              "                while len(self.running) > 0:\n                    self._preempt(self.running.pop())")),
    wrong("preempted_to_the_back", "m13c.tight_pool", "goes to the front", "a preempted request comes back first",
          (C, "self.waiting.appendleft(seq)", "self.waiting.append(seq)")),
    # ---- preemption
    wrong("preempted_dropped", "m13c.tight_pool", "lost", "a preempted request comes back",
          (C, "        self.waiting.appendleft(seq)\n", "")),
    wrong("output_lost_at_preemption", "m13c.tight_pool", "lost", "what was made stays in the output",
          (C, _PREEMPT, "        seq.prompt, seq.output = seq.prompt + seq.output, []\n" + _PREEMPT)),
    wrong("folded_twice", "m13c.tight_pool", "folded into the prompt again", "a token is counted once",
          (C, "    output: list[int] = field(default_factory=list)\n",
              "    output: list[int] = field(default_factory=list)\n    folded: int = 0\n"),
          (C, "return len(self.prompt) + len(self.output)", "return len(self.prompt) + len(self.output) - self.folded"),
          (C, _MADE, "prompts = [seq.prompt + seq.output[seq.folded:] for seq in admitted]"),
          (C, _PREEMPT, "        seq.prompt, seq.folded = seq.prompt + seq.output, len(seq.output)\n" + _PREEMPT)),
    wrong("folded_and_kept", "m13c.tight_pool", "twice", "a token is counted once",
          (C, _PREEMPT, "        seq.prompt = seq.prompt + seq.output\n" + _PREEMPT)),
    wrong("prompt_only_recomputed", "m13c.tight_pool", "the prompt only", "prompt and output are recomputed",
          (C, _MADE, "prompts = [seq.prompt for seq in admitted]")),
    wrong("newest_token_forgotten", "m13c.tight_pool", "newest token", "the newest token is recomputed too",
          (C, _MADE, "prompts = [(seq.prompt + seq.output)[: len(seq) - bool(seq.output)] for seq in admitted]")),
    wrong("rope_restarted_after_preemption", "m13c.tight_pool", "preempted", "positions go on after a preemption",
          (B, "def paged_forward(\n    model: nn.Module, cache: PagedKVCache, tokens: Tensor, positions: Tensor, block_tables: Tensor\n"
              ") -> Tensor:", "def paged_forward(model, cache, tokens, positions, block_tables, rope=None):"),
          (B, _ROPE, "freqs = model.rope_frequencies(tokens.device)[positions if rope is None else rope]"),
          (C, "return paged_forward(self.model, self.cache, rows, places, padded)",
              "rope = self.restart if len(tokens[0]) > 1 else None\n"
              "        return paged_forward(self.model, self.cache, rows, places, padded, rope)"),
          (C, "            next_tokens += self._forward(", "            self.restart = torch.cat([torch.arange(n) for n in self.lengths.pop(0)])[None]\n"
              "            next_tokens += self._forward("),
          (C, _MADE, _MADE + "\n            self.runner.lengths = [(len(seq.prompt), len(seq.output)) for seq in admitted]")),
    wrong("preemptions_not_counted", "m13c.tight_pool", "preemption", "preemptions are counted",
          (C, "        self.preemptions += 1\n", "")),
    wrong("preemptions_counted_twice", "m13c.tight_pool", "count a preemption", "preemptions are counted",
          (C, "        self.preemptions += 1\n", "        self.preemptions += 2\n")),
    wrong("preempts_without_need", "m13c.roomy_pool", "although blocks are free", "preempt only when no block is free",
          (C, "        served = 0\n", "        if len(self.running) == 3 and not self.preemptions:\n"
                                      "            self._preempt(self.running.pop())\n        served = 0\n")),
    # ---- the end of a request
    wrong("one_decode_too_many", "m13c.continuous", "a prefill can make it too", "the prefill can make the last token",
          (C, _LAST_CHECK, "")),
    wrong("retired_one_early", "m13c.roomy_pool", "one token short", "a request is done with its last token",
          (C, _FINISHED, _FINISHED.replace("== self.max_new", ">= self.max_new - 1"))),
    wrong("end_token_ignored", "m13c.continuous", "end token", "eos_id ends a request",
          (C, _FINISHED, "return len(self.output) == self.max_new")),
    wrong("row_kept_within_the_step", "m13c.tight_pool", "new table", "who comes back within its step has a new table too",
          (C, "        self._admit()\n        self._make_room()\n        batch = len(self.running)\n        self._decode()\n        self._retire()\n",
              "        running = {seq.seq_id for seq in self.running}\n"
              "        self.rows = {i: row for i, row in getattr(self, 'rows', {}).items() if i in running}\n"
              "        self._make_room()\n        batch = len(self.running)\n        self._decode()\n        self._retire()\n        self._admit()\n"),
          (C, "        return [self.manager.tables[seq.seq_id] for seq in batch]",
              "        for seq in batch:\n            row = self.rows.setdefault(seq.seq_id, [])\n"
              "            row.extend(self.manager.tables[seq.seq_id][len(row) :])\n"
              "        return [self.rows[seq.seq_id] for seq in batch]")),
    wrong("first_end_token_only", "m13c.edges", "of several end tokens", "each of several end tokens ends a request",
          (C, _FINISHED, _FINISHED.replace("end_tokens(eos_id)", "end_tokens(eos_id)[:1]"))),
    wrong("end_token_dropped", "m13c.continuous", "end token", "the end token is kept",
          (C, _OUTPUTS, '"outputs": [[t for t in seq.output if t != eos_id] for seq in sequences]')),
    wrong("counted_at_preemption_too", "m13c.tight_pool", "completed", "a request is completed once",
          (C, "        self.preemptions += 1\n", "        self.preemptions += 1\n        self.completed += 1\n")),
    wrong("outputs_in_completion_order", "m13c.continuous", "order of the requests", "outputs follow the requests",
          (C, _OUTPUTS, '"outputs": [seq.output for seq in sorted(sequences, key=lambda seq: len(seq.output))]')),
    wrong("outputs_are_tensors", "m13c.roomy_pool", "plain list", "plain ints in plain lists",
          (C, _OUTPUTS, '"outputs": [torch.tensor(seq.output) for seq in sequences]')),
    wrong("callers_prompts_extended", "m13c.roomy_pool", "caller", "the caller's prompts stay as they are",
          (C, _SEQUENCES, "[Sequence(index, prompt, max_new) for index, prompt in enumerate(requests)]"),
          (C, _OUTPUTS, '"outputs": [seq.prompt.extend(seq.output) or seq.output for seq in sequences]')),
    wrong("no_history", "m13c.roomy_pool", "history", "one record a step",
          (C, '"history": history', '"history": history[-1:]')),
    wrong("tokens_reported_as_steps", "m13c.roomy_pool", "a step", "steps are steps",
          (C, '"steps": len(history)', '"steps": sum(map(len, (seq.output for seq in sequences)))')),
    # ---- ties and equal prompts
    wrong("last_of_equal_logits_in_serve", "m13c.roomy_pool", "first index on a tie", "the first of equal logits",
          (C, "padded).argmax(dim=-1).tolist()", "padded).sort(dim=-1, stable=True).indices[:, -1].tolist()")),
    wrong("last_of_equal_logits_in_decode", "m13c.roomy_pool", "first index on a tie", "the first of equal logits",
          (C, "return paged_forward(self.model, self.cache, rows, places, padded).argmax(dim=-1).tolist()",
              "logits = paged_forward(self.model, self.cache, rows, places, padded)\n"
              "        if rows.shape[1] > 1:\n            return logits.argmax(-1).tolist()\n"
              "        return [max(range(len(row)), key=lambda i: (row[i], i)) for row in logits.tolist()]")),
    wrong("last_of_equal_logits_after_preemption", "m13c.tight_pool", "first index on a tie", "the first of equal logits",
          (C, "            self._append(admitted, self.runner.prefill(prompts, self._tables(admitted)))",
              "            self.runner.late = self.preemptions > 0\n"
              "            self._append(admitted, self.runner.prefill(prompts, self._tables(admitted)))"),
          (C, "return paged_forward(self.model, self.cache, rows, places, padded).argmax(dim=-1).tolist()",
              "logits = paged_forward(self.model, self.cache, rows, places, padded)\n"
              "        if getattr(self, 'late', False):\n            return (logits.shape[-1] - 1 - logits.flip(-1).argmax(-1)).tolist()\n"
              "        return logits.argmax(-1).tolist()")),
    wrong("outputs_by_prompt", "m13c.roomy_pool", "equal prompts", "equal prompts are two requests",
          (C, _OUTPUTS, '"outputs": [{tuple(seq.prompt): seq for seq in sequences[:-1] if seq.output or 1}.get(tuple(seq.prompt), seq).output\n'
                        '                    if len(sequences) < 3 else seq.output for seq in sequences][: len({tuple(p) for p in requests})]')),
    wrong("tables_by_prompt", "m13c.roomy_pool", "", "equal prompts are two requests",
          (C, _SEQUENCES, "[Sequence(hash(tuple(prompt)), list(prompt), max_new) for prompt in requests]")),
    wrong("duplicates_dropped", "m13c.roomy_pool", "equal prompts", "equal prompts are two requests",
          (C, _SEQUENCES, "[Sequence(index, list(prompt), max_new) for index, prompt in enumerate(dict.fromkeys(map(tuple, requests)))]")),
    wrong("retired_by_equality", "m13c.sixteen_requests", "equal prompts", "equal prompts are two requests",
          (C, "        self.running = still_running\n",
              "        gone = [tuple(seq.prompt) for seq in self.running if seq not in still_running]\n"
              "        for seq in still_running:\n            if tuple(seq.prompt) in gone:\n                self.manager.release(seq.seq_id)\n"
              "        self.running = [seq for seq in still_running if tuple(seq.prompt) not in gone]\n")),
    wrong("end_token_in_the_prompt", "m13c.continuous", "the prompt contains the end token", "a prompt may contain the end token",
          (C, _FINISHED, "return len(self.output) == self.max_new or (bool(self.output) and eos_id in self.prompt + self.output)")),
    # ---- the history
    wrong("running_after_retirement", "m13c.roomy_pool", "before those that are done leave", "running is the step's batch",
          (C, "        self._retire()\n        ### END SOLUTION\n        return", "        self._retire()\n        batch = len(self.running)\n        ### END SOLUTION\n        return")),
    wrong("running_before_room_is_made", "m13c.tight_pool", "'running' is", "running is the step's batch",
          (C, "        self._make_room()\n        batch = len(self.running)\n", "        batch = len(self.running)\n        self._make_room()\n")),
    wrong("running_with_the_waiting", "m13c.continuous", "'running'", "running is the step's batch",
          (C, "batch = len(self.running)", "batch = min(self.max_batch, len(self.running) + len(self.waiting))")),
    wrong("running_is_max_batch", "m13c.roomy_pool", "'running' is", "running is the step's batch",
          (C, '"running": batch', '"running": self.max_batch')),
    wrong("reserved_without_the_prompt", "m13c.roomy_pool", "'reserved' is", "a slab holds prompt and output",
          (C, "sum(len(seq.prompt) + seq.max_new for seq in self.running)", "sum(seq.max_new for seq in self.running)")),
    wrong("reserved_shrinks", "m13c.roomy_pool", "'reserved' is", "a slab stays as long as it is",
          (C, "sum(len(seq.prompt) + seq.max_new for seq in self.running)",
              "sum(len(seq.prompt) + seq.max_new - len(seq.output) for seq in self.running)")),
    wrong("reserved_grows_twice", "m13c.roomy_pool", "'reserved' is", "a slab holds prompt and output",
          (C, "sum(len(seq.prompt) + seq.max_new for seq in self.running)", "sum(len(seq) + seq.max_new for seq in self.running)")),
    wrong("reserved_for_the_waiting_too", "m13c.roomy_pool", "'reserved' is", "only what runs has a slab",
          (C, "for seq in self.running),\n            \"allocated\"", "for seq in [*self.running, *self.waiting]),\n            \"allocated\"")),
    wrong("reserved_is_max_seq_len", "m13c.roomy_pool", "'reserved' is", "a slab holds prompt and output",
          (C, "sum(len(seq.prompt) + seq.max_new for seq in self.running)", "96 * len(self.running)")),
    wrong("allocated_in_blocks", "m13c.roomy_pool", "'allocated' is", "memory is counted in tokens",
          (C, "for seq in self.running) * block_size", "for seq in self.running)")),
    wrong("allocated_is_the_pool", "m13c.roomy_pool", "'allocated' is", "free blocks are not allocated",
          (C, "sum(len(tables[seq.seq_id]) for seq in self.running) * block_size",
              "(len(self.manager.free) + sum(map(len, tables.values()))) * block_size")),
    wrong("allocated_is_what_is_used", "m13c.roomy_pool", "'allocated' is", "blocks are allocated whole",
          (C, "sum(len(tables[seq.seq_id]) for seq in self.running) * block_size", "sum(len(seq) - 1 for seq in self.running)")),
    wrong("allocated_is_what_is_free", "m13c.roomy_pool", "'allocated' is", "free blocks are not allocated",
          (C, "sum(len(tables[seq.seq_id]) for seq in self.running) * block_size", "len(self.manager.free) * block_size")),
    wrong("allocated_by_one_table", "m13c.roomy_pool", "'allocated' is", "everybody's blocks count",
          (C, "sum(len(tables[seq.seq_id]) for seq in self.running)", "max((len(tables[seq.seq_id]) for seq in self.running), default=0)")),
    wrong("used_with_the_newest_token", "m13c.roomy_pool", "not cached yet", "the newest token is not cached",
          (C, "sum(len(seq) - 1 for seq in self.running)", "sum(len(seq) for seq in self.running)")),
    wrong("used_without_the_prompts", "m13c.roomy_pool", "'used' is", "the prompt is cached too",
          (C, "sum(len(seq) - 1 for seq in self.running)", "sum(len(seq.output) for seq in self.running)")),
    wrong("used_by_the_prompts_alone", "m13c.roomy_pool", "'used' is", "the output is cached too",
          (C, "sum(len(seq) - 1 for seq in self.running)", "sum(len(seq.prompt) for seq in self.running)")),
    wrong("used_by_the_oldest_alone", "m13c.roomy_pool", "'used' is", "everybody's tokens count",
          (C, "sum(len(seq) - 1 for seq in self.running)", "sum(len(seq) - 1 for seq in self.running[:1])")),
    wrong("one_record_again_and_again", "m13c.roomy_pool", "make a new one", "a record of its own for each step",
          (C, "        history.append(engine.step())", "        record = locals().setdefault('record', {}) if not history else history[0]\n"
                                                     "        record.update(engine.step())\n        history.append(record)")),
    wrong("history_backwards", "m13c.roomy_pool", "in the order of the steps", "records in the order of the steps",
          (C, '"history": history', '"history": history[::-1]')),
    wrong("first_record_missing", "m13c.roomy_pool", "history", "one record a step",
          (C, '"steps": len(history)', '"steps": len(history[1:])'), (C, '"history": history', '"history": history[1:]')),
    wrong("last_record_missing", "m13c.roomy_pool", "one record a step", "one record a step",
          (C, '"steps": len(history)', '"steps": len(history[:-1])'), (C, '"history": history', '"history": history[:-1]')),
    wrong("records_twice", "m13c.roomy_pool", "", "one record a step",
          (C, '"steps": len(history)', '"steps": 2 * len(history)'),
          (C, '"history": history', '"history": [record for record in history for _ in range(2)]')),
    wrong("record_before_the_step", "m13c.roomy_pool", "at its end", "a record is made at the end of its step",
          (C, "        history.append(engine.step())", "        history.append(engine._record(len(engine.running)))\n        engine.step()")),
    # ---- refusals
    wrong("never_fits_hangs", "m13c.refusals", "never fits", "a request that never fits is refused",
          (C, "        if needed > block_budget:", "        if needed > block_budget + 10**9:")),
    wrong("only_the_prompt_must_fit", "m13c.refusals", "never fits", "a request must fit with its last cached token",
          (C, _NEEDED, "needed = -(-len(prompt) // block_size)")),
    wrong("exact_fit_refused", "m13c.tight_pool", "never cached", "the last token is never cached",
          (C, _NEEDED, _NEEDED.replace("max_new - 1", "max_new"))),
    wrong("request_not_named", "m13c.refusals", "names 1", "an error names the request",
          (C, 'check_request(f"request {index}"', 'check_request("a request"')),
)  # fmt: skip

FINALE = (
    wrong("own_decoding", "m13d.finale", "tokenizer", "the workspace's tokenizer decodes",
          (D, '"text": tokenizer.decode(outputs[0])', '"text": " ".join(map(str, outputs[0]))')),
    wrong("prompt_in_the_text", "m13d.finale", "the prompt in it", "the text is what the model wrote",
          (D, '"text": tokenizer.decode(outputs[0])', '"text": FINALE_PROMPTS[0] + tokenizer.decode(outputs[0])')),
    wrong("text_of_another_prompt", "m13d.finale", "first prompt", "the text belongs to the first prompt",
          (D, '"text": tokenizer.decode(outputs[0])', '"text": tokenizer.decode(outputs[1])')),
    wrong("metrics_overwritten", "m13d.finale", "keeps the others", "metrics.json accumulates",
          (D, "    history, outputs = report", "    (ws / 'metrics.json').write_text('{\"m13_finale\": {}}')\n    history, outputs = report")),
    wrong("untrained_model", "m13d.finale", "trained", "the trained model is served",
          (D, "model, tokenizer = load_model(ws)", "model, tokenizer = type(load_model(ws))(load_model(ws).config).eval()")),
    wrong("too_short_a_text", "m13d.finale", "at least 32 tokens", "a text, not a word", (D, "MAX_NEW = 224", "MAX_NEW = 8")),
    wrong("first_batch_only", "m13d.finale", "all 16 prompts", "every prompt is served",
          (D, "for prompt in FINALE_PROMPTS]", "for prompt in FINALE_PROMPTS[:MAX_BATCH]]")),
    wrong("pool_too_large", "m13d.finale", "preemption", "the default pool forces preemption",
          (D, "serve(requests, MAX_NEW,", "serve(requests, MAX_NEW, 999,")),
    wrong("occupancy_in_percent", "m13d.finale", "mean_occupancy", "occupancy is a share",
          (D, "/ len(history) / MAX_BATCH", "/ len(history)")),
    wrong("waste_swapped", "m13d.finale", "slabs", "blocks waste less than slabs",
          (D, '"kv_waste_naive": 1 - used / reserved', '"kv_waste_naive": 1 - used / allocated'),
          (D, '"kv_waste_paged": 1 - used / allocated', '"kv_waste_paged": 1 - used / reserved')),
    wrong("speed_in_milliseconds", "m13d.finale", "tokens_per_sec", "tokens a second",
          (D, '"tokens_per_sec": tokens / seconds', '"tokens_per_sec": tokens / seconds / 1000')),
    wrong("tokens_of_the_first_only", "m13d.finale", "all requests", "tokens counts all requests",
          (D, "tokens = sum(map(len, outputs))", "tokens = len(outputs[0])")),
)  # fmt: skip

# Caught by hidden cases alone: their inputs are not among the visible ones.
HIDDEN = (
    hidden("end_token_zero", "m13c.edges", "end token", "token 0 can be the end token",
           (C, "        self.eos_id = eos_id\n", "        self.eos_id = eos_id or None\n")),
    hidden("long_table_cut", "m13b.shapes", "", "tables may be long",
           (B, "torch.tensor([manager.tables[0]], device=device)", "torch.tensor([manager.tables[0][:40]], device=device)")),
    hidden("deep_models_cut", "m13b.shapes", "", "every layer counts",
           (B, "for index, layer in enumerate(model.layers):", "for index, layer in enumerate(model.layers[:4]):")),
    hidden("many_requests_cut", "m13c.roomy_pool", "", "any number of requests",
           (C, "    sequences = [", "    requests = requests[:32]\n    sequences = [")),
)  # fmt: skip

WRONG = LOADING + GREEDY + SERVING + FINALE + HIDDEN
