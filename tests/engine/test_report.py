"""The report: made from a run's files alone, safe to open, and complete."""

import ast
import contextlib
import csv
import html
import io
import json
import re
import shlex

import numpy as np
import optax
import pytest
import runs

import metaevo
from inner_loops import ppo
from metaevo import critic_losses, envs, fitness, spaces
from metaevo.analysis import holdout, report, verdicts
from metaevo.cli import commands
from metaevo.storage import history, provenance
from strategies.open_es import open_es

# A population that cannot be told from noise.
NOISE = {"rank_correlation": 0.02, "p_value": 0.46, "num_members": 32}
NOISE |= {"num_seeds": 2}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tiny search over PPO's value loss, on the real environment."""
    directory = tmp_path_factory.mktemp("run") / "<b>&run"
    space = spaces.replace(value_loss=critic_losses.weighted_square((4,)))
    sizes = {"num_segments": 4, "features": (8,)}
    search = metaevo.Search(
        ppo.make(envs.make("gymnax/CartPole-v1"), ppo.Config(2048, **sizes)),
        space,
        open_es(space, 4, 0.5, optax.adam(0.3)),
        2,
        fitness.area_under_curve,
        num_seeds=2,
    )
    config = metaevo.RunConfig(
        directory=str(directory), held_out_seeds=4, wandb="disabled", devices=2
    )
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        runs.drawn(patch)
        patch.setattr(verdicts, "noise_between_seeds", lambda *given: NOISE)
        metaevo.run(search, config, "<script>alert(1)</script>")
    (directory.parent / "terminal").write_text(printed.getvalue())
    return directory


def test_the_artifact_has_the_errors_that_were_visited(directory):
    """In standard deviations of the targets, over the solution's held-out runs."""
    held_out, _ = holdout.load(directory / "held_out")
    (train,) = held_out["solution"].train
    mean = train["value_error_mean"] / train["return_std"]
    square = (train["value_error_rms"] / train["return_std"]) ** 2
    sd = (square.mean() - mean.mean() ** 2) ** 0.5
    expected = mean.mean() - 2 * sd, mean.mean() + 2 * sd
    loaded = metaevo.load(directory)
    found = loaded.properties["value_loss"]
    np.testing.assert_allclose(found.visited, expected, rtol=1e-4)
    assert found.unit == "return_std"
    near = np.array([mean.mean(), expected[1] + 0.01]) * 30.0
    np.testing.assert_array_equal(loaded.inside(near, 30.0), [True, False])


def test_the_page_is_whole_and_offline(directory):
    page = (directory / "report" / "index.html").read_text()
    for heading in (
        "Held-out seeds",
        "Fitness of the population",
        "Signal in the scores of members",
        "Learning curves on held-out seeds",
        "The evolved value loss",
        "The strategy",
        "Noise",
        "What was not tested",
        "Configuration",
        "History",
    ):
        assert heading in page
    sentence = r"The solution is .*: {} .*\(95 % interval, 4 paired seeds"
    assert re.search(sentence.format("mean return over the lifetime"), page)
    assert re.search(sentence.format("final return"), page)
    assert "corrected for 2 verdicts" in page
    assert page.count("<figure") == 6
    for color in ("currentColor", "var(--solution)", "var(--hand-made)"):
        assert color in page  # readable on light and dark
    assert not re.search("#0072b2|#d55e00", page.split("</style>")[1])
    ids = re.findall(r' id="(p[0-9a-f]{10}|m[0-9a-f]{10})"', page)
    assert ids
    # A picture that refers to another's clip path is cut wrongly.
    assert len(ids) == len(set(ids))
    # Namespaces aside it points nowhere but to its own tables.
    links = re.findall(r'(?:href|src)="([^"#][^"]*)"', page)
    assert links
    assert all((directory / "report" / link).is_file() for link in links), links


def test_the_first_screen_says_what_it_is_what_it_is_worth_and_how_to_load_it(
    directory, tmp_path
):
    page = (directory / "report" / "index.html").read_text()
    order = [
        "<td>task</td><td>gymnax/CartPole-v1</td>",
        "<td>algorithm</td><td>ppo</td>",
        "<td>strategy</td><td>open_es, 4 members, 2 seeds each, 2 generations</td>",
        "the best simple one",
        "the hand-made one",
        "The evolved value loss",
        "How to load it",
        "<td>frames</td><td>32,768</td>",
        "<td>wall time</td>",
        f"<td>2 x cpu, {provenance.processor()}</td>",
        "<h2>Held-out seeds",
        "Fitness of the population",
    ]
    places = [page.index(x) for x in order]
    assert places == sorted(places)

    code = {
        kind: html.unescape(text)
        for kind, text in re.findall(r'<code class="(\w+)">(.*?)</code>', page, re.S)
    }
    names = {"value": 1.0, "target": np.array([3.0, 0.0]), "old_value": 1.0}
    *_, last = code["jax"].splitlines()
    exec(code["jax"].removesuffix(last), names)
    assert np.isfinite(eval(last, names)).all()
    word, *arguments = shlex.split(code["export"])[1:]
    file = tmp_path / arguments.pop().removeprefix("out=")
    commands.execute(word, [*arguments, f"out={file}"])
    imported = ast.parse(code["torch"]).body[0]
    assert imported.module == file.stem
    defined = {x.name for x in ast.parse(file.read_text()).body if hasattr(x, "name")}
    assert {x.name for x in imported.names} <= defined


