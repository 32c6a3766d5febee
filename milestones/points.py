"""The one place that holds the points: of M13 (M13a-d and the chapter's graded cells) and of p3."""

MILESTONES: dict[str, int] = {"m13a": 10, "m13b": 25, "m13c": 25, "m13d": 10}

# Of a milestone's points: what the checks that students can run carry. The grader's own cases carry the rest, since
# an answer to a question that is known can be copied.
VISIBLE_SHARE = 0.4

# A milestone's points are split evenly over its checks, but for these, which count as several.
WEIGHTS: dict[str, int] = {"m13b.cached_work": 4}

# By the grade_id of the answer cell; the cell that judges it is called test_<grade_id>.
CHAPTER: dict[str, int] = {
    "kv_bytes": 1,
    "block_manager": 6,
    "q_fragmentation": 1,
    "q_paging": 1,
    "attention": 4,
    "decode": 4,
    "q_phases": 1,
    "q_proof": 1,
    "engine": 4,
    "memory": 2,
    "static_steps": 1,
    "preempt": 3,
    "q_preemption": 1,
}

# p3 is an assignment of its own: 100 points, for each of its checks, by its parts. VISIBLE_SHARE holds for each check
# but for those that the grader has no further cases for.
P3: dict[str, dict[str, int]] = {
    "p3_full": {"p3.full_tokens": 10, "p3.full_edges": 5, "p3.full_refusals": 5},
    "p3_cached": {"p3.cached_tokens": 25, "p3.cached_edges": 10, "p3.cached_refusals": 5, "p3.cached_work": 15},
    "p3_sampler": {
        "p3.sampler_distribution": 10,
        "p3.sampler_edges": 5,
        "p3.sampler_generator": 4,
        "p3.sampler_refusals": 3,
    },
    "p3_rules": {"p3.no_inference_import": 3},
}
P3_SHOWN_WHOLE = ("p3.sampler_refusals", "p3.no_inference_import")
