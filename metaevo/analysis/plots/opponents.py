"""Figures of two players who learn from each other, over the segments of a lifetime.

They are drawn for loops whose training metrics hold `opponent_return`, and of each
`shaper/SITUATION` and `opponent/SITUATION` the probability of the first move.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.plots import figures
from metaevo.storage._files import replace_file

__all__ = ["animated", "drawn", "payoffs", "probabilities"]

OWN, OTHER = figures.COLORS["solution"], figures.COLORS["hand-made"]
PLAYERS = ("shaper", "opponent")
MILLISECONDS = 100  # for which a frame is shown


def drawn(
    folder: Path, held_out: Mapping[str, HeldOut], task: int, place: str
) -> list[dict[str, Any]]:
    """All figures of a task; none if its loop has no second player."""
    metrics = {name: runs.train[task] for name, runs in held_out.items()}
    solution = metrics.get("solution", {})
    if "opponent_return" not in solution:
        return []
    suffix = f"_task{task}" if task else ""
    where = f", {place}" if place else ""
    found = [payoffs(folder, metrics, suffix, where)]
    named = {x.partition("/")[2] for x in solution if x.startswith("shaper/")}
    situations = sorted(named, key=lambda x: (x != "start", x))
    if situations:
        found.append(probabilities(folder, solution, situations, suffix, where))
        found[-1]["image"] = animated(folder, solution, situations, suffix)
    return found


def payoffs(
    folder: Path, metrics: Mapping[str, Mapping], suffix: str, where: str
) -> dict[str, Any]:
    """Mean payoff of both players, beside the solution's those of hand-made ones."""
    rows = []
    for name, x in metrics.items():
        own, other = x["return"].mean(0), x["opponent_return"].mean(0)
        rows += [[name, k, float(own[k]), float(other[k])] for k in range(len(own))]

    def draw(*panels):
        for name, panel in zip(("solution", "hand-made"), panels, strict=True):
            x = metrics[name]
            for label, metric, color in (
                ("first player", "return", OWN),
                ("opponent", "opponent_return", OTHER),
            ):
                seeds = x[metric]
                steps = np.arange(1, seeds.shape[1] + 1)
                low, high = np.quantile(seeds, (0.05, 0.95), 0)
                panel.plot(steps, seeds.mean(0), color=color, label=label)
                panel.fill_between(steps, low, high, color=color, alpha=0.2)
            panel.set(xlabel="segment of the lifetime", ylabel="mean payoff")
            panel.set_title(name, pad=22)
            figures.legend_above(panel, 2)
        low = min(panel.get_ylim()[0] for panel in panels)
        high = max(panel.get_ylim()[1] for panel in panels)
        for panel in panels:
            panel.set_ylim(low, high)

    return figures.figure(
        folder,
        f"payoffs{suffix}",
        f"Payoffs of both players{where}",
        draw,
        (["name", "segment", "first_player", "opponent"], rows),
        "Mean over held-out seeds, with the range of the middle 90 % of them. Left the "
        "solution as first player, right the hand-made one, against the same opponent.",
        2,
    )


def probabilities(
    folder: Path, solution: Mapping, situations: Sequence[str], suffix: str, where: str
) -> dict[str, Any]:
    """Probability of the first move in each situation, of both players."""
    means = {
        (player, name): solution[f"{player}/{name}"].mean(0)
        for player in PLAYERS
        for name in situations
    }
    num = len(next(iter(means.values())))
    rows = [
        [player, name, k, float(x[k])]
        for (player, name), x in means.items()
        for k in range(num)
    ]

    def draw(*panels):
        for player, panel in zip(PLAYERS, panels, strict=True):
            for i, name in enumerate(situations):
                panel.plot(
                    np.arange(1, num + 1),
                    means[player, name],
                    color=_color(i),
                    label=name,
                )
            panel.set(
                xlabel="segment of the lifetime",
                ylabel="probability of the first move",
                ylim=(-0.02, 1.02),
            )
            panel.set_title(player, pad=22)
            figures.legend_above(panel, 5)

    return figures.figure(
        folder,
        f"probabilities{suffix}",
        f"Policies of both players{where}",
        draw,
        (["player", "situation", "segment", "probability"], rows),
        "The probability of the first move at the start and after each outcome of the "
        "last round, the own move first. Mean over held-out seeds.",
        2,
    )


