"""Continuous batching without a batched forward pass: each running request decodes by itself."""

import math

from m13b_greedy import Pool, Table, check_request, default_model, forward


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
    model = default_model() if model is None else model
    for i, prompt in enumerate(requests):
        check_request(f"request {i}", prompt, max_new, model.config)
    need = [math.ceil((len(p) + max_new - 1) / block_size) if max_new else 0 for p in requests]
    if block_budget is None:
        first = [math.ceil(len(p) / block_size) for p in requests[:max_batch]]
        block_budget = max([(sum(first) + sum(need[:max_batch])) // 2, *need, 0])
    for i, blocks in enumerate(need):
        if blocks > block_budget:
            raise ValueError(f"request {i} needs {blocks} blocks, the pool has {block_budget}")
    pool = Pool(model, block_budget, block_size)
    tables = [Table(pool) for _ in requests]
    outputs = [[] for _ in requests]
    waiting = list(range(len(requests))) if max_new else []
    running, history = [], []
    completed = 0 if max_new else len(requests)
    preemptions = 0

    def over(i):
        return len(outputs[i]) == max_new or outputs[i][-1] in (eos_id if isinstance(eos_id, tuple) else (eos_id,))

    while waiting or running:
        if continuous or not running:
            while waiting and len(running) < max_batch:
                i = waiting[0]
                feed = requests[i] + outputs[i]
                if tables[i].lacks(len(feed)) > len(pool.available):
                    break
                del waiting[0]
                tables[i].extend(len(feed))
                outputs[i].append(int(forward(model, tables[i], feed).argmax()))
                if over(i):
                    tables[i].free()
                    completed += 1
                else:
                    running.append(i)
        number = 0
        for i in list(running):
            if i not in running:
                continue
            while i in running and tables[i].lacks(1) > len(pool.available):
                youngest = running.pop()
                tables[youngest].free()
                waiting.insert(0, youngest)
                preemptions += 1
            if i in running:
                tables[i].extend(1)
        for i in list(running):
            number += 1
            outputs[i].append(int(forward(model, tables[i], outputs[i][-1:]).argmax()))
            if over(i):
                running.remove(i)
                tables[i].free()
                completed += 1
        history.append(
            {
                "running": number,
                "reserved": sum(len(requests[i]) + max_new for i in running),
                "allocated": sum(len(tables[i].blocks) for i in running) * block_size,
                "used": sum(tables[i].length for i in running),
            }
        )
        if on_step:
            on_step(history[-1])
    return {
        "completed": completed,
        "preemptions": preemptions,
        "outputs": outputs,
        "steps": len(history),
        "history": history,
    }
