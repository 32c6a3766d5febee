"""The runs of `course bench`: every peer in a process and an environment of its own, interleaved, round after round."""

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from ai_playground.chapter import chapter_workload
from ai_playground.workspace import read_config
from benchmarks.bench_models import prepare
from benchmarks.workloads import WORKLOADS, Requests, Workload

HERE = Path(__file__).parent
TIMEOUT = 900  # seconds, for one run of one peer
# Each peer's script, and the environment that it runs in: a folder below --envs, or "" for the course's own.
PEERS = {
    "fast": ("ours.py", ""),
    "reference": ("ours.py", ""),
    "chapter": ("ours.py", ""),
    "vllm": ("vllm_cpu.py", "vllm"),
    "llama.cpp": ("llama_cpp.py", "llamacpp"),
    "transformers-cb": ("hugging_face.py", "transformers"),
    "transformers": ("hugging_face.py", "transformers"),
}


@dataclass
class Settings:
    """What one `course bench` was asked for."""

    workloads: list[str]
    peers: list[str]
    runs: int
    threads: int
    workspace: Path | None
    envs: Path
    cache: Path
    say: Callable[[str], None] = field(default=print)


def serve_all(settings: Settings) -> Iterator[dict[str, Any]]:
    """Run the workloads; each round goes through all of them and all peers, so that no peer has the quiet hour.

    Yields:
        After each workload of each round what there is by then: `runs` (a record for each run), `skipped`
        (`{workload: {peer: why}}`), `versions` and `medians`.
    """
    runs: list[dict[str, Any]] = []
    skipped: dict[str, dict[str, str]] = {name: {} for name in settings.workloads}
    versions: dict[str, Any] = {}
    first_outputs: dict[str, list[list[int]]] = {}
    for round_number in range(settings.runs):
        for name in settings.workloads:
            workload = WORKLOADS[name]
            model = prepare(workload.model, workload.dtype, settings.workspace, settings.cache)
            requests = requests_of(name, model)
            peers = [peer for peer in workload.peers if peer in settings.peers and peer not in skipped[name]]
            shift = round_number % max(len(peers), 1)
            for peer in peers[shift:] + peers[:shift]:
                record = run_peer(peer, workload, model, requests, settings)
                if "failed" in record:
                    skipped[name][peer] = record["failed"]
                    settings.say(f"{name} {peer}: skipped, {record['failed']}")
                    continue
                outputs = record.pop("outputs")
                versions[peer] = record.pop("versions")
                same = first_outputs.setdefault(name, outputs)
                record["same_start"] = sum(a[:8] == b[:8] for a, b in zip(outputs, same, strict=True)) / len(same)
                runs.append({"workload": name, "peer": peer, "round": round_number, **record})
                settings.say(
                    f"{name} {peer}: {record['wall_seconds']:.2f} s, {record['cpu_seconds']:.2f} CPU s, "
                    f"{record['peak_mb']} MB, first tokens agree {record['same_start']:.0%}"
                )
            yield {"runs": runs, "skipped": skipped, "versions": versions, "medians": medians(runs)}


def requests_of(name: str, model: Path) -> Requests:
    """The requests of a workload; w3's are the chapter's own."""
    if name == "w3":
        return [(request.prompt, request.stop_after) for request in chapter_workload()]
    return WORKLOADS[name].requests(read_config(model).vocab_size)


