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

import metaevo
from scripts import check_words, make_site

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README, INDEX = ROOT / "README.md", DOCS / "index.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def nav(*sections):
    """The pages of the site that are files of docs/, in its order; of some sections."""
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = [x for x in listed if not sections or next(iter(x)) in sections]
    texts = {str(x.relative_to(DOCS)): x.read_text() for x in DOCS.rglob("*.md")}
    pages = make_site.pages_of(make_site.navigation(listed, texts))
    return [DOCS / page for page in pages if (DOCS / page).is_file()]


LOOKED_UP = [*nav("Reference"), *nav("Research log")]
READ = [page for page in nav() if page not in LOOKED_UP]
"""Pages that are read from top to bottom; the others are looked up."""
ALONE = [*sorted(DOCS.glob("tutorials/*.md")), DOCS / "own_trainer.md"]
"""Tutorials: each runs in an empty folder."""


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


def run_page(page, folder, bin_folder, path):
    """Write the files of a page and run its tagged commands; how many those were."""
    bin_folder.mkdir(exist_ok=True)
    for name, program in (
        ("python", 'exec {} "$@"'),
        ("metaevo", "exec {} -c 'from metaevo.cli import main; main.command()' \"$@\""),
    ):
        script = bin_folder / name
        script.write_text(f"#!/bin/sh\n{program.format(sys.executable)}\n")
        script.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(path),
        "COLUMNS": "80",
    }
    ran = 0
    for info, block in FENCE.findall(page.read_text()):
        if title := re.search(r'title="([^"]+)"', info):
            (folder / title[1]).parent.mkdir(exist_ok=True)
            (folder / title[1]).write_text(block)
        for command, shown, code in commands(block) if info == "console test" else ():
            out = subprocess.run(
                ["sh", "-c", command],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            where = f"{page.name}: {command}\n{out.stdout}"
            assert out.returncode == code, where
            assert not shown or fits(shown, out.stdout), where
            ran += 1
    return ran


def test_every_tagged_command_does_what_is_shown(tmp_path):
    """In one copy of the repository, page after page, as a reader would."""
    hidden = shutil.ignore_patterns(".*", "runs", "build", "site", "__pycache__")
    copy = shutil.copytree(ROOT, tmp_path / "metaevo", ignore=hidden)
    pages = [page for page in [*nav(), README] if page not in ALONE]
    assert sum(run_page(page, copy, tmp_path / "bin", copy) for page in pages) > 10


@pytest.mark.parametrize("page", ALONE, ids=lambda page: page.stem)
def test_a_tutorial_runs_in_an_empty_folder(page, tmp_path):
    assert run_page(page, tmp_path, tmp_path / "bin", ROOT) or page.stem == "own_loss"


def leads_somewhere(page, link):
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not (target.exists() and target.is_relative_to(ROOT)):
        return False
    titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M) if anchor else []
    slugs = {re.sub(r"[^\w -]", "", x.lower()).replace(" ", "-") for x in titles}
    return not anchor or anchor in slugs


def test_links_lead_somewhere():
    broken = [
        f"{page.name}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text()))
        if "://" not in link and not leads_somewhere(page, link)
    ]
    assert broken == []


def test_every_page_is_in_the_site_once():
    assert nav()[0] == INDEX
    assert sorted(nav()) == sorted(DOCS.rglob("*.md"))


def test_what_is_read_has_at_most_14_000_words():
    assert sum(len(words(page.read_text())) for page in READ) <= 14_000


@pytest.fixture(scope="module")
def site():
    """The pages of the site, as Markdown."""
    return make_site.pages()


def test_each_public_name_has_a_place_on_the_site(site):
    documented = set(re.findall(r"^::: (\S+)", "\n".join(site.values()), re.M))
    assert set(make_site.public_modules()) - {"metaevo"} <= documented
    names = re.findall(r"\{ #metaevo\.(\w+) \}", site["api/metaevo.md"])
    assert names == metaevo.__all__
    assert "inner_loops.ppo" in documented
    assert "metaevo.losses.td_network" in documented


def test_the_links_of_the_site_lead_to_its_pages(site):
    for page, text in site.items():
        for target in re.findall(r"\]\(([^)\s#]+)", FENCE.sub("", text)):
            if "://" not in target:
                place = os.path.normpath(os.path.join(os.path.dirname(page), target))
                there = place in site or (DOCS / place).is_file()
                assert there or place.startswith("zoo/files/"), f"{page}: {target}"


def test_a_result_has_a_page_with_its_verdict_its_figure_and_its_files(site):
    page = site["zoo/potential.md"]
    for shown in ("](../images/potential.png)", "the solution is", "evolved_torch.py"):
        assert shown in page


def test_the_log_is_dated_newest_first(site):
    dates = re.findall(r"^\| (20\d\d-\d\d-\d\d) \| \[", site["log.md"], re.M)
    assert len(dates) == sum(page.startswith("log/") for page in site) > 30
    assert dates == sorted(dates, reverse=True)


def test_words_that_are_not_used_are_found_outside_of_code_alone():
    text = "It also runs.\n\n`e.g. x`, as of 1, too\n\n```\nutilize\n```\n"
    assert list(check_words.found(text)) == [(3, ", too", "also")]


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


@pytest.mark.parametrize(
    "term", ["slot", "member", "lifetime", "hand-made", "verdict", "frame"]
)
def test_the_first_use_of_a_term_leads_to_the_glossary(term):
    """Outside of code, headings, and links to a page that says more."""
    wrong = []
    for page in [README, *READ]:
        text = FENCE.sub("", page.read_text())
        prose = re.sub(r"`[^`]*`|^#.*$", "", text, flags=re.M)
        kept = LINK.sub(lambda x: x[0] if "glossary.md#" in x[2] else "", prose.lower())
        linked = re.search(rf"\[{term}s?\]\([\w./]*glossary\.md#{term}s?\)", kept)
        first = re.search(rf"(?<!#)\b{term}s?\b", kept)
        leads = first is None or (linked and linked.start() == first.start() - 1)
        if page.name != "glossary.md" and not leads:
            wrong.append(page.name)
    assert wrong == []


def test_every_test_that_the_docs_name_is_there():
    pages = DOCS / "reliability.md", DOCS / "log" / "reliability.md"
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    named = set(re.findall(r"\btest_\w+(?:\.py)?", text))
    assert len(named) > 40
    everything = "\n".join(files.values())
    lost = {
        name for name in named if name not in files and f"def {name}(" not in everything
    }
    assert not lost
