"""The one place that holds the assignment's points: M13a-d, and the chapter's graded cells."""

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
