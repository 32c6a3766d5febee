"""M13d, the finale: your own trained model, served by your own engine.

Card: milestones/m13/m13d.md
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

from ai_playground.prompts import FINALE_PROMPTS
from ai_playground.workspace import load_tokenizer
from m13a_load_model import load_model
from m13c_serve import serve

MAX_NEW = 224
MAX_BATCH = 8


def finale(ws: Path, *, on_step: Callable[[dict[str, int]], None] | None = None) -> dict:
    """Serve the 16 prompts of `FINALE_PROMPTS` with the workspace's model and report on the run.

    The pool is the default one of `serve`, small enough to force preemption; a request ends early at the
    model's `config.eos_id`. The report is plain JSON; `course finale` and the milestone test record it as
    `metrics.json["m13_finale"]`, so this function writes no file.

    Args:
        ws: the workspace folder.
        on_step: handed on to `serve`.

    Returns:
        `text` (str): what the model wrote after the first prompt, without the prompt and special tokens;
        `output_ids` (list[int]): the same as token ids; `tokens` (int): new tokens of all requests;
        `seconds` and `tokens_per_sec` (float, of the serving alone); `steps`, `preemptions`, `completed`
        (int); `mean_occupancy` (float in (0, 1]): running sequences a step over `MAX_BATCH`;
        `kv_waste_naive` and `kv_waste_paged` (float in [0, 1)): the share of KV memory that held no token,
        over the whole run, had a slab been reserved for each request, and with blocks; `engine` (str): the
        file that `serve` comes from; `torch_version` (str); `when` (str, ISO 8601, UTC).

    Raises:
        ValueError: a workspace that cannot be served.
    """
    ### BEGIN SOLUTION
    model, tokenizer = load_model(ws), load_tokenizer(ws)
    requests = [tokenizer.encode(prompt) for prompt in FINALE_PROMPTS]
    start = time.perf_counter()
    report = serve(requests, MAX_NEW, model=model, max_batch=MAX_BATCH, eos_id=model.config.eos_id, on_step=on_step)
    seconds = time.perf_counter() - start
    history, outputs = report["history"], report["outputs"]
    tokens = sum(map(len, outputs))
    used, allocated, reserved = (sum(record[key] for record in history) for key in ("used", "allocated", "reserved"))
    return {
        "text": tokenizer.decode(outputs[0]),
        "output_ids": outputs[0],
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_sec": tokens / seconds,
        "steps": report["steps"],
        "completed": report["completed"],
        "preemptions": report["preemptions"],
        "mean_occupancy": sum(record["running"] for record in history) / len(history) / MAX_BATCH,
        "kv_waste_naive": 1 - used / reserved,
        "kv_waste_paged": 1 - used / allocated,
        "engine": Path(serve.__code__.co_filename).name,
        "torch_version": str(torch.__version__),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    ### END SOLUTION
