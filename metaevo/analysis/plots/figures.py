"""Figures of reports: each a PNG, inline SVGs for light and dark pages, and a CSV."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaevo.errors import printable
from metaevo.storage._files import replace_file

__all__ = [
    "COLORS",
    "INK",
    "Drawing",
    "band",
    "color",
    "figure",
    "in_frames",
    "inline",
    "legend_above",
    "page",
    "plain",
    "png",
    "style",
    "write_csv",
]

COLORS = {"solution": "#0072B2", "hand-made": "#D55E00", "start": "#8a8a8a"}
# Drawn in this color, and shown in the page's own, dark or light. The template gives
# the others, by name, their dark shades.
INK = "#123456"
PANEL = 4.6, 3.4  # inches
LONGEST = 48  # characters of a title or a label
STYLE: Any = {
    **dict.fromkeys(
        (
            "axes.edgecolor",
            "axes.labelcolor",
            "text.color",
            "xtick.color",
            "ytick.color",
        ),
        INK,
    ),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
}
# For candidates without a color of their own. Those above have lighter ones on a dark
# page; none of these comes near, and each can be seen on white and on black.
OTHERS = ("#009E73", "#CC79A7", "#9A8700", "#9467BD", "#8C6D46", "#2CA0A0")


def color(name: str, i: int) -> str:
    """The color of the candidate `name`, the i-th."""
    return COLORS.get(name, OTHERS[i % len(OTHERS)])


class Drawing(NamedTuple):
    """A figure that is not drawn yet: arguments of `figure` after the folder.

    Attributes:
        name: of its files.
        title: on the page.
        draw: draws it, given matplotlib axes, one a panel.
        table: header and rows of its CSV.
        caption: on the page.
        num_panels: at least 1.
        animation: name of a GIF's file and its bytes, shown below; None for none.
    """

    name: str
    title: str
    draw: Callable
    table: tuple[list[str], Iterable]
    caption: str
    num_panels: int = 1
    animation: tuple[str, bytes] | None = None


def figure(folder: Path, *drawing: Any) -> dict[str, Any]:
    """Draw a figure as PNG file and inline SVGs, and write its CSV.

    Args:
        folder: where the files are written.
        *drawing: the attributes of a `Drawing`.

    Returns:
        what a page shows: `name`, `title`, `svgs`, `caption`, and `image`, a `data:`
        address, if there is an animation.
    """
    name, title, draw, table, caption, num_panels, animation = Drawing(*drawing)
    with style():
        panels = _panels(draw, num_panels)
        # Layout is half of the work, so one panel is drawn once for both.
        whole = panels[0].figure if num_panels == 1 else _grid(draw, num_panels)
        replace_file(folder / f"{name}.png", _png(whole))
        svgs = _svgs(panels, name, title)
    write_csv(folder / f"{name}.csv", *table)
    shown = {"name": name, "title": title, "svgs": svgs, "caption": caption}
    if animation is not None:
        file, data = animation
        replace_file(folder / file, data)
        shown["image"] = f"data:image/gif;base64,{base64.b64encode(data).decode()}"
    return shown


def png(draw: Callable, num_panels: int, dpi: int = 150) -> bytes:
    """All panels, at most three in a row; four are two by two."""
    with style():
        return _png(_grid(draw, num_panels), dpi)


def _png(figure: Any, dpi: int = 150) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def inline(drawing: Drawing, of: str) -> dict[str, Any]:
    """Draw a figure for a page alone: `title`, `svgs` and `caption`.

    Args:
        drawing: the figure.
        of: the run; those of another one on the page have other ids.
    """
    name, title = f"{of}/{drawing.name}", drawing.title
    with style():
        svgs = _svgs(_panels(drawing.draw, drawing.num_panels), name, title)
    return {"title": drawing.title, "svgs": svgs, "caption": drawing.caption}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in our style, whatever a `matplotlibrc` says, without warnings of glyphs."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def _grid(draw: Callable, num_panels: int) -> Any:
    """A figure of all panels, at most three in a row; four are two by two."""
    # Not pyplot: no window system, no global state.
    from matplotlib.figure import Figure

    columns = 2 if num_panels == 4 else min(num_panels, 3)
    rows = -(-num_panels // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows))
    panels = np.ravel(figure.subplots(rows, columns))
    draw(*panels[:num_panels])
    for panel in panels[num_panels:]:
        panel.remove()
    _lay_out(figure)
    return figure


class _Panel(NamedTuple):
    figure: Any  # matplotlib's, of this panel alone
    spoken: str  # what it shows, in words


def _panels(draw: Callable, num_panels: int) -> list[_Panel]:
    """A figure per panel, so that they find their places on a page of any width."""
    from matplotlib.figure import Figure

    figures = [Figure(figsize=PANEL) for _ in range(num_panels)]
    draw(*(figure.subplots() for figure in figures))
    panels = [_Panel(figure, _spoken(figure.axes[0])) for figure in figures]
    for figure in figures:
        _lay_out(figure)
    return panels


def _svgs(panels: Sequence[_Panel], name: str, title: str) -> list[str]:
    """Panels as inline SVGs."""
    return [
        _svg(panel.figure, f"{name}{i}", f"{title}{panel.spoken}")
        for i, panel in enumerate(panels)
    ]


def _spoken(panel: Any) -> str:
    """What a panel shows, in words, for readers who do not see it."""
    shown = panel.get_title() or panel.get_ylabel()
    labels = [x for x in panel.get_legend_handles_labels()[1] if x]
    parts = [f": {shown}" if shown else "", f" against {panel.get_xlabel()}"]
    return "".join(parts) + (f" ({', '.join(labels)})" if labels else "")


def _svg(figure: Any, salt: str, title: str) -> str:
    """Lines and text in the page's colors; another salt gives other ids.

    Args:
        title: what it shows, which a browser tells who points at it or hears the page.
    """
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        metadata = {"Date": None, "Title": "".join(filter(str.isprintable, title))}
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = svg.replace("<svg", '<svg role="img"', 1)
    for name, color in COLORS.items():
        svg = svg.replace(color.lower(), f"var(--{name})")
    # Fluid: as wide as its place, as high as that makes it.
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    return re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)


def _lay_out(figure: Any) -> None:
    """Find room for labels, once, with titles, labels and legends as plain text.

    They hold names of metrics and slots, which may be anything: `$` is no formula, and
    a character that the font lacks is a box.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    for panel in figure.axes:
        texts = [panel.title, panel.xaxis.label, panel.yaxis.label, *panel.texts]
        for line in panel.lines:
            if len(line.get_xdata()) == 1 and line.get_marker() == "None":
                line.set_marker("o")  # a line of one point is invisible
        legend = panel.get_legend()
        for text in texts + (legend.get_texts() if legend else []):
            text.set_text(plain(text.get_text()))
            text.set_parse_math(False)
    ConstrainedLayoutEngine().execute(figure)


