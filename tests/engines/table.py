"""The bench's outcome as a page of the docs."""

from ai_playground.checkout import repo_root
from tests.engines.bench import Outcome, names_the_idea, problem
from tests.engines.engine import Engine

TABLE = repo_root() / "docs" / "engines.md"

_HEAD = """# The bench of engines

What the milestones' checks are worth: engines with one mistake each, engines that want the points without the work,
and right engines that are written in different ways, all judged as a student's engine is. Written by
`uv run python -m tests.engines --write`; the definitions stand in `tests/engines/`. The continuous integration runs
every third engine (`--third N`), and by the number of commits another third each time.
"""


def table(outcomes: list[tuple[Engine, Outcome]]) -> str:
    """Markdown: the sums, then one row an engine."""
    rows = {kind: [pair for pair in outcomes if pair[1].kind == kind] for kind in ("wrong", "dishonest", "right")}
    lines = [
        _HEAD,
        "| engines | in all | caught by a visible check | by hidden cases only | missed | the message names the idea |",
    ]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for kind in ("wrong", "dishonest"):
        pairs = rows[kind]
        visible = sum(bool(outcome.caught) and not outcome.by_hidden for _, outcome in pairs)
        by_hidden = sum(outcome.by_hidden for _, outcome in pairs)
        said = [pair for pair in pairs if pair[0].says]
        named = f"{sum(names_the_idea(*pair) for pair in said)} of {len(said)}" if said else "not asked"
        lines.append(
            f"| {kind} | {len(pairs)} | {visible} | {by_hidden} | {len(pairs) - visible - by_hidden} | {named} |"
        )
    passed = sum(not outcome.caught for _, outcome in rows["right"])
    engines = len({engine.name for engine, _ in rows["right"]})
    lines.append(
        f"\n**Right engines:** {engines}, {len(rows['right'])} runs in all; {passed} runs passed every check, "
        f"{len(rows['right']) - passed} did not.\n"
    )
    for kind, title in (("wrong", "Wrong engines"), ("dishonest", "Dishonest engines")):
        lines += [f"\n## {title}\n", "| engine | what it violates | caught by |", "| --- | --- | --- |"]
        for engine, outcome in sorted(rows[kind], key=lambda pair: (pair[0].fails, pair[0].name)):
            by = f"`{outcome.caught}`" + (", hidden" if outcome.by_hidden else "")
            lines.append(f"| {engine.name} | {engine.idea} | {by if outcome.caught else '**missed**'} |")
    lines += ["\n## Right engines\n", "| engine | how it differs | runs passed |", "| --- | --- | --- |"]
    for name in sorted({engine.name for engine, _ in rows["right"]}):
        pairs = [pair for pair in rows["right"] if pair[0].name == name]
        passed = sum(not problem(*pair) for pair in pairs)
        lines.append(f"| {name} | {pairs[0][0].idea} | {passed} of {len(pairs)} |")
    return "\n".join(lines) + "\n"
