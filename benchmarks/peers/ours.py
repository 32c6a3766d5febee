"""The course's own engines: the reference, with the readable runner or the fast one, and the chapter's."""

import sys
from pathlib import Path

from measure import main

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "solutions" / "m13")]


def load(job):
    import torch

    torch.set_num_threads(job["threads"])
    from m13a_load_model import load_model
    from m13c_serve import Engine, ModelRunner, Sequence

    ws = Path(job["model"])
    blocks = sum(sorted(-(-(len(prompt) + new) // 16) for prompt, new in job["requests"])[-job["max_batch"] :])
    if job["peer"] == "chapter":
        return chapter(load_model(ws), blocks)
    if job["peer"] == "fast":
        from ai_playground.workspace import load_checkpoint
        from fast import PackedModel

        checkpoint = load_checkpoint(ws)
        packed = PackedModel(checkpoint["config"], checkpoint["model"])
        model, make_runner = None, packed.runner
    else:
        model, make_runner = load_model(ws).to(getattr(torch, job["dtype"])), ModelRunner

    def serve(requests):
        sequences = [Sequence(index, prompt, new) for index, (prompt, new) in enumerate(requests)]
        engine = Engine(model, sequences, blocks, max_batch=job["max_batch"], make_runner=make_runner)
        while engine.waiting or engine.running:
            engine.step()
        return [seq.output for seq in sequences]

    return serve


def chapter(model, blocks):
    """The engine that the notebook's answer cells define."""
    from ai_playground.chapter import Request
    from milestones.s4.answers import load_cells

    engine = load_cells(ROOT / "solutions" / "m13" / "mini_vllm.ipynb")["Engine"]

    def serve(requests):
        asked = [Request(index, list(prompt), new, new) for index, (prompt, new) in enumerate(requests)]
        engine(model, num_blocks=blocks).run(asked)
        return [request.output for request in asked]

    return serve


if __name__ == "__main__":
    main(load, ("torch",))
