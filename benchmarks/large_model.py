"""What a model of a billion parameters costs: `uv run --extra fast python -m benchmarks.large_model`.

A bfloat16 folder of Llama 3.2 1B's shape with random weights (1,235,814,400 parameters, 2.5 GB, made in a temporary
folder) is imported, then two prompts are served by the reference and by the fast runner. Each is a process of its own
that says what it took: seconds, peak memory, and how much of that the import of torch alone had taken.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ai_playground.workspace import write_json
from benchmarks.rounds import machine

OUT = Path(__file__).parent / "results" / "large_model.json"
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128_256, "hidden_size": 2_048,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 8_192, "max_position_embeddings": 131_072, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "hidden_act": "silu", "eos_token_id": 1, "torch_dtype": "bfloat16",
    "rope_scaling": {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8_192,
    },
}  # fmt: skip
MEASURED = """
import json, sys, time
def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
import torch
torch.set_num_threads(int(sys.argv[1]))
import ai_playground.workspace
before, began = peak(), time.perf_counter()
"""
IMPORT = """
from pathlib import Path
from ai_playground import importing
importing.write_workspace(importing.read_model(sys.argv[2]), Path(sys.argv[3]))
print(json.dumps({"seconds": time.perf_counter() - began, "peak": peak(), "over_torch": peak() - before}))
"""
SERVE = """
from pathlib import Path
from ai_playground.checkout import repo_root
from ai_playground.workspace import load_checkpoint, mapped_model
sys.path.insert(0, str(repo_root() / "solutions" / "m13"))
from m13c_serve import Engine, ModelRunner, Sequence
if sys.argv[3] == "fast":
    from fast import PackedModel
    checkpoint = load_checkpoint(Path(sys.argv[2]), mapped=True)
    model, make_runner = None, PackedModel(checkpoint["config"], checkpoint["model"]).runner
else:
    model, make_runner = mapped_model(Path(sys.argv[2])), ModelRunner
sequences = [Sequence(0, list(range(1000, 1032)), 17), Sequence(1, list(range(2000, 2016)), 17)]
engine = Engine(model, sequences, 8, make_runner=make_runner)
loaded = time.perf_counter()
steps = []
while engine.waiting or engine.running:
    engine.step()
    steps.append(time.perf_counter())
print(json.dumps({
    "seconds": time.perf_counter() - began, "peak": peak(), "over_torch": peak() - before,
    "first_step_seconds": steps[0] - loaded,
    "decoded_tokens_per_second": 2 * (len(steps) - 1) / (steps[-1] - steps[0]),
}))
"""


def make_folder(folder: Path) -> int:
    """Write the model, layer by layer; returns the bytes of its weights."""
    import torch
    from safetensors.torch import save_file

    from ai_playground.workspace import default_workspace, load_tokenizer

    generator = torch.Generator().manual_seed(0)
    dim, hidden, kv = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["num_key_value_heads"] * 64

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.02).bfloat16()

    nbytes = 0
    for index in range(-1, SHAPE["num_hidden_layers"]):
        at = f"model.layers.{index}"
        tensors = {
            f"{at}.self_attn.q_proj.weight": (dim, dim),
            f"{at}.self_attn.k_proj.weight": (kv, dim),
            f"{at}.self_attn.v_proj.weight": (kv, dim),
            f"{at}.self_attn.o_proj.weight": (dim, dim),
            f"{at}.mlp.gate_proj.weight": (hidden, dim),
            f"{at}.mlp.up_proj.weight": (hidden, dim),
            f"{at}.mlp.down_proj.weight": (dim, hidden),
        }
        norms = [f"{at}.input_layernorm.weight", f"{at}.post_attention_layernorm.weight"]
        if index == -1:
            tensors, norms = {"model.embed_tokens.weight": (SHAPE["vocab_size"], dim)}, ["model.norm.weight"]
        made = {name: weight(*shape) for name, shape in tensors.items()}
        made |= {name: torch.ones(dim, dtype=torch.bfloat16) for name in norms}
        save_file(made, folder / f"model-{index + 1:05d}.safetensors", {"format": "pt"})
        nbytes += sum(tensor.nbytes for tensor in made.values())
    (folder / "config.json").write_text(json.dumps(SHAPE))
    load_tokenizer(default_workspace()).save(folder / "tokenizer.json")
    return nbytes


def measured(program: str, *arguments: object) -> dict[str, float]:
    """What a process of its own says of itself."""
    command = [sys.executable, "-c", MEASURED + program, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, workspace = Path(temporary, "model"), Path(temporary, "workspace")
        folder.mkdir()
        nbytes = make_folder(folder)
        results = {"weights": nbytes, "import": measured(IMPORT, given.threads, folder, workspace)}
        for runner in ("reference", "fast"):
            results[runner] = measured(SERVE, given.threads, workspace, runner)
    write_json(given.out, {"machine": machine(), "threads": given.threads} | results)
    for name in ("import", "reference", "fast"):
        row = results[name]
        print(
            f"{name:10s}",
            *(f"{key} {value / 1e6:,.0f} MB" if value > 1e5 else f"{key} {value:.2f}" for key, value in row.items()),
        )
    print(f"weights    {nbytes / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
