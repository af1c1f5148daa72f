"""Figures of two players who learn from each other, over the segments of a lifetime.

They are drawn for loops whose training metrics hold `opponent_return`, and of each
`shaper/SITUATION` and `opponent/SITUATION` the probability of the first move.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.plots import figures
from metaevo.analysis.plots.figures import Drawing

__all__ = ["drawings"]

# Player -> its metric of payoffs, and its color.
PLAYERS = {
    "shaper": ("return", figures.COLORS["solution"]),
    "opponent": ("opponent_return", figures.COLORS["hand-made"]),
}
MILLISECONDS = 100  # for which a picture of the animation is shown
SEGMENT = "segment of the lifetime"


def drawings(held_out: Mapping[str, HeldOut], task: int, place: str) -> list[Drawing]:
    """All figures of a task; none if its loop has no second player."""
    metrics = {name: runs.train[task] for name, runs in held_out.items()}
    solution = metrics.get("solution", {})
    if "opponent_return" not in solution:
        return []
    suffix = f"_task{task}" if task else ""
    where = f", {place}" if place else ""
    drawn = [_payoffs(metrics, suffix, where)]
    named = {x.partition("/")[2] for x in solution if x.startswith("shaper/")}
    situations = sorted(named, key=lambda x: (x != "start", x))
    if situations:
        drawn.append(_probabilities(solution, situations, suffix, where))
    return drawn


def _payoffs(metrics: Mapping[str, Mapping], suffix: str, where: str) -> Drawing:
    """Mean payoff of both players, beside the solution's those of hand-made ones."""
    rows = []
    for name, x in metrics.items():
        both = np.stack([x[metric].mean(0) for metric, _ in PLAYERS.values()], 1)
        rows += [[name, k, *at] for k, at in enumerate(both.tolist())]

    def draw(*panels):
        for name, panel in zip(("solution", "hand-made"), panels, strict=True):
            for metric, color in PLAYERS.values():
                seeds = metrics[name][metric]
                label = "first player" if metric == "return" else "opponent"
                steps = np.arange(1, seeds.shape[1] + 1)
                ends = np.quantile(seeds, (0.05, 0.95), 0)
                figures.band(panel, steps, seeds.mean(0), ends, color, label)
            panel.set(xlabel=SEGMENT, ylabel="mean payoff")
            panel.set_title(name, pad=22)
            figures.legend_above(panel, 2)
        limits = np.array([panel.get_ylim() for panel in panels])
        for panel in panels:
            panel.set_ylim(limits.min(), limits.max())

    return Drawing(
        f"payoffs{suffix}",
        f"Payoffs of both players{where}",
        draw,
        (["name", "segment", "first_player", "opponent"], rows),
        "Mean over held-out seeds, with the range of the middle 90 % of them. Left the "
        "solution as first player, right the hand-made one, against the same opponent.",
        2,
    )


def _probabilities(
    solution: Mapping, situations: Sequence[str], suffix: str, where: str
) -> Drawing:
    """Probability of the first move in each situation, of both players."""
    means = {
        player: {name: solution[f"{player}/{name}"].mean(0) for name in situations}
        for player in PLAYERS
    }
    rows = [
        [player, name, k, float(x)]
        for player, of_player in means.items()
        for name, curve in of_player.items()
        for k, x in enumerate(curve)
    ]
    colors = figures.INK, *figures.OTHERS

    def draw(*panels):
        for (player, of_player), panel in zip(means.items(), panels, strict=True):
            for i, (name, y) in enumerate(of_player.items()):
                color = colors[i % len(colors)]
                panel.plot(np.arange(1, len(y) + 1), y, color=color, label=name)
            panel.set(xlabel=SEGMENT, ylabel="probability of the first move")
            panel.set_ylim(-0.02, 1.02)
            panel.set_title(player, pad=22)
            figures.legend_above(panel, 5)

    return Drawing(
        f"probabilities{suffix}",
        f"Policies of both players{where}",
        draw,
        (["player", "situation", "segment", "probability"], rows),
        "The probability of the first move at the start and after each outcome of the "
        "last round, the own move first. Mean over held-out seeds.",
        2,
        (f"policies{suffix}.gif", _animation(means, solution)),
    )


def _animation(means: Mapping[str, Mapping[str, Any]], solution: Mapping) -> bytes:
    """A GIF: both policies as bars, and payoffs up to each segment.

    Args:
        means: player -> situation -> probability of the first move [segments].
        solution: the metrics of its runs.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    pictures = []
    with figures.style():
        figure = Figure(figsize=(5.6, 3.8), dpi=100, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        panels = figure.subplot_mosaic([[*PLAYERS], ["payoff", "payoff"]])
        bars, lines = {}, {}
        for player, (metric, color) in PLAYERS.items():
            bars[player] = panels[player].bar([*means[player]], 1.0, color=color)
            panels[player].set(ylim=(0, 1), title=player)
            payoff = solution[metric].mean(0)
            (lines[player],) = panels["payoff"].plot(
                np.arange(1, len(payoff) + 1), payoff, color=color
            )
        panels["shaper"].set_ylabel("first move")
        panels["payoff"].set(xlabel=SEGMENT, ylabel="payoff")
        canvas.draw()
        figure.set_layout_engine("none")  # the panels stay where they are
        curves = {player: line.get_data() for player, line in lines.items()}
        for k in range(len(curves["shaper"][0])):
            for player, (x, y) in curves.items():
                lines[player].set_data(x[: k + 1], y[: k + 1])
                probabilities = means[player].values()
                for bar, moves in zip(bars[player], probabilities, strict=True):
                    bar.set_height(moves[k])
            canvas.draw()
            picture = Image.fromarray(np.asarray(canvas.buffer_rgba()))
            pictures.append(picture.convert("RGB").quantize(64))
    pictures += pictures[-1:] * (len(pictures) // 5)
    data = io.BytesIO()
    options = {"append_images": pictures[1:], "duration": MILLISECONDS, "loop": 0}
    pictures[0].save(data, "gif", save_all=True, **options)
    return data.getvalue()