def test_every_picture_is_told_to_who_does_not_see_it(directory):
    page = (directory / "report" / "index.html").read_text()
    titles = re.findall(r"<svg[^>]*>\s*<title>([^<]+)</title>", page)
    assert len(titles) == len(set(titles)) == page.count("<svg")
    assert page.count('<svg role="img"') == len(titles)
    curve = (
        "Fitness of the population: mean return over the lifetime against generation"
    )
    assert f"{curve} (quartiles, median, mean, best (noisy))" in titles


def test_names_are_escaped(directory):
    page = (directory / "report" / "index.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_every_figure_has_its_data(directory):
    folder = directory / "report"
    for png in folder.glob("*.png"):
        with open(png.with_suffix(".csv")) as file:
            rows = list(csv.DictReader(file))
        assert rows, png
    with open(folder / "value_loss.csv") as file:
        rows = list(csv.DictReader(file))
    loss = metaevo.load(directory).value_loss
    for row in rows[::100]:
        error = float(row["value - target (return_std)"])
        one = metaevo.Context(return_std=1.0)
        expected = loss(error, 0.0, error, one) - loss(0.0, 0.0, 0.0, one)
        assert float(row["loss, 0 at 0: evolved"]) == pytest.approx(
            float(expected), abs=1e-4
        )
        assert float(row["gradient: hand-made"]) == pytest.approx(error, abs=1e-4)


def test_it_can_be_remade_from_the_files(directory, drawn):
    path = directory / "report" / "index.html"
    before = path.read_text()
    path.unlink()
    assert report.write(directory) == path
    assert path.read_text() == before


def test_the_report_says_what_more_seeds_would_buy(directory):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    twice = 2 * last["signal"] / (1 + last["signal"])
    assert last["signal_twice"] == pytest.approx(twice, abs=1e-6)
    page = (directory / "report" / "index.html").read_text()
    assert f"{100 * last['signal']:.0f} % of the variance between members was" in page


def test_seeds_of_the_last_generation_tell_the_noise(directory):
    """In place of two evaluations of another population."""
    page = (directory / "report" / "index.html").read_text()
    assert "the 2 seeds of the members agree in rank by 0.02" in page
    assert "evaluated twice" not in page
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    told = [json.loads(line) | {"agreement": 0.5} for line in lines]
    found = verdicts.noise_between_seeds(told, 2)
    assert (found["rank_correlation"], found["num_members"]) == (0.5, 4)


def test_held_out_runs_and_agents_are_kept(directory):
    held_out, facts = holdout.load(directory / "held_out")
    assert set(held_out) == {"solution", "start", "hand-made", "best simple"}
    assert facts["simple"]["name"] in facts["simple"]["tried"]
    its = held_out["solution"]
    assert its.fitness.shape == its.final_return.shape == (1, 4)
    assert its.train[0]["return"].shape == (4, 4)
    assert facts["measure"] == "mean return over the lifetime"
    assert facts["noise"] == NOISE
    manifest = json.loads(
        (directory / "agents" / "solution" / "manifest.json").read_text()
    )
    assert all(shape[0] == 4 for shape, _ in manifest["arrays"].values())


def test_what_makes_the_result_doubtful_is_said(directory):
    """A population that is noise, and verdicts that were looked at before."""
    path, log = directory / "report" / "index.html", directory / "history.jsonl"
    page, events = path.read_text(), log.read_text()
    assert "cannot be told apart from noise" in page
    assert "ended before" not in page
    try:
        history.note(directory, "finished", 5)
        again = report.write(directory).read_text()
    finally:
        log.write_text(events)
        path.write_text(page)
    assert "this run ended before, after 2 generations" in again


def test_the_terminal_says_what_the_report_says(directory):
    printed = " ".join((directory.parent / "terminal").read_text().split())
    for measure in ("mean return over the lifetime", "final return"):
        assert re.search(f"verdict: the solution is [^:]*: {measure} ", printed)
    assert "warning: the members of the last third of generations cannot be" in printed


def test_noise_components():
    """Members N(0, 3²) seen twice through noise N(0, 1)."""
    rng = np.random.default_rng(0)
    members = rng.normal(0, 3, 4000)
    found = verdicts.noise(
        members + rng.normal(size=4000), members + rng.normal(size=4000)
    )
    assert found["sd_members"] == pytest.approx(3, rel=0.05)
    assert found["sd_noise"] == pytest.approx(1, rel=0.05)
    assert 0.85 < found["rank_correlation"] < 0.95
    assert verdicts.noise(np.ones(5), np.ones(5))["rank_correlation"] is None
