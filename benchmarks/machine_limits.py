"""What the machine can do, and how the cost of a decode step grows: a script that `course bench` runs on its own."""

import json
import resource
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "solutions" / "m13")]

import torch  # noqa: E402

from fast import Arena, fast_runner  # noqa: E402
from m13a_load_model import load_model  # noqa: E402
from m13c_serve import Engine, ModelRunner, Sequence  # noqa: E402

BLOCK = 16


def seconds(call, repeats: int) -> tuple[float, float]:
    """Median wall and CPU seconds of a call."""
    call()
    walls, cpus = [], []
    for _ in range(repeats):
        cpu, wall = _cpu(), time.perf_counter()
        call()
        walls.append(time.perf_counter() - wall)
        cpus.append(_cpu() - cpu)
    return median(walls), median(cpus)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def roofline() -> dict[str, float]:
    """Read bandwidth in GB/s, in huge pages and ordinary ones, and what `torch` makes of products, in GFLOP/s.

    Products: 2,048 cubed, and the 8 rows of a decode step times weights that stay in the cache.
    """
    found = {}
    ordinary, vector = torch.ones(2**27), torch.ones(2**12)  # 512 MiB
    for name, big in (("", ordinary), ("_huge_pages", Arena().copy(ordinary))):
        ways = (big.sum, lambda big=big: big.view(-1, 2**12).mv(vector))
        best = min(seconds(way, 7)[0] for way in ways)
        found[f"read_gb_per_s{name}"] = big.numel() * 4 / best / 1e9
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        for rows, size, columns in ((2048, 2048, 2048), (8, 576, 1536)):
            left, right = torch.ones(rows, size, dtype=dtype), torch.ones(columns, size, dtype=dtype)
            wall, _ = seconds(lambda left=left, right=right: torch.nn.functional.linear(left, right), 20)
            found[f"gflops_{name}_{rows}_rows"] = 2 * rows * size * columns / wall / 1e9
    return found


def step(runner, batch: int, context: int, repeats: int) -> tuple[float, float]:
    """Seconds of one decode step of `batch` sequences that have `context` tokens each, wall and CPU."""
    blocks = -(-context // BLOCK)
    tables = [list(range(index * blocks, (index + 1) * blocks)) for index in range(batch)]
    tokens, positions = list(range(5, 5 + batch)), [context - 1] * batch
    return seconds(lambda: runner.decode(tokens, positions, tables), repeats)


def decode_and_scaling(folder: Path, dtype: str, grows: bool) -> dict:
    """Decode at batch 8, and how it grows with batch and context, of both runners."""
    model = load_model(folder).to(getattr(torch, dtype))
    limit = model.config.max_seq_len
    made = {}
    for name, make_runner, repeats in (("fast", fast_runner(model), 15), ("reference", ModelRunner, 5)):
        runner = make_runner(model, 64 * 8 + 8 * 256, BLOCK)
        made[name] = {"decode_8": step(runner, 8, 128, 2 * repeats)}
        if grows:
            made[name]["batch"] = [[n, *step(runner, n, 128, repeats)] for n in (1, 2, 4, 8, 16, 32, 64)]
            contexts = [n for n in (64, 256, 512, 1024, 2048, 4096) if n <= limit]
            made[name]["context"] = [[n, *step(runner, 8, n, repeats)] for n in contexts]
    config, size = model.config, 2 if dtype == "bfloat16" else 4
    weights = sum(parameter.numel() for parameter in model.parameters())
    if not config.tie_embeddings:
        weights -= model.embedding.weight.numel()
    made["bytes_a_step"] = size * (weights + 8 * 128 * config.kv_values_per_token)
    made["flop_a_step"] = 2 * 8 * weights
    return made


def pool(folder: Path) -> dict[str, list]:
    """A step of the whole engine, scheduler included, against the size of its pool and the length of the queue."""
    model = load_model(folder)
    found = {"pool": [], "waiting": []}

    def engine_step(num_blocks: int, waiting: int) -> tuple[float, float]:
        prompts = [[3 + index % 200] * 32 for index in range(8 + waiting)]
        engine = Engine(
            model, [Sequence(index, prompt, 400) for index, prompt in enumerate(prompts)], num_blocks,
            make_runner=fast_runner(model),
        )  # fmt: skip
        for _ in range(40):
            engine.step()
        return seconds(engine.step, 50)

    for num_blocks in (300, 1_000, 10_000, 100_000):
        found["pool"].append([num_blocks, *engine_step(num_blocks, 2)])
    for waiting in (10, 100, 1_000, 10_000):
        found["waiting"].append([waiting, *engine_step(300, waiting)])
    return found


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    found = {"roofline": roofline(), "engine": pool(Path(job["toy"]))}
    for dtype, folder in job["models"].items():
        found[dtype] = decode_and_scaling(Path(folder), dtype, grows=dtype == "float32")
    Path(job["out"]).write_text(json.dumps(found))
