"""Takes pictures of a run's report in a real browser, light and dark, wide and narrow.

    python scripts/screenshot.py RUN [FOLDER]

writes FOLDER/report-{light,dark}-{1400,400}.png (FOLDER: RUN/report). The picture of
docs/report.md is `--docs RUN`: the top of the page, to docs/images/report.png. Chromium
or Chrome has to be on the PATH.
"""

import shutil
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


def main(arguments: list[str]) -> None:
    docs = "--docs" in arguments
    match [argument for argument in arguments if argument != "--docs"]:
        case [run, *folder] if len(folder) < 2:
            page = Path(run) / "report" / "index.html"
        case _:
            sys.exit(__doc__)
    if not page.is_file():
        sys.exit(f"error: {page} is not there; make it with: metaevo report {run}")
    if docs:
        shoot(page, ROOT / "docs" / "images" / "report.png", 1400, 930, False)
        return
    into = Path(folder[0] if folder else page.parent)
    for width, height in ((1400, 2600), (400, 4600)):
        for theme in ("light", "dark"):
            name = f"report-{theme}-{width}.png"
            shoot(page, into / name, width, height, theme == "dark")


if __name__ == "__main__":
    main(sys.argv[1:])
