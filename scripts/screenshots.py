"""Takes pictures of all that a user looks at, in a real browser and a real terminal.

    python scripts/screenshots.py FOLDER [RUN]

makes a small search in FOLDER/run, or takes the finished run RUN, and writes a PNG of
its report, of the pages of `metaevo watch` and `metaevo runs`, and of the site's home
if `make docs` has made one, each light and dark, 1400 and 400 pixels wide; and of a
terminal of 80 columns while the search goes on and at its end. The picture of
docs/report.md is `--docs RUN`: the top of the page, to docs/images/report.png. Chromium
or Chrome has to be on the PATH.
"""

import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
ROOT = Path(__file__).resolve().parent.parent
SEARCH = (
    *("ppo_value_loss", "num_generations=6", "population_size=4"),
    *("inner.total_timesteps=8192", "inner.num_segments=2"),
    *("run.held_out_seeds=3", "run.wandb=disabled"),
)
HEIGHTS = {1400: 2600, 400: 4600}
ERASED = "\x1b[2K"
UP = "\x1b[1A\x1b[2K"


def shoot(page: Path, picture: Path, width: int, height: int, dark: bool) -> None:
    """Write a PNG of the first `height` pixels of a local page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"error: none of {', '.join(BROWSERS)} is on the PATH")
    picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                *QUIET,
                f"--user-data-dir={profile}",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                f"--window-size={width},{height}",
                f"--screenshot={picture.resolve()}",
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    print(picture)


def everywhere(page: Path, folder: Path, name: str) -> None:
    """Take the four pictures of a page."""
    for width, height in HEIGHTS.items():
        for theme in ("light", "dark"):
            picture = folder / f"{name}-{theme}-{width}.png"
            shoot(page, picture, width, height, theme == "dark")


# --- terminals ------------------------------------------------------------------------


def in_terminal(*arguments: str) -> str:
    """Run metaevo in a terminal of 80 columns; return all that it wrote."""
    import fcntl
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    terminal = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "metaevo", *arguments]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=terminal)
    os.close(theirs)
    written = []
    try:
        while data := os.read(ours, 1 << 16):
            written.append(data)
    except OSError:  # the other end was closed
        pass
    if process.wait():
        sys.exit(b"".join(written).decode())
    return b"".join(written).decode()


def shoot_terminal(written: str, picture: Path) -> None:
    """Write a PNG of what a terminal of 80 columns shows."""
    from rich.console import Console
    from rich.text import Text

    with tempfile.TemporaryDirectory() as folder:
        console = Console(record=True, width=80, file=io.StringIO())
        # What is live is erased before something else is printed in its place.
        while (at := written.find(UP)) >= 0:
            line = written.rfind("\n", 0, written.rfind("\n", 0, at)) + 1
            written = written[:line] + written[at + len(UP) :]
        lines = [x.rpartition(ERASED)[2].strip("\r") for x in written.split("\n")]
        console.print(Text.from_ansi("\n".join(lines)))
        page = Path(folder) / "terminal.svg"
        console.save_svg(str(page), title="80 columns")
        shoot(page, picture, 1000, 1000, True)


# --- all ------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--docs", run]:
            page = Path(run) / "report" / "index.html"
            shoot(page, ROOT / "docs" / "images" / "report.png", 1000, 980, False)
            return
        case [into, *given] if len(given) < 2 and not into.startswith("-"):
            folder = Path(into)
        case _:
            sys.exit(__doc__)
    run = Path(given[0]) if given else folder / "run"
    if not given:
        written = in_terminal("run", *SEARCH, f"run.directory={run}")
        bars = [found.end() for found in re.finditer(r" left[^\r\n]*", written)]
        shoot_terminal(written[: bars[len(bars) // 2]], folder / "terminal-run.png")
        shoot_terminal(written, folder / "terminal-end.png")
    report = run / "report" / "index.html"
    if not report.is_file():
        sys.exit(f"error: {report} is not there; make it with: metaevo report {run}")
    watched = in_terminal("watch", str(run), f"page={folder / 'watch.html'}")
    shoot_terminal(watched, folder / "terminal-watch.png")
    in_terminal("runs", str(run), f"page={folder / 'runs.html'}")
    pages = {"report": report, "site": ROOT / "build" / "site" / "index.html"}
    pages |= {name: folder / f"{name}.html" for name in ("watch", "runs")}
    for name, page in pages.items():
        if page.is_file():
            everywhere(page, folder, name)


if __name__ == "__main__":
    main(sys.argv[1:])