def plain(name: str) -> str:
    """A name as one short line of printable characters.

    >>> len(plain("a" * 60)), plain("two" + chr(10) + "lines")
    (48, 'two lines')
    """
    line = "".join(c if c.isprintable() else " " for c in name)
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def page(template: str, **values: Any) -> str:
    """A template of `analysis/templates` as an HTML page.

    Values are escaped, and so are control characters and direction marks.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("metaevo.analysis"), autoescape=True
    )
    return printable(environment.get_template(template).render(**values), "\n\t")


def band(panel: Any, x: Any, y: Any, ends: Any, color: str, label: str) -> None:
    """Draw a curve, and shade what lies between two others.

    Args:
        panel: matplotlib axes.
        x, y: [n].
        ends: the lower and the upper one, [2, n].
    """
    panel.plot(x, y, color=color, label=label)
    panel.fill_between(x, *ends, color=color, alpha=0.2)


def in_frames(panel: Any, label: str) -> None:
    """Name the axis of frames, and write 100,000 as 100k."""
    from matplotlib.ticker import EngFormatter

    panel.set_xlabel(label)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))


def legend_above(axes: Any, num_columns: int) -> None:
    """Draw the legend above the panel, where it hides no curve; none without labels."""
    if not axes.get_legend_handles_labels()[0]:
        return
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=num_columns,
        columnspacing=1.2,
        handlelength=1.4,
    )


def write_csv(path: Path, header: list[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table, which replaces the file at `path`."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    replace_file(path, text.getvalue().encode())
