"""Pictures of environment states: uint8 [height, width, 3] frames, with Pillow.

`classic` draws the classic control tasks from their state, `grid` whatever is a board
of cells, `board` games with stones. Suites choose; see `metaevo.envs.gymnax`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

WIDTH, HEIGHT, SMOOTH = 480, 320, 2  # pixels; drawn SMOOTH times as large
PAPER, INK, BLUE, ORANGE, GREY = "#ffffff", "#1a1a1a", "#0072b2", "#d55e00", "#b0b0b0"
GREEN = "#009e73"
# Colors of a grid's channels on black: Okabe & Ito's, safe for the color-blind.
_CHANNELS = (
    (0, 158, 115),
    (240, 228, 66),
    (213, 94, 0),
    (86, 180, 233),
    (204, 121, 167),
    (230, 159, 0),
    (0, 114, 178),
    (255, 255, 255),
    (150, 150, 150),
    (130, 220, 130),
)


def classic(name: str, state: Any, params: Any) -> np.ndarray:
    """A frame of the classic control task `name`, one of `CLASSIC`.

    Args:
        state: with gymnax's fields: `x`, `theta`; `joint_angle1`, ...; `position`.
        params: the task's limits, such as `goal_position`.
    """
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (WIDTH * SMOOTH, HEIGHT * SMOOTH), PAPER)
    draw = ImageDraw.Draw(image)

    def line(points: Sequence, color: str, width: float = 2):
        draw.line([_pixel(p) for p in points], color, round(width * SMOOTH), "curve")

    def disc(center: tuple[float, float], radius: float, color: str):
        draw.circle(_pixel(center), radius * SMOOTH, color)

    CLASSIC[name](line, disc, state, params)
    return np.asarray(image.reduce(SMOOTH))


def mark(frame: np.ndarray, place: tuple[float, float]) -> np.ndarray:
    """`frame` of a classic control task with a disc at `place`.

    Args:
        frame: uint8 [HEIGHT, WIDTH, 3].
        place: x in [-1.5, 1.5], y in [-1, 1], upwards.
    """
    from PIL import Image, ImageDraw

    image = Image.fromarray(frame)
    x, y = _pixel(place)
    ImageDraw.Draw(image).circle((x / SMOOTH, y / SMOOTH), 7, GREEN, INK)
    return np.asarray(image)


def _pixel(point: tuple[float, float]) -> tuple[float, float]:
    """From x in [-1.5, 1.5], y in [-1, 1], y upwards, to pixels of the large image."""
    x, y = point
    return (x / 3 + 0.5) * WIDTH * SMOOTH, (0.5 - y / 2) * HEIGHT * SMOOTH


def _cartpole(line, disc, state, params):
    x = 1.4 * float(state.x) / float(params.x_threshold)
    theta, y = float(state.theta), -0.5
    line([(-1.5, y), (1.5, y)], GREY)
    line([(x - 0.2, y), (x + 0.2, y)], INK, 30)
    line([(x, y), (x + 0.9 * math.sin(theta), y + 0.9 * math.cos(theta))], ORANGE, 9)
    disc((x, y), 6, BLUE)


def _acrobot(line, disc, state, params):
    del params
    a = float(state.joint_angle1)
    b = a + float(state.joint_angle2)
    elbow = 0.45 * math.sin(a), -0.45 * math.cos(a)
    tip = elbow[0] + 0.45 * math.sin(b), elbow[1] - 0.45 * math.cos(b)
    line([(-1.5, 0.45), (1.5, 0.45)], GREY)  # the height to reach
    line([(0, 0), elbow, tip], BLUE, 9)
    for joint in ((0, 0), elbow):
        disc(joint, 8, ORANGE)


def _pendulum(line, disc, state, params):
    del params
    theta = float(state.theta)  # 0 is upright, as in gymnasium
    line([(0, 0), (-0.8 * math.sin(theta), 0.8 * math.cos(theta))], ORANGE, 14)
    disc((0, 0), 8, INK)
    torque = float(np.ravel(state.last_u)[0])
    line([(0, -0.92), (0.4 * torque, -0.92)], BLUE, 6)


def _mountain_car(line, disc, state, params):
    low, high = float(params.min_position), float(params.max_position)

    def place(position):
        x = 2.8 * (position - low) / (high - low) - 1.4
        return x, 0.65 * math.sin(3 * position) - 0.1

    line([place(p) for p in np.linspace(low, high, 60)], GREY, 3)
    x, y = place(float(params.goal_position))
    line([(x, y), (x, y + 0.25)], INK)
    line([(x, y + 0.22), (x + 0.12, y + 0.18)], ORANGE, 8)
    x, y = place(float(state.position))
    disc((x, y + 0.06), 10, BLUE)


CLASSIC: dict[str, Callable] = {
    "CartPole-v1": _cartpole,
    "Acrobot-v1": _acrobot,
    "Pendulum-v1": _pendulum,
    "MountainCar-v0": _mountain_car,
    "MountainCarContinuous-v0": _mountain_car,
}


def grid(cells: np.ndarray) -> np.ndarray:
    """A frame of a board, at most WIDTH x HEIGHT pixels or one per cell.

    Args:
        cells: [rows, columns] or [rows, columns, channels], not 0 where there is
            something. Of several channels in one cell the last is seen.
    """
    cells = np.asarray(cells) != 0
    cells = cells[..., None] if cells.ndim == 2 else cells
    picture = np.zeros((*cells.shape[:2], 3), np.uint8)
    for i in range(cells.shape[2]):
        picture[cells[..., i]] = _CHANNELS[i % len(_CHANNELS)]
    size = max(min(HEIGHT // cells.shape[0], WIDTH // cells.shape[1]), 1)
    return picture.repeat(size, 0).repeat(size, 1)


def board(stones: np.ndarray, shares: np.ndarray | None = None) -> np.ndarray:
    """A frame of a board with stones of two players.

    Args:
        stones: [rows, columns] int; 0 is empty, 1 of the player who moves first, 2 of
            the other.
        shares: [rows, columns] in [0, 1], written in per cent where they are not 0;
            None: nothing is.
    """
    from PIL import Image, ImageDraw

    rows, columns = stones.shape
    cell = SMOOTH * max(min(HEIGHT // rows, WIDTH // columns), 8)
    image = Image.new("RGB", (columns * cell, rows * cell), PAPER)
    draw = ImageDraw.Draw(image)
    for i in range(1, rows):
        draw.line([(0, i * cell), (columns * cell, i * cell)], GREY, SMOOTH)
    for j in range(1, columns):
        draw.line([(j * cell, 0), (j * cell, rows * cell)], GREY, SMOOTH)
    for i, j in np.argwhere(stones):
        center = (j + 0.5) * cell, (i + 0.5) * cell
        draw.circle(center, 0.38 * cell, ORANGE if stones[i, j] == 1 else BLUE)
    for i, j in np.argwhere(shares) if shares is not None else ():
        assert shares is not None
        center = (j + 0.5) * cell, (i + 0.5) * cell
        text = f"{100 * shares[i, j]:.0f}"
        draw.text(center, text, INK, font_size=0.3 * cell, anchor="mm")
    return np.asarray(image.reduce(SMOOTH))
