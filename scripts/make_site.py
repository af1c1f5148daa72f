"""Write the pages of the site and its configuration, from which Zensical builds it.

    python scripts/make_site.py        # build/docs, build/mkdocs.yml; `make docs`

`docs/` is Markdown that GitHub shows. The site also has pages that are made from code:
the API, the command line, results of the zoo from their cards, and an index of the
log by date. Links to files of the repository lead to their page on the site; where a
file has none, its name is left and the link is taken away.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import inspect
import os
import pkgutil
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OURS = ("metaevo", "metaevo.envs", "metaevo.learned", "metaevo.rl")
PACKAGES = (*OURS, "inner_loops", "strategies")
"""Those whose modules are public; the last two have no code of their own."""

_CODE = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_DATE = re.compile(r"\b\d{1,2}\s[A-Z][a-z]+\s20\d\d\b|\b20\d\d-\d\d-\d\d\b")


def public_modules() -> list[str]:
    """Modules that a search or a loop may import."""
    found = [*OURS]
    for package in PACKAGES:
        paths = importlib.import_module(package).__path__
        names = [x.name for x in pkgutil.iter_modules(paths) if not x.ispkg]
        found += [f"{package}.{name}" for name in names if not name.startswith("_")]
    return sorted(found)


def title(text: str) -> str:
    """Return the first heading of a page, as it stands in a list of pages."""
    heading = text.split("\n", 1)[0].removeprefix("# ")
    return re.sub(r" \(`.*\)$|[`\\]", "", heading)


# --- pages that are files -------------------------------------------------------------


def written() -> dict[str, Path]:
    """The site's pages that are files of the repository."""
    pages = {path.relative_to(DOCS).as_posix(): path for path in DOCS.rglob("*.md")}
    for name in ("CONTRIBUTING", "CHANGELOG"):
        pages[f"{name.lower()}.md"] = ROOT / f"{name}.md"
    for path in sorted(ROOT.glob("experiments/*/README.md")):
        pages[f"log/experiments/{path.parent.name}.md"] = path
    for path in sorted(ROOT.glob("metaevo/zoo/*/README.md")):
        pages[f"zoo/{path.parent.name}.md"] = path
    return pages


# --- pages that are made --------------------------------------------------------------


def made(files: Mapping[str, Path]) -> dict[str, str]:
    """The pages that have no file, by their place on the site."""
    from metaevo.learned import operations

    pages = {"api/metaevo.md": _names(), "cli.md": _command_line()}
    for module in public_modules():
        if _page_of(module) not in {*files, *pages}:
            pages[_page_of(module)] = f"# `{module}`\n\n::: {module}\n"
    for operation in sorted({one.title for one in operations.everything().values()}):
        if f"learned/{operation}.md" not in files:
            about = f"# `{operation}`\n\n{_interface(f'metaevo.{operation}')}"
            pages[f"learned/{operation}.md"] = about
    return pages


def _page_of(module: str) -> str:
    package, _, name = module.partition(".")
    return f"algorithms/{name}.md" if package == "inner_loops" else f"api/{module}.md"


def _interface(name: str) -> str:
    """Return the documentation of an object that its module's page also has."""
    return f"::: {name}\n    options: {{skip_local_inventory: true}}\n"


def _names() -> str:
    """Return the page of the names of `metaevo` itself."""
    import metaevo

    parts = ["# `metaevo`", inspect.getdoc(metaevo) or ""]
    for name in metaevo.__all__:
        thing = getattr(metaevo, name)
        home = getattr(thing, "__module__", None)
        home = thing.__name__ if home is None else f"{home}.{thing.__qualname__}"
        parts += [f"## metaevo.{name} {{ #metaevo.{name} }}", _interface(home)]
    return "\n\n".join(parts) + "\n"


def _command_line() -> str:
    """Return the help of all commands."""
    from metaevo.cli import commands

    parts = ["# Command line", f"```text\n{commands.usage()}\n```"]
    for name in commands.COMMANDS:
        parts += [f"## {name}", f"```text\n{commands.command_help(name)}\n```"]
    return "\n\n".join(parts) + "\n"


# --- what is added to pages that are files --------------------------------------------


def added(page: str, text: str, where: Mapping[Path, str]) -> str:
    """Return what the site shows below, or above, the text of a file."""
    folder, _, name = page.removesuffix(".md").rpartition("/")
    if page == "config.md":
        return f"{text}\n{_interface('metaevo.config.RunConfig')}"
    if page == "log.md":
        return text + _log()
    if folder == "zoo":
        return _result(name, text, where)
    if folder == "algorithms":
        return f"{text}\n## Interface\n\n::: inner_loops.{name}\n"
    if folder == "learned" and "." in name:
        return f"{text}\n## Interface\n\n{_interface(f'metaevo.{name}')}"
    return text