def _color(i: int) -> str:
    return (figures.INK, *figures.OTHERS)[i % (1 + len(figures.OTHERS))]


# --- the animated picture -------------------------------------------------------------

WIDTH, HEIGHT, SMOOTH = 560, 340, 2  # pixels; drawn SMOOTH times as large
PAPER, DARK, LIGHT = "#ffffff", "#1a1a1a", "#d8d8d8"


def animated(
    folder: Path, solution: Mapping, situations: Sequence[str], suffix: str
) -> str:
    """Write `policies.gif`: both policies as bars, and payoffs up to each segment.

    Returns:
        the picture as a `data:` address.
    """
    moves = {
        player: np.stack([solution[f"{player}/{x}"].mean(0) for x in situations])
        for player in PLAYERS
    }
    paid = {
        "shaper": solution["return"].mean(0),
        "opponent": solution["opponent_return"].mean(0),
    }
    everything = np.concatenate(list(paid.values()))
    span = float(everything.min()), float(everything.max())
    num = len(paid["shaper"])
    frames = [_frame(moves, paid, span, situations, k) for k in range(num)]
    first, *rest = [
        frame.quantize(32) for frame in [*frames, *[frames[-1]] * (num // 5)]
    ]
    data = io.BytesIO()
    options = {"append_images": rest, "duration": MILLISECONDS, "loop": 0}
    first.save(data, "gif", save_all=True, **options)
    replace_file(folder / f"policies{suffix}.gif", data.getvalue())
    return f"data:image/gif;base64,{base64.b64encode(data.getvalue()).decode()}"


def _frame(
    moves: Mapping[str, np.ndarray],
    paid: Mapping[str, np.ndarray],
    span: tuple[float, float],
    situations: Sequence[str],
    k: int,
) -> Any:
    """The picture of segment k."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH * SMOOTH, HEIGHT * SMOOTH), PAPER)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(12 * SMOOTH)

    def text(x: float, y: float, words: str, color: str, anchor: str = "mm") -> None:
        draw.text((x * SMOOTH, y * SMOOTH), words, color, font, anchor)

    def box(x: float, y: float, right: float, bottom: float, color: str) -> None:
        draw.rectangle([v * SMOOTH for v in (x, y, right, bottom)], color)

    num = len(paid["shaper"])
    half, top, bottom = WIDTH / 2, 44, 150
    for left, player, color in ((0, "shaper", OWN), (half, "opponent", OTHER)):
        now = f"{player}: plays the first move with probability"
        text(left + half / 2, 16, now, color)
        for i, name in enumerate(situations):
            middle = left + half * (i + 1) / (len(situations) + 1)
            high = bottom - (bottom - top) * float(moves[player][i, k])
            box(middle - 15, top, middle + 15, bottom, LIGHT)
            box(middle - 15, high, middle + 15, bottom, color)
            text(middle, bottom + 11, name, DARK)
    left, right, top, bottom = 60, WIDTH - 100, 190, HEIGHT - 34
    low, high = span
    draw.line([v * SMOOTH for v in (left, bottom, right, bottom)], LIGHT, SMOOTH)
    draw.line([v * SMOOTH for v in (left, top, left, bottom)], LIGHT, SMOOTH)
    text(left - 6, top, f"{high:.2f}", DARK, "rm")
    text(left - 6, bottom, f"{low:.2f}", DARK, "rm")
    text((left + right) / 2, HEIGHT - 14, f"payoff, segment {k + 1} of {num}", DARK)

    def place(t: int, payoff: float) -> tuple[float, float]:
        x = left + (right - left) * (t + 1) / num
        y = bottom - (bottom - top) * (payoff - low) / max(high - low, 1e-6)
        return x * SMOOTH, y * SMOOTH

    for player, color in (("opponent", OTHER), ("shaper", OWN)):
        points = [place(t, float(paid[player][t])) for t in range(k + 1)]
        if len(points) > 1:
            draw.line(points, color, 3 * SMOOTH)
        x, y = (v / SMOOTH for v in points[-1])
        text(x + 6, y, f"{float(paid[player][k]):.2f}", color, "lm")
    return image.reduce(SMOOTH)
