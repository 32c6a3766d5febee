"""p3: `generate_full`, `generate_cached` and `top_p_sample`, written for a model that the course never served.

The brief is projects/p3_kv_serve/README.md.
"""

from checking.check import Check
from milestones.p3 import decoder_probes as probes
from milestones.p3.decoders import (
    WORK_CASES,
    edge_cases,
    gpt_spec,
    judge_generate,
    judge_imports,
    judge_refused,
    judge_work,
    refusal_cases,
    token_cases,
)
from milestones.p3.sampler import DISTRIBUTION_CASES, EDGE_SAMPLES, LOGITS, judge_sample, judge_states
from milestones.subjects import P3

README = "projects/p3_kv_serve/README.md"


MODEL = "the docstring of projects/p3_kv_serve/given_model.py"


CHECKS = (
    Check(
        name="p3.full_tokens",
        claim="generate_full returns the prompt and the greedy tokens",
        probe=probes.generate,
        cases=token_cases("generate_full"),
        judge=judge_generate,
        read=f"{README}, part 1; {MODEL}",
        subject=P3,
    ),
    Check(
        name="p3.full_edges",
        claim="generate_full is right for one token, no token, the longest sequence and ties",
        probe=probes.generate,
        cases=edge_cases("generate_full"),
        judge=judge_generate,
        read=f"{README}, part 1",
        subject=P3,
    ),
    Check(
        name="p3.full_refusals",
        claim="generate_full refuses what it cannot decode with a ValueError that names the numbers",
        probe=probes.generate_refusal,
        cases=refusal_cases("generate_full"),
        judge=judge_refused,
        read=f"{README}, part 1",
        subject=P3,
    ),
    Check(
        name="p3.cached_tokens",
        claim="generate_cached gives the tokens of full recompute",
        probe=probes.generate_variants,
        cases=token_cases("generate_cached"),
        judge=judge_generate,
        read=f"{README}, part 2; {MODEL}",
        subject=P3,
    ),
    Check(
        name="p3.cached_edges",
        claim="generate_cached is right for one token, no token, the longest sequence and ties",
        probe=probes.generate,
        cases=edge_cases("generate_cached"),
        judge=judge_generate,
        read=f"{README}, part 2",
        subject=P3,
    ),
    Check(
        name="p3.cached_refusals",
        claim="generate_cached refuses what it cannot decode with a ValueError that names the numbers",
        probe=probes.generate_refusal,
        cases=refusal_cases("generate_cached"),
        judge=judge_refused,
        read=f"{README}, part 2",
        subject=P3,
    ),
    Check(
        name="p3.cached_work",
        claim="each token goes through the model once: the cache is real",
        probe=probes.generate_work,
        cases=WORK_CASES,
        judge=judge_work,
        read=f"{README}, part 2",
        subject=P3,
    ),
    Check(
        name="p3.sampler_distribution",
        claim="top_p_sample draws the nucleus' tokens with their renormalised probabilities",
        probe=probes.sample,
        cases=DISTRIBUTION_CASES,
        judge=judge_sample,
        read=f"{README}, part 3",
        subject=P3,
        limit=40.0,
    ),
    Check(
        name="p3.sampler_edges",
        claim="top_p_sample is right where p or the logits are extreme, equal or exact",
        probe=probes.sample,
        cases=EDGE_SAMPLES,
        judge=judge_sample,
        read=f"{README}, part 3",
        subject=P3,
    ),
    Check(
        name="p3.sampler_generator",
        claim="the generator, and nothing else, decides what top_p_sample draws",
        probe=probes.sample_states,
        cases=({"label": "40 draws, p=0.9", "logits": LOGITS, "p": 0.9, "draws": 40, "generator": 21},),
        judge=judge_states,
        read=f"{README}, part 3",
        subject=P3,
    ),
    Check(
        name="p3.sampler_refusals",
        claim="top_p_sample refuses a p outside (0, 1] with a ValueError that names it",
        probe=probes.sample_refusal,
        cases=tuple(
            {"label": f"p={p} is outside (0, 1]", "names": [str(p)], "logits": LOGITS, "p": p} for p in (0.0, -0.5, 1.5)
        ),
        judge=judge_refused,
        read=f"{README}, part 3",
        subject=P3,
    ),
    Check(
        name="p3.no_inference_import",
        claim="nothing of ai_playground.inference is used",
        probe=probes.inference_imports,
        cases=(
            {
                "label": "the module's syntax tree",
                "model": gpt_spec("default", 0),
                "prompt": [3, 1, 4],
                "n": 2,
                "logits": LOGITS,
                "p": 0.9,
                "draws": 1,
                "generator": 1,
            },
        ),
        judge=judge_imports,
        read=f"{README}, rules",
        subject=P3,
    ),
)
