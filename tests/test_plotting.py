"""The figures: right numbers, nothing cut off or on top of each other, readable by everybody."""

import itertools

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from ai_playground import plotting

HISTORY = [
    {"step": 1, "running": 2, "reserved": 200, "allocated": 64, "used": 48},
    {"step": 2, "running": 2, "reserved": 200, "allocated": 96, "used": 80},
    {"step": 3, "running": 1, "reserved": 100, "allocated": 40, "used": 32},
]
FIGURES = {
    "kv_growth": lambda: plotting.kv_growth_figure(
        [0, 32, 64], {"7B, MHA": [0, 32, 64], "70B, GQA-8": [0, 20, 40]}, {"weights of the 7B": 12.6}
    ),
    "block_table": lambda: plotting.block_table_figure({"A": [0, 2], "B": [1, 3, 4]}, {"A": 7, "B": 10}, 12, 4),
    "work": lambda: plotting.work_figure(37, 20),
    "occupancy": lambda: plotting.occupancy_figure({"static": [8, 5, 1], "continuous": [8, 6]}, 8),
    "occupancy of one run": lambda: plotting.occupancy_figure({"the finale": [2, 2, 1]}, 8),
    "memory": lambda: plotting.memory_figure(HISTORY),
    "timeline": lambda: plotting.timeline_figure({"24 blocks": [[0, 1], [0], [0, 1], [1, 2]]}),
}


def visible_texts(figure: Figure) -> list[Text]:
    FigureCanvasAgg(figure).draw()
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("name", FIGURES)
def test_every_label_is_on_the_canvas_and_on_no_other(name: str) -> None:
    figure = FIGURES[name]()
    texts = visible_texts(figure)
    renderer = figure.canvas.get_renderer()
    boxes = {text: text.get_window_extent(renderer) for text in texts}
    # Ticks outside the axes' limits keep a label that is not drawn; matplotlib marks them with an empty box.
    boxes = {text: box for text, box in boxes.items() if box.width and text.axes is not None}
    drawn = {
        text: box
        for text, box in boxes.items()
        if not any(text in (tick.label1, tick.label2) for tick in _hidden_ticks(text.axes))
    }
    canvas = figure.bbox
    for text, box in drawn.items():
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= canvas.x1 + 1 and box.y1 <= canvas.y1 + 1
        assert inside, f"{text.get_text()!r} is cut off: {box} in {canvas}"
    for (a, box_a), (b, box_b) in itertools.combinations(drawn.items(), 2):
        width = min(box_a.x1, box_b.x1) - max(box_a.x0, box_b.x0)
        height = min(box_a.y1, box_b.y1) - max(box_a.y0, box_b.y0)
        assert width <= 1 or height <= 2, f"{a.get_text()!r} lies on {b.get_text()!r}"


def _hidden_ticks(axes: matplotlib.axes.Axes) -> list[matplotlib.axis.Tick]:
    hidden = []
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        hidden += [tick for tick in axis.majorTicks if not low <= tick.get_loc() <= high or not axis.get_visible()]
    return hidden if axes.axison else [*axes.xaxis.majorTicks, *axes.yaxis.majorTicks]


@pytest.mark.parametrize("name", FIGURES)
def test_text_is_large_and_has_contrast(name: str) -> None:
    figure = FIGURES[name]()
    assert figure.get_size_inches()[0] * figure.dpi <= 900, "wider than a notebook's column at 100% zoom"
    for text in visible_texts(figure):
        assert text.get_fontsize() >= 11, f"{text.get_text()!r} is too small for a projector"
        if text.get_color() != "white":  # on a coloured block
            assert _contrast(text.get_color(), plotting.PAPER) >= 3.5, f"{text.get_text()!r} is too pale"
    for colour in plotting.SEQUENCE_COLOURS[:4]:
        assert _contrast("white", colour) >= 3.4, f"white on {colour} is hard to read"


def _contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio of two colours, 1 to 21."""

    def luminance(colour: str) -> float:
        channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return float(np.dot([0.2126, 0.7152, 0.0722], channels))

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
COLOUR_BLINDNESS = {
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


@pytest.mark.parametrize("kind", COLOUR_BLINDNESS)
def test_lines_of_one_figure_stay_apart_for_the_colour_blind(kind: str) -> None:
    seen = {}
    for colour in (plotting.BLUE, plotting.ORANGE, plotting.GREEN):  # the three that share an axes
        linear = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)])
        mixed = np.clip(np.array(COLOUR_BLINDNESS[kind]) @ linear, 0, 1)
        seen[colour] = _lab(mixed)
    for a, b in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[a] - seen[b]) > 12, f"{a} and {b} look alike with {kind}"


def _lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.maximum(to_xyz @ linear / [0.9505, 1.0, 1.089], 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_block_table_hatches_exactly_the_unused_slots() -> None:
    figure = FIGURES["block_table"]()
    hatched = [patch for patch in figure.axes[0].patches if patch.get_hatch()]
    # 1 of A and 2 of B are allocated and empty; each is drawn in the strip and in the pool.
    assert len(hatched) == 2 * (1 + 2)
    labels = {text.get_text() for text in visible_texts(figure)}
    assert {"table[0] = 0", "table[1] = 2", "table[2] = 4", "block 2: A", "block 11: free"} <= labels


def test_block_table_refuses_a_table_that_is_too_short() -> None:
    with pytest.raises(ValueError, match="9 tokens do not fit the table"):
        plotting.block_table_figure({"A": [0, 2]}, {"A": 9}, 12, 4)


def test_memory_figure_states_the_waste_of_the_whole_run() -> None:
    labels = [text.get_text() for text in FIGURES["memory"]().axes[0].get_legend().get_texts()]
    assert labels == ["reserved by slabs (68% wasted)", "allocated in blocks (20% wasted)", "used by tokens"]


def test_occupancy_and_work_figures_state_their_sums() -> None:
    titles = [axes.get_title(loc="left") for axes in FIGURES["occupancy"]().axes]
    assert titles == [
        "static: 3 steps, 4.7 of 8 places busy on average",
        "continuous: 2 steps, 7.0 of 8 places busy on average",
    ]
    assert FIGURES["work"]().axes[0].get_title(loc="left") == "930 token passes without a cache, 56 with one"


def test_timeline_splits_a_request_that_was_interrupted() -> None:
    assert plotting._spans([True, False, True, True]) == [(1, 1), (3, 2)]
    assert "preempted" in FIGURES["timeline"]().axes[0].get_title(loc="left")


def test_figures_leave_the_readers_own_settings_alone() -> None:
    before = dict(matplotlib.rcParams)
    for draw in FIGURES.values():
        draw()
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context():
        plotting.apply_plot_style()
        assert matplotlib.rcParams["axes.facecolor"] == plotting.PAPER