def _day(text: str) -> datetime.date:
    """Return the date that is written as 2026-05-01 or 1 May 2026."""
    form = "%Y-%m-%d" if "-" in text else "%d %B %Y"
    return datetime.datetime.strptime(" ".join(text.split()), form).date()


def _log() -> str:
    """Return a table of the pages of the research log, the newest first."""
    rows = []
    for page, path in written().items():
        if page.startswith("log/"):
            text = path.read_text(encoding="utf-8")
            days = map(_day, _DATE.findall(text))
            rows.append((max(days, default=datetime.date.min), page, title(text)))
    rows.sort(key=lambda row: (-row[0].toordinal(), row[1]))
    lines = [f"| {day} | [{name}]({page}) |\n" for day, page, name in rows]
    return "".join(["\n| last entry | page |\n|---|---|\n", *lines])


def _result(name: str, card: str, where: Mapping[Path, str]) -> str:
    """Return the page of a result: its figures, its card, and its files."""
    gallery = DOCS / "gallery.md"
    sections = re.split(r"^## ", gallery.read_text(encoding="utf-8"), flags=re.M)[1:]
    shown = next(x.split("\n", 1)[1] for x in sections if f"`zoo:{name}`" in x)
    figures = relinked(shown, gallery, f"zoo/{name}.md", where).strip()
    heading, evidence = card.split("\n", 1)
    names = {x.name for x in (ROOT / "metaevo/zoo" / name).iterdir()} | {*EXPORTED}
    links = [f"* [`{x}`](files/{name}/{x})\n" for x in sorted(names - {"README.md"})]
    files = "".join(["## Files\n\n", *links])
    return f"{heading}\n\n{figures}\n\n{evidence.strip()}\n\n{files}"


EXPORTED = {"evolved_torch.py": "torch", "evolved_numpy.py": "numpy"}


def write_files(docs: Path) -> None:
    """Copy pictures, the zoo's artifacts, and what `metaevo export` makes of them."""
    from metaevo.cli import commands

    shutil.copytree(DOCS / "images", docs / "images")
    for card in ROOT.glob("metaevo/zoo/*/README.md"):
        name = card.parent.name
        folder = docs / "zoo" / "files" / name
        shutil.copytree(card.parent, folder, ignore=shutil.ignore_patterns("*.md"))
        for file, to in EXPORTED.items():
            with contextlib.redirect_stdout(None):
                arguments = [f"zoo:{name}", f"to={to}", f"out={folder / file}"]
                commands.execute("export", arguments)


# --- links ----------------------------------------------------------------------------


def relinked(text: str, file: Path, page: str, places: Mapping[Path, str]) -> str:
    """Let the links of a file lead to pages of the site.

    Args:
        places: the place of each file that is on the site.
    """
    here = os.path.dirname(page) or "."

    def moved(found: re.Match) -> str:
        image, shown, target = found.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return found[0]
        place = places.get((file.parent / path).resolve())
        if place is None:
            return shown
        link = os.path.relpath(place, here) + (f"#{anchor}" if anchor else "")
        return f"{image}[{shown}]({link})"

    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts)


def places(files: Mapping[str, Path]) -> dict[Path, str]:
    """The place on the site of each file, pictures and modules included."""
    found = {path: f"images/{path.name}" for path in (DOCS / "images").iterdir()}
    found |= {path: page for page, path in files.items()}
    for module in public_modules():
        path = ROOT / f"{module.replace('.', '/')}.py"
        found[path if path.exists() else path.with_suffix("")] = _page_of(module)
    return {ROOT / "metaevo/zoo": "gallery.md", ROOT / "README.md": "index.md"} | found


# --- the whole ------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """The text of each page of the site, by its place."""
    files = written()
    where = places(files)
    found = made(files)
    for page, path in files.items():
        text = relinked(path.read_text(encoding="utf-8"), path, page, where)
        found[page] = added(
            page, re.sub("```console (test|own)", "```console", text), where
        )
    return found


def navigation(entries: list, texts: Mapping[str, str]) -> Iterator:
    """Replace each `folder/` of mkdocs.yml by the pages in it, and name them."""
    for entry in entries:
        if isinstance(entry, dict):
            ((name, of),) = entry.items()
            yield {name: [*navigation(of, texts)] if isinstance(of, list) else of}
        elif entry.endswith("/"):
            inside = {x for x in texts if os.path.dirname(x) == entry[:-1]}
            for page in sorted(inside - set(pages_of(entries))):
                yield {title(texts[page]): page}
        else:
            yield entry


def pages_of(entries: Iterable) -> Iterator[str]:
    """Yield the pages of a navigation in its order."""
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from pages_of(value) if isinstance(value, list) else [value]


def main() -> None:
    texts = pages()
    docs = ROOT / "build" / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    write_files(docs)
    for page, text in texts.items():
        path = docs / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    config["nav"] = list(navigation(config["nav"], texts))
    text = yaml.safe_dump(config, sort_keys=False).replace("$ROOT", str(ROOT))
    (ROOT / "build" / "mkdocs.yml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
