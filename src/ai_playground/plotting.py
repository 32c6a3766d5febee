"""The course's figures, each a function from plain numbers to a matplotlib Figure.

Nothing here goes through pyplot: a figure belongs to whoever asked for it, is shown by a notebook when it is a
cell's last value, and is written with `figure.savefig(path)`. The colours are Okabe and Ito's (2008), which
stay apart for every common kind of colour blindness; lines also differ in dash, and areas in hatching. Figures
bring their own light background, so that they read the same on a light page, a dark page and a projector.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#8F4A7A", "#56B4E9"
INK, MUTED, RULE, PAPER, EMPTY = "#1F2430", "#5A6270", "#C9CED6", "#FCFCFA", "#EEF0F3"
SEQUENCE_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY)

STYLE = {
    "figure.dpi": 100,  # a 9 inch figure is 900 pixels: it fits a notebook's column at 100% zoom
    "savefig.dpi": 200,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 12,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.prop_cycle": matplotlib.cycler(color=SEQUENCE_COLOURS),
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "lines.linewidth": 2.2,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "hatch.linewidth": 1.1,
}


def apply_plot_style() -> None:
    """Make the course's look matplotlib's default, for plots that a reader draws on their own."""
    matplotlib.rcParams.update(STYLE)


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the course's style whatever the caller's settings are, and leave those as they were."""

    @wraps(draw)
    def styled(*args: Any, **kwargs: Any) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return styled


@_styled
def kv_growth_figure(
    sequences: Sequence[int], caches: Mapping[str, Sequence[float]], levels: Mapping[str, float]
) -> Figure:
    """How the KV cache grows with the number of sequences, beside things that do not grow.

    Args:
        sequences: numbers of concurrent sequences, the x axis.
        caches: for each model, its cache in GiB at each of `sequences`.
        levels: sizes in GiB to compare with, such as a model's weights or a GPU's memory.
    """
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    at = {"xycoords": "data", "textcoords": "offset points", "va": "center", "annotation_clip": False}
    for (name, values), colour, dash in zip(
        caches.items(), SEQUENCE_COLOURS, ("-", "--", "-.", ":", "-"), strict=False
    ):
        axes.plot(sequences, values, color=colour, linestyle=dash)
        axes.annotate(name, (sequences[-1], values[-1]), (8, 0), color=colour, weight="bold", **at)
    for name, level in levels.items():
        axes.axhline(level, color=MUTED, linewidth=1.2)
        axes.annotate(name, (sequences[-1], level), (8, 0), color=MUTED, **at)
    axes.set(
        title="Weights are paid for once, the cache for every sequence",
        xlabel="concurrent sequences",
        ylabel="memory (GiB)",
        xlim=(0, sequences[-1]),
        ylim=(0, None),
    )
    return figure