def run_peer(peer: str, workload: Workload, model: Path, requests: Requests, settings: Settings) -> dict[str, Any]:
    """One run of one peer: what `peers/measure.py` wrote, or `{"failed": why}`."""
    script, environment = PEERS[peer]
    threads = workload.threads or settings.threads
    python = Path(sys.executable) if not environment else settings.envs / environment / "bin" / "python"
    if not python.is_file():
        return {"failed": "not installed, see benchmarks/README.md"}
    with tempfile.TemporaryDirectory() as folder:
        job, out = Path(folder) / "job.json", Path(folder) / "out.json"
        values = {
            "peer": peer, "dtype": workload.dtype, "max_batch": workload.max_batch, "threads": threads,
            "model": str(model), "requests": requests, "out": str(out), "started": time.time(),
        }  # fmt: skip
        job.write_text(json.dumps(values))
        printed = Path(folder) / "printed"
        with printed.open("w") as log:
            process = subprocess.Popen(
                [python, HERE / "peers" / script, job],
                env=environment_of(threads, ours=not environment),
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                return {"failed": f"no end after {TIMEOUT} s"}
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what the peer started, too
        if not out.is_file():
            # The last error that names itself; vLLM's last one only says that there was one above.
            errors = re.findall(r"\w+Error: (?!EngineCore).*", printed.read_text(errors="replace"))
            return {"failed": errors[-1][:200] if errors else f"exit status {process.returncode}"}
        return json.loads(out.read_text())


def environment_of(threads: int, ours: bool) -> dict[str, str]:
    """So many threads, and no network. How threads wait is left to each peer; `course` lets ours sleep."""
    dropped = ("VIRTUAL_ENV", "PYTHON", "UV_", "OMP_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    own = {"OMP_WAIT_POLICY": "PASSIVE"} if ours else {}
    return kept | own | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def probe(settings: Settings) -> dict[str, Any]:
    """Roofline, decode steps and scaling, in a process of their own; see machine_limits.py."""
    models = {}
    if settings.workspace is not None:
        models = {d: str(prepare("smollm2", d, settings.workspace, settings.cache)) for d in ("float32", "bfloat16")}
    toy = prepare("toy", "float32", None, settings.cache)
    with tempfile.TemporaryDirectory() as folder:
        job, out = Path(folder) / "job.json", Path(folder) / "out.json"
        values = {"threads": settings.threads, "models": models, "toy": str(toy), "out": str(out)}
        job.write_text(json.dumps(values))
        environment = environment_of(settings.threads, ours=True)
        subprocess.run([sys.executable, HERE / "machine_limits.py", job], env=environment, check=True, timeout=TIMEOUT)
        return json.loads(out.read_text()) | {"cold_start": cold_start(settings.threads)}


def cold_start(threads: int) -> dict[str, float]:
    """Seconds from starting `course serve` to the end of its first token, with the shipped model: medians of 5."""
    command = [Path(sys.executable).with_name("course"), "serve", "Once upon a time", "--max-new", "1"]
    walls, cpus = [], []
    for _ in range(5):
        before, begin = os.times(), time.perf_counter()
        subprocess.run(command, env=environment_of(threads, ours=True), check=True, capture_output=True)
        walls.append(time.perf_counter() - begin)
        after = os.times()
        cpus.append(sum(after[2:4]) - sum(before[2:4]))
    return {"wall_seconds": median(walls), "cpu_seconds": median(cpus)}


def machine() -> dict[str, Any]:
    """What the figures were measured on, without its name."""
    info = Path("/proc/cpuinfo").read_text()
    model = next(line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name"))
    flags = next(line for line in info.splitlines() if line.startswith("flags")).split()
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory.split()[1]) / 2**20),
        "instructions": [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags],
        "system": f"{platform.system()}, Python {platform.python_version()}",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def medians(runs: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """`{workload: {peer: {measure: median of its runs}}}`, with `tokens_per_second` and `runs`."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for name in dict.fromkeys(run["workload"] for run in runs):
        for peer in dict.fromkeys(run["peer"] for run in runs if run["workload"] == name):
            mine = [run for run in runs if (run["workload"], run["peer"]) == (name, peer)]
            row = {
                key: median(run[key] for run in mine)
                for key in ("start_seconds", "wall_seconds", "cpu_seconds", "peak_mb")
            }
            row["tokens_per_second"] = mine[0]["tokens"] / row["wall_seconds"]
            row["runs"] = len(mine)
            table.setdefault(name, {})[peer] = row
    return table
