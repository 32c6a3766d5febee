"""The two figures of `course bench`, on the light background that they bring along."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ai_playground.plotting import BLUE, EMPTY, MUTED, ORANGE, STYLE

OURS = {"fast": BLUE, "reference": "#7FB7DA"}
TITLES = {
    "w1-fp32": "SmolLM2-135M, float32", "w1-bf16": "SmolLM2-135M, bfloat16", "w2-fp32": "toy model, float32",
    "w2-bf16": "toy model, bfloat16", "w3": "the chapter's 24 requests, one thread",
}  # fmt: skip


def draw(found: dict[str, Any], folder: Path) -> None:
    """Write `speed.png`, and `scaling.png` where scaling was measured."""
    with matplotlib.rc_context(STYLE):
        if found["medians"]:
            speed(found).savefig(folder / "speed.png")
        if "float32" in found.get("probes", {}):
            scaling(found["probes"]).savefig(folder / "scaling.png")


def speed(found: dict[str, Any]) -> Figure:
    """CPU seconds of each peer, one panel a workload; shorter is better."""
    table = found["medians"]
    rows = len(table) // 2 + 1  # one panel is left over at least, for the legend
    most = max(map(len, table.values()))
    figure = Figure(figsize=(11, 0.4 + rows * (0.9 + 0.36 * most)), layout="constrained")
    panels = figure.subplots(rows, 2, squeeze=False).flatten()
    for axes in panels[len(table) :]:
        axes.axis("off")
    legend = [
        Patch(color=OURS["fast"], label="this engine, fast runner"),
        Patch(color=OURS["reference"], label="this engine, readable runner"),
        Patch(color=MUTED, label="others"),
        Line2D([], [], color=ORANGE, label="from the least to the most of the runs"),
    ]
    panels[-1].legend(
        handles=legend,
        loc="center left",
        title="Median CPU seconds, shorter is better;\nbeside them tokens per second of wall time",
        alignment="left",
    )
    for axes, (name, peers) in zip(panels, table.items(), strict=False):
        order = sorted(peers, key=lambda peer: peers[peer]["cpu_seconds"])
        values = [peers[peer]["cpu_seconds"] for peer in order]
        axes.barh(order, values, color=[OURS.get(peer, MUTED) for peer in order], height=0.66)
        for at, (peer, value) in enumerate(zip(order, values, strict=True)):
            spread = [run["cpu_seconds"] for run in found["runs"] if (run["workload"], run["peer"]) == (name, peer)]
            axes.plot([min(spread), max(spread)], [at, at], color=ORANGE, linewidth=2)
            rate = f"{value:.3g} s; {peers[peer]['tokens_per_second']:,.0f} tokens/s"
            axes.annotate(rate, (max(spread), at), (7, 0), textcoords="offset points", va="center", fontsize=11)
        axes.set(title=TITLES[name], xlim=(0, max(values) * 2.0), ylim=(most - 0.4, -0.6), xlabel="CPU seconds")
        axes.grid(visible=False)
    return figure


def scaling(probes: dict[str, Any]) -> Figure:
    """A step's wall time against batch, context, pool and queue, each with the straight line that it should be."""
    figure = Figure(figsize=(11, 7.2), layout="constrained")
    (batch, context), (pool, waiting) = figure.subplots(2, 2)
    for axes, key, title, label in (
        (batch, "batch", "A step against the batch", "sequences, 128 tokens of context each"),
        (context, "context", "A step against the context", "tokens of context, 8 sequences"),
    ):
        for name, colour, marker in (("fast", BLUE, "o"), ("reference", ORANGE, "s")):
            points = [(x, wall * 1000) for x, wall, _ in probes["float32"][name][key]]
            _with_line(axes, points, colour, marker, name)
        axes.set(title=title, xlabel=label, ylabel="ms", ylim=(0, None), xlim=(0, None))
        axes.legend(loc="upper left")
    for axes, key, title, label in (
        (pool, "pool", "A step against the pool", "blocks in the pool"),
        (waiting, "waiting", "A step against the queue", "requests that wait"),
    ):
        points = [(x, wall * 1000) for x, wall, _ in probes["engine"][key]]
        axes.plot(*zip(*points, strict=True), color=BLUE, marker="o", linestyle="none")
        axes.axhline(points[0][1], color=BLUE, linewidth=1.2, linestyle="--")
        axes.set(title=title, xlabel=label, ylabel="ms", xscale="log", ylim=(0, 2 * max(y for _, y in points)))
    figure.supxlabel(
        "Above: SmolLM2, float32, decode alone, least-squares line. Below: toy model, the whole step.",
        fontsize=11,
    )
    return figure


def _with_line(axes: Axes, points: list[tuple[float, float]], colour: str, marker: str, name: str) -> None:
    xs, ys = zip(*points, strict=True)
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x in xs)
    ends = (0, max(xs))
    axes.plot(ends, [mean_y + slope * (x - mean_x) for x in ends], color=colour, linewidth=1.2, linestyle="--")
    axes.plot(xs, ys, color=colour, marker=marker, linestyle="none", label=name, markerfacecolor=EMPTY)