@_styled
def block_table_figure(
    tables: Mapping[str, Sequence[int]], lengths: Mapping[str, int], num_blocks: int, block_size: int
) -> Figure:
    """Sequences as logical strips, their block tables, and where the blocks lie in the physical pool.

    Slots that are allocated and not used are hatched; blocks that nobody owns are grey.

    Args:
        tables: for each sequence its physical block ids, in logical order.
        lengths: for each sequence its number of tokens.
        num_blocks: blocks of the pool.
        block_size: slots of a block.

    Raises:
        ValueError: a table that is too short for its sequence, or names a block outside the pool.
    """
    for name, table in tables.items():
        if len(table) * block_size < lengths[name] or any(not 0 <= block < num_blocks for block in table):
            raise ValueError(
                f"sequence {name!r}: {lengths[name]} tokens do not fit the table {list(table)} of blocks of "
                f"{block_size} in a pool of {num_blocks}"
            )
    gap, per_row = 0.35, 6  # between blocks, in slots; blocks in a row of the pool
    pool_rows = -(-num_blocks // per_row)
    width = max(per_row, *(len(table) for table in tables.values())) * (block_size + gap)
    height = len(tables) * 2.5 + pool_rows * 1.75 + 1.0
    left = 3.3  # room for the sequences' names
    figure = Figure(figsize=(9, 9 * (height + 0.2) / (width + left)), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-left, width), ylim=(height, -0.2), aspect="equal")
    axes.axis("off")

    def slots(x: float, y: float, colour: str | None, used: int, labels: Sequence[str]) -> None:
        for slot in range(block_size):
            fill = EMPTY if colour is None else colour if slot < used else PAPER
            style: dict[str, Any] = {"facecolor": fill, "edgecolor": MUTED if colour is None else colour}
            if colour is not None and slot >= used:
                style["hatch"] = "////"
            axes.add_patch(Rectangle((x + slot, y), 1, 0.85, linewidth=1.2, **style))
            if slot < len(labels):
                axes.text(
                    x + slot + 0.5,
                    y + 0.43,
                    labels[slot],
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=11,
                    weight="bold",
                )

    owner: dict[int, tuple[str, int]] = {}  # physical block -> (sequence, logical index)
    colours = dict(zip(tables, SEQUENCE_COLOURS, strict=False))
    y = 0.3
    for name, table in tables.items():
        axes.text(-left, y + 0.43, f"{name}\n{lengths[name]} tokens", va="center", color=colours[name], weight="bold")
        for logical, block in enumerate(table):
            owner[block] = (name, logical)
            used = min(block_size, lengths[name] - logical * block_size)
            x = logical * (block_size + gap)
            slots(x, y, colours[name], used, [str(logical * block_size + slot) for slot in range(used)])
            label = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": colours[name]}
            axes.text(
                x + block_size / 2, y + 1.55, f"table[{logical}] = {block}", ha="center", va="center", fontsize=11,
                family="monospace", bbox=label,
            )  # fmt: skip
            axes.plot([x + block_size / 2] * 2, [y + 0.87, y + 1.25], color=colours[name], linewidth=1.2)
        y += 2.5
    axes.text(-left, y + 0.3, f"The physical pool: {num_blocks} blocks of {block_size} slots", weight="bold")
    y += 0.75
    for block in range(num_blocks):
        x, row = (block % per_row) * (block_size + gap), y + (block // per_row) * 1.75
        name, logical = owner.get(block, (None, 0))
        used = 0 if name is None else min(block_size, lengths[name] - logical * block_size)
        labels = [str(logical * block_size + slot) for slot in range(used)]
        slots(x, row, None if name is None else colours[name], used, labels)
        caption = f"block {block}" + (": free" if name is None else f": {name}")
        axes.text(x + block_size / 2, row + 1.2, caption, ha="center", va="center", fontsize=11)
    legend = [
        Patch(facecolor=MUTED, edgecolor=MUTED, label="holds a token (its position)"),
        Patch(facecolor=PAPER, edgecolor=MUTED, hatch="////", label="allocated, not used"),
        Patch(facecolor=EMPTY, edgecolor=MUTED, label="free"),
    ]
    axes.legend(handles=legend, loc="upper right", fontsize=11, borderaxespad=0)
    return figure


@_styled
def work_figure(prompt_len: int, new_tokens: int) -> Figure:
    """Tokens pushed through the model at each step, by full recompute and with a cache.

    Args:
        prompt_len: tokens of the prompt.
        new_tokens: tokens generated after it, one a step.
    """
    full = [prompt_len + step for step in range(new_tokens)]
    cached = [prompt_len] + [1] * (new_tokens - 1)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    steps = range(1, new_tokens + 1)
    axes.bar([s - 0.21 for s in steps], full, 0.4, color=EMPTY, edgecolor=ORANGE, hatch="////", label="full recompute")
    axes.bar([s + 0.21 for s in steps], cached, 0.4, color=BLUE, label="with a cache: prefill, then decode")
    axes.set(
        title=f"{sum(full)} token passes without a cache, {sum(cached)} with one",
        xlabel="generated token",
        ylabel="tokens through the model",
        ylim=(0, full[-1] * 1.3),
    )
    axes.set_xticks([1, *range(5, new_tokens + 1, 5)])
    axes.legend(loc="upper left", ncols=2)
    return figure


@_styled
def occupancy_figure(runs: Mapping[str, Sequence[int]], max_batch: int) -> Figure:
    """How many sequences each step served: one panel a run, all on the same steps.

    Args:
        runs: for each run its batch size at each step.
        max_batch: the most that a step may serve.
    """
    figure = Figure(figsize=(9, 0.8 + 2.0 * len(runs)), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    longest = max(len(sizes) for sizes in runs.values())
    for axes, (name, sizes), colour in zip(panels, runs.items(), (BLUE, ORANGE, GREEN, PURPLE), strict=False):
        mean = sum(sizes) / len(sizes)
        axes.stairs(sizes, range(1, len(sizes) + 2), fill=True, color=colour, alpha=0.35)
        axes.stairs(sizes, range(1, len(sizes) + 2), color=colour, linewidth=1.6)
        axes.axhline(max_batch, color=MUTED, linewidth=1, linestyle=":")
        axes.set_title(f"{name}: {len(sizes)} steps, {mean:.1f} of {max_batch} places busy on average")
        axes.set(ylabel="sequences", ylim=(0, max_batch * 1.12), xlim=(1, longest + 1))
        axes.set_yticks([0, max_batch])
    panels[-1].set_xlabel("step")
    return figure


@_styled
def memory_figure(history: Sequence[Mapping[str, Any]]) -> Figure:
    """KV memory over the steps of a run: what slabs would reserve, what blocks allocate, what tokens use.

    Args:
        history: one record a step with `reserved`, `allocated` and `used`, each in tokens.
    """
    lines = {name: [record[name] for record in history] for name in ("reserved", "allocated", "used")}
    total = {name: sum(values) for name, values in lines.items()}
    steps = range(1, len(history) + 1)
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.fill_between(steps, lines["used"], step="mid", color=GREEN, alpha=0.18, linewidth=0)
    for name, colour, dash, meaning in (
        ("reserved", ORANGE, (0, (5, 2)), "reserved by slabs"),
        ("allocated", BLUE, "-", "allocated in blocks"),
        ("used", GREEN, (0, (1, 1)), "used by tokens"),
    ):
        waste = f" ({1 - total['used'] / total[name]:.0%} wasted)" if name != "used" and total[name] else ""
        axes.step(steps, lines[name], where="mid", color=colour, linestyle=dash, label=f"{meaning}{waste}")
    axes.set(
        xlabel="step",
        ylabel="tokens' worth of memory",
        xlim=(1, len(history)),
        ylim=(0, max(lines["reserved"]) * 1.05 or 1),
    )
    # Above the axes, since lines may run anywhere inside.
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=11, columnspacing=1.3, borderaxespad=0.2)
    axes.set_title("KV memory over one serving run", pad=34)
    return figure


@_styled
def timeline_figure(runs: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """When each request ran: a lane a request, a bar for each stretch of steps in which it was decoded.

    A request that was preempted and came back has several bars; the gaps between them are joined by a thin line.

    Args:
        runs: for each run, the ids of the requests that each step decoded.
    """
    requests = sorted({request for batches in runs.values() for batch in batches for request in batch})
    lane = {request: index for index, request in enumerate(requests)}
    longest = max(len(batches) for batches in runs.values())
    figure = Figure(figsize=(9, 0.9 + len(runs) * (0.6 + 0.125 * len(requests))), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, batches) in zip(panels, runs.items(), strict=True):
        came_back = False
        for request in requests:
            spans = _spans([request in batch for batch in batches])
            if not spans:
                continue
            first, last = spans[0][0], sum(spans[-1])
            axes.plot([first, last], [lane[request]] * 2, color=ORANGE, linewidth=1.2, zorder=1)
            axes.broken_barh(spans, (lane[request] - 0.38, 0.76), facecolor=BLUE, zorder=2)
            came_back |= len(spans) > 1
            axes.plot([start for start, _ in spans[1:]], [lane[request]] * (len(spans) - 1), "|", color=ORANGE, ms=9)
        meaning = " (thin line: preempted, waiting to come back)" if came_back else ""
        axes.set_title(f"{name}: {len(batches)} steps{meaning}")
        axes.set(ylabel="request", xlim=(1, longest + 1), ylim=(len(requests) - 0.4, -0.6))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    panels[-1].set_xlabel("step")
    return figure


def _spans(active: Sequence[bool]) -> list[tuple[int, int]]:
    """`(first step, length)` of each unbroken stretch of True; steps count from 1."""
    spans: list[tuple[int, int]] = []
    for step, now in enumerate(active, start=1):
        if not now:
            continue
        if spans and sum(spans[-1]) == step:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((step, 1))
    return spans
