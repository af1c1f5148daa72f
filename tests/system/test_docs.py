"""The commands of the documentation work, and its links lead somewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pages import FENCE, LINK, commands, fits, words

ROOT = Path(__file__).parents[2]
README, INDEX = ROOT / "README.md", ROOT / "docs" / "index.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]


def nav():
    """The pages of the site, in its order."""
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]

    def pages(entries):
        for entry in entries:
            for page in entry.values():
                yield from pages(page) if isinstance(page, list) else [page]

    return [ROOT / "docs" / page for page in pages(listed)]


def test_dots_fit_anything_and_text_only_itself():
    assert fits(["a ... c", "...", "z"], "a b c\n1\n2\nz\n")
    assert fits(["a", "..."], "a\n")
    assert not fits(["a"], "a\nb\n")
    assert not fits(["a ... d"], "a b c\n")
    block = "$ true\n$ false\n[exit 1]\n$ echo a\na\n"
    assert list(commands(block)) == [
        ("true", [], 0),
        ("false", [], 1),
        ("echo a", ["a"], 0),
    ]


def test_every_tagged_command_does_what_is_shown(tmp_path):
    """In one copy of the repository, page after page, as a reader would."""
    hidden = shutil.ignore_patterns(".*", "runs", "build", "site", "__pycache__")
    copy = shutil.copytree(ROOT, tmp_path / "metaevo", ignore=hidden)
    (tmp_path / "bin").mkdir()
    for name, program in (
        ("python", 'exec {} "$@"'),
        ("metaevo", "exec {} -c 'from metaevo.cli import main; main.command()' \"$@\""),
    ):
        script = tmp_path / "bin" / name
        script.write_text(f"#!/bin/sh\n{program.format(sys.executable)}\n")
        script.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(copy),
        "COLUMNS": "80",
    }
    ran = 0
    for page in [*nav(), README]:
        for info, block in FENCE.findall(page.read_text()):
            if title := re.search(r'title="([^"]+)"', info):
                (copy / title[1]).write_text(block)
            if info != "console test":
                continue
            for command, shown, code in commands(block):
                out = subprocess.run(
                    ["sh", "-c", command],
                    cwd=copy,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                where = f"{page.name}: {command}\n{out.stdout}"
                assert out.returncode == code, where
                assert not shown or fits(shown, out.stdout), where
                ran += 1
    assert ran > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert target.is_relative_to(ROOT), f"{page.name}: {link}"
            if anchor:
                titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
                slugs = {
                    re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles
                }
                assert anchor in slugs, f"{page.name}: {link}"


def test_every_page_is_in_the_site_once():
    assert nav()[0] == INDEX
    assert sorted(nav()) == sorted(ROOT.glob("docs/*.md"))


def test_words_are_those_that_are_read():
    text = "A [b c](d#e) `f g` | - |\n```python\nh = 1\n```\n![i](j.png) k\n"
    assert words(text) == ["A", "b", "c", "`f", "g`", "i", "k"]


def test_the_readme_is_read_in_a_minute_and_shows_before_it_tells():
    text = README.read_text()
    assert len(words(text)) <= 600
    assert len(words(text[: text.index("![")])) <= 80
    assert len(words(text[: text.index("```python")])) <= 150


def test_the_python_of_the_readme_runs(tmp_path):
    blocks = [x for info, x in FENCE.findall(README.read_text()) if info == "python"]
    assert blocks
    for block in blocks:
        subprocess.run(
            [sys.executable, "-c", block],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            check=True,
        )


@pytest.mark.parametrize("page", [README, INDEX], ids=lambda page: page.name)
@pytest.mark.parametrize(
    "term", ["slot", "member", "lifetime", "hand-made", "verdict", "frame"]
)
def test_the_first_use_of_a_term_leads_to_the_glossary(page, term):
    prose = re.sub(r"`[^`]*`", "", FENCE.sub("", page.read_text())).lower()
    used = re.search(rf"\b{term}s?\b", LINK.sub(r"\1", prose))
    linked = re.search(rf"\[{term}s?\]\([\w./]*glossary\.md#{term}s?\)", prose)
    assert bool(used) == bool(linked)
    if linked:
        before = LINK.sub(r"\1", prose[: linked.start()])
        assert not re.search(rf"\b{term}s?\b", before)


def test_every_test_that_the_docs_name_is_there():
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    named = set(re.findall(r"\btest_\w+(?:\.py)?", text))
    assert len(named) > 40
    everything = "\n".join(files.values())
    lost = {
        name for name in named if name not in files and f"def {name}(" not in everything
    }
    assert not lost
