"""vLLM's CPU backend, through its offline interface."""

import os

from measure import main


def load(job):
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{job['threads'] - 1}"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=job["model"] + "/hf", dtype=job["dtype"], max_num_seqs=job["max_batch"], max_model_len=512,
        enable_prefix_caching=False, skip_tokenizer_init=True, disable_log_stats=True,
    )  # fmt: skip

    def serve(requests):
        params = [
            SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False) for _, new in requests
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in requests]
        return [list(made.outputs[0].token_ids) for made in llm.generate(prompts, params, use_tqdm=False)]

    return serve


if __name__ == "__main__":
    main(load, ("vllm-cpu", "torch"))
