"""`metaevo watch`: runs that go on, as a page and in a terminal, from their files."""

import itertools
import json
import re
import shutil

import jax
import numpy as np
import optax
import pytest
import toys
from runs import write_short_reports

import metaevo
from metaevo import fitness, losses, spaces
from metaevo.analysis import live, newest, overview
from metaevo.cli import commands, watch
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage import artifacts, jsonl, run_directory
from strategies.open_es import open_es
from strategies.pbt import pbt

pytestmark = pytest.mark.usefixtures("drawn")


def run(directory, search, **options):
    config = metaevo.RunConfig(
        directory=str(directory), wandb="disabled", devices=1, **options
    )
    with pytest.MonkeyPatch.context() as patch:
        write_short_reports(patch)
        metaevo.run(search, config, "tiny")
    return directory


def goes_on(directory, end=1):
    """Make a finished run look as it was in its search, after `end` generations."""
    lines = (directory / "history.jsonl").read_text().splitlines()
    (directory / "history.jsonl").write_text(lines[0] + "\n")
    for name in ("solution", "held_out", "report", "agents"):
        shutil.rmtree(directory / name, ignore_errors=True)
    log = directory / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:end]))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run in which a loss evolved."""
    space = spaces.replace(td_loss=losses.td_network())
    strategy = open_es(space, 4, 0.1, optax.adam(0.1))
    search = metaevo.Search(toys.values(), space, strategy, 3, fitness.final_return)
    return run(tmp_path_factory.mktemp("learned") / "a", search, held_out_seeds=2)


@pytest.fixture
def going(learned, tmp_path):
    shutil.copytree(learned, tmp_path / "going")
    goes_on(tmp_path / "going", 2)
    return tmp_path / "going"


def view(directory):
    return live.view(overview.read(directory))


def titles(shown):
    return [figure["title"] for figure in shown["figures"]]


def test_a_run_that_goes_on_is_drawn_with_its_function_and_rivals(going):
    shown = view(going)
    assert shown["problems"] == []
    assert shown["facts"]["state"] == "going on"
    assert shown["facts"]["generations"] == "2/3"
    assert "follows the search" in shown["facts"]["time left"]
    assert titles(shown)[0] == "Fitness of the population"
    assert titles(shown)[1] == "The newest td loss"
    drawn = "".join(shown["figures"][1]["svgs"])
    assert {"start", "Huber", "slow to rise", "hand-made"} <= {
        *re.findall(r">([^<]+)</text>", drawn)
    }


def test_of_a_finished_run_the_best_simple_function_and_the_solutions_score(learned):
    shown = view(learned)
    kept = json.loads((learned / "held_out/manifest.json").read_text())
    best = kept["simple"]["name"].removeprefix("td_loss ")
    drawn = "".join(shown["figures"][1]["svgs"])
    named = {*re.findall(r">([^<]+)</text>", drawn)}
    assert best in named
    assert len(named & {"Huber", "slow to rise", "slow to fall", "shifted"}) <= 1
    assert ">solution</text>" in "".join(shown["figures"][0]["svgs"])
    assert "held-out seeds, the points" in shown["figures"][0]["caption"]
    # What was kept last is what the search found.
    (spec, params), found = (
        newest.read(learned / "newest")["solution"],
        artifacts.params(learned),
    )
    assert spec["td_loss"]["op"] == "td_network"
    jax.tree.map(np.testing.assert_array_equal, params, found)


def test_what_cannot_be_read_is_said_and_the_rest_is_drawn(going):
    path = going / "newest/solution/manifest.json"
    path.write_text(path.read_text().replace("td_network", "unheard_of"))
    shown = view(going)
    assert titles(shown) == ["Fitness of the population", "Population of generation 2"]
    assert "newest/solution" in shown["problems"][0]


def test_agents_that_live_on_are_drawn_with_their_lines(tmp_path):
    loop, space = toys.quadratic(), toys.space()
    search = metaevo.Search(
        *(loop, space, pbt(space, 4), 3, fitness.final_return),
        segments_per_generation=1,
    )
    place = run(tmp_path / "a", search, held_out_seeds=0)
    assert not (place / "newest").exists()  # numbers are not kept as functions
    shown = view(place)
    assert shown["problems"] == []
    assert titles(shown)[1:] == ["Population of generation 3", "Who came from whom"]
    assert shown["trials"] == []


def test_trials_are_counted_by_how_far_they_came(tmp_path):
    record = {"generation": 3, "fitness_best": 1.0, "fitness_mean": 0.5, "failed": 0}
    record |= {f"fitness_{x}": 0.5 for x in ("median", "sd", "worst", "q25", "q75")}
    record |= {"population": [0.0, 0.5, 1.0, 0.5], "parents": [-1, 1, 2, -1]}
    record |= {"trials": 9, "stopped_early": 2, "whole_lives": 1, "frames": 64}
    paths, row = run_directory.paths(tmp_path), overview.RunRow(str(tmp_path))

    def told():
        return live._facts(row, paths, [record])["trials"]

    assert told().startswith("9 drawn; 4 running, of which 2 were promoted and 2 are")
    assert "4 stopped early, 2 of them in the newest generation; 1 whole" in told()
    del record["stopped_early"]  # from here on a search of `metaevo.optimize`
    lines = ['{"score": 1.0}', '{"score": null}', '{"score": 2.5}']
    paths.trial_log.write_text("\n".join(lines) + "\n")
    for name in "abcde":
        (paths.trials / name).mkdir(parents=True)
    assert told() == "2 running; 3 ended, 1 failed"


# --- the page and the terminal --------------------------------------------------------


def test_the_page_is_renewed_until_all_runs_ended(going, learned, tmp_path, capsys):
    page, waits = tmp_path / "deep/page.html", []

    class Stop:
        def wait(self, seconds):
            waits.append((seconds, page.read_text()))
            shutil.rmtree(going)
            shutil.copytree(learned, going)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "on_signals", Stop)
        commands.execute("watch", [str(going), f"page={page}", "every=2"])
    (seconds, first), last = waits[0], page.read_text()
    assert (len(waits), seconds) == (1, 2.0)
    assert '<meta http-equiv="refresh" content="2">' in first
    assert "every 2 s" in first
    assert "http-equiv" not in last
    assert "<script" not in first + last
    assert last.count('role="img"') == last.count("<svg")
    assert all(x for x in re.findall('aria-label="([^"]*)"', last))
    assert 'class="verdict"' in last
    out = capsys.readouterr().out
    assert out.index(page.as_uri()) < out.index("going on") < out.index("finished")
    assert "\x1b" not in out


def test_it_waits_for_the_first_files_of_a_run(learned, tmp_path, capsys, monkeypatch):
    place, page = tmp_path / "run", tmp_path / "page.html"

    class Stop:
        def wait(self, seconds):
            shutil.rmtree(place)
            shutil.copytree(learned, place)

    monkeypatch.setattr(watch, "on_signals", Stop)
    monkeypatch.setattr(watch.live, "view", viewed)
    place.mkdir()
    words = "watch", [str(place), f"page={page}"]
    with pytest.raises(ConfigError, match="no runs in"):
        commands.execute(*words)
    run_directory.paths(place).lock.touch()  # as a run has it while it compiles
    commands.execute(*words)
    assert f"waiting for {place}\n" in capsys.readouterr().out
    assert page.exists()


def test_a_signal_ends_the_watch_and_no_run(going, tmp_path, monkeypatch):
    class Stop:
        def wait(self, seconds):
            return True

    monkeypatch.setattr(watch, "on_signals", Stop)
    monkeypatch.setattr(watch.live, "view", viewed)
    before = overview.read(going)
    commands.execute("watch", [str(going), f"page={tmp_path / 'p.html'}"])
    assert overview.read(going)._replace(seconds=0) == before._replace(seconds=0)


def test_the_pages_of_many_runs_have_a_table_and_links(going, learned, tmp_path):
    for i in range(watch.DRAWN):
        shutil.copytree(learned, tmp_path / f"copy{i}")
    waits = []

    class Stop:
        def wait(self, seconds):
            waits.append((tmp_path / "all.html").read_text())
            if len(waits) == watch.DRAWN:
                shutil.rmtree(going)  # no other run goes on
            return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "on_signals", Stop)
        patch.setattr(watch.live, "view", viewed)
        commands.execute("watch", [str(tmp_path), f"page={tmp_path / 'all.html'}"])
    drawn = [text.count('<dl class="facts">') for text in waits]
    assert drawn[: watch.DRAWN] == [1, 2, 3, 4]  # one a time
    assert f'<h2 class="run">{going}' in waits[0]  # it goes on
    assert waits[0].index("<table") < waits[0].index("<dl")
    assert "Figures of 4 runs follow" in waits[3]
    last = (tmp_path / "all.html").read_text()
    assert "http-equiv" not in last
    assert str(going) not in last


def viewed(row):
    return {"facts": {"state": row.state}, "figures": [], "trials": [], "problems": []}


def test_a_run_is_drawn_again_after_a_rest_or_at_its_end(going, monkeypatch):
    monkeypatch.setattr(watch.live, "view", viewed)
    pictures, row = watch.Pictures(), overview.read(going)
    pictures.draw_one([row])
    first = pictures.of(row)
    pictures.draw_one([row])
    assert pictures.of(row) is first
    goes_on(going, 1)
    pictures._rest_until = float("inf")
    pictures.draw_one([row])
    assert pictures.of(row) is first
    pictures._rest_until = 0.0
    pictures.draw_one([row])
    assert pictures.of(row) is not first
    pictures._rest_until = float("inf")
    pictures.draw_one([row._replace(state="finished")])
    assert pictures.has([row._replace(state="finished")])


def test_the_table_of_runs_links_reports_and_pages(learned, tmp_path, monkeypatch):
    monkeypatch.setattr(watch.live, "view", viewed)
    commands.execute("watch", [str(learned)])
    assert (learned / "report" / watch.PAGE).is_file()
    commands.execute("runs", [str(learned), f"page={tmp_path / 'runs.html'}"])
    text = (tmp_path / "runs.html").read_text()
    assert "report/index.html" in text
    assert f"report/{watch.PAGE}" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no runs in nowhere"),
        (["every=0"], "every=0.0 must be at least 1"),
        (["every=soon"], "every"),
    ],
)
def test_wrong_words_are_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        commands.execute("watch", words)


# --- long logs ------------------------------------------------------------------------


def test_of_a_long_log_some_records_are_parsed(learned, tmp_path, monkeypatch):
    one = json.loads((learned / "metrics.jsonl").read_text().splitlines()[0])
    path = tmp_path / "metrics.jsonl"
    records = [one | {"generation": i, "fitness_mean": float(i)} for i in range(5000)]
    path.write_text("".join(json.dumps(x) + "\n" for x in records) + '{"torn": ')
    parsed = []

    def counted(data):
        parsed.append(data)
        return json.loads(data)

    monkeypatch.setattr(jsonl, "parse_json", counted)
    spaced, last = jsonl.sample(path, 400, 60)
    assert len(parsed) < 1000
    at = [x["generation"] for x in spaced]
    assert at[0] == 0
    assert at[-1] == 4999
    assert 400 <= len(at) < 800
    assert max(b - a for a, b in itertools.pairwise(at)) <= 12
    assert last == records[-60:]
    assert "population" not in spaced[0]
    # Of records that are long, the last alone is certain to be whole.
    monkeypatch.setattr(jsonl, "MOST_LAST", 10)
    monkeypatch.setattr(jsonl, "MOST_PARSED", path.stat().st_size // 500)
    spaced, last = jsonl.sample(path, 400, 60)
    assert last == records[-1:]
    assert len(spaced) <= 12
    assert jsonl.sample(tmp_path / "none", 1, 1) == ([], [])
    path.write_text(json.dumps(one) + "\n" + json.dumps(one) + "\n")
    with pytest.raises(CheckpointError, match="line 2: expected generation 1"):
        jsonl.sample(path, 400, 60)
    path.write_text("[]\n")
    with pytest.raises(CheckpointError, match="line 1: not a record"):
        jsonl.sample(path, 400, 60)
