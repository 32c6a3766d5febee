"""transformers: `generate` on static batches, and its continuous batching."""

from measure import main


def load(job):
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.set_num_threads(job["threads"])
    continuous = job["peer"] == "transformers-cb"
    model = AutoModelForCausalLM.from_pretrained(job["model"] + "/hf", dtype=getattr(torch, job["dtype"])).eval()
    greedy = {"do_sample": False, "pad_token_id": 0}  # the exported model names no end token

    def static(requests):
        outputs = []
        for start in range(0, len(requests), job["max_batch"]):
            batch = requests[start : start + job["max_batch"]]
            width, new = max(len(prompt) for prompt, _ in batch), max(new for _, new in batch)
            ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch])
            mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in batch])
            config = GenerationConfig(max_new_tokens=new, **greedy)
            with torch.inference_mode():
                made = model.generate(ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
            outputs += [row[:n] for row, (_, n) in zip(made, batch, strict=True)]
        return outputs

    if not continuous:
        return static
    from transformers import ContinuousBatchingConfig

    most = max(new for _, new in job["requests"])
    config = GenerationConfig(max_new_tokens=most, **greedy)
    tokens = sum(len(prompt) + new for prompt, new in job["requests"])
    cb = ContinuousBatchingConfig(
        page_size=32, num_blocks=tokens // 32 + 2 * len(job["requests"]), max_batch_tokens=512,
        max_requests_per_batch=job["max_batch"], allow_block_sharing=False,
    )  # fmt: skip

    def served(requests):
        with model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=cb, block=True, timeout=5
        ) as manager:
            names = [manager.add_request(prompt, max_new_tokens=new) for prompt, new in requests]
            found = {}
            while len(found) < len(requests):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    found[result.request_id] = result.generated_tokens
                elif result is None and not manager.is_running():
                    raise RuntimeError("continuous batching ended by itself")
        return [list(found[name]) for name in names]

    return served


if __name__ == "__main__":
    main(load, ("transformers", "torch"))
