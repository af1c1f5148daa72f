"""`run.independent`: a run whose solution an independent agent judges at its end."""

import contextlib
import io
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import toys

import metaevo
from metaevo import envs, fitness, losses, spaces
from metaevo.analysis.independent import ppo
from metaevo.cli import verify
from metaevo.config import RunConfig
from metaevo.engine import costs
from metaevo.errors import ConfigError, InterruptedRunError
from metaevo.slots import Slot
from strategies.random_search import random_search

TINY = ppo.Config(
    256, num_envs=4, num_steps=32, num_epochs=1, num_minibatches=2, num_points=2,
    num_episodes=2, features=(8,),
)  # fmt: skip


class Meta(NamedTuple):
    lr: Any = 0.1
    target: Any = 1.0
    value_loss: Slot = losses.square


def search(space=None):
    space = space or spaces.replace(value_loss=losses.residual_network(features=(4,)))
    loop = toys.quadratic()._replace(
        meta=Meta(), env=envs.make("gymnax/CartPole-v1"), config={"toy": 1}
    )
    return metaevo.Search(
        loop, space, random_search(space, 4), 1, fitness.final_return, chunk_size=2
    )


def run(directory, search=None, should_stop=lambda: False, **config):
    config = {"held_out_seeds": 4, "devices": 1, "wandb": "disabled"} | config
    return metaevo.run(
        search or globals()["search"](),
        RunConfig(directory=str(directory), **config),
        "tiny",
        should_stop=should_stop,
    )


@pytest.fixture(autouse=True, scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo, "Config", lambda: TINY)
        patch.setattr(ppo, "STEP_SIZES", (0.0004, 0.001))
        yield


class Judged(NamedTuple):
    """A run that was finished, then judged, and stopped once while it was.

    Attributes:
        directory: not to be changed.
        held_out: the comparison as it was before.
        kept: how many step sizes the stopped one had kept, and whether the first was
            left as it was, each time that the other one looked.
        result: of the call that ended.
        printed: by that call.
    """

    directory: Path
    held_out: bytes
    kept: tuple[int, list[bool]]
    result: Any
    printed: str


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    directory = tmp_path_factory.mktemp("judged") / "run"
    assert run(directory).independent == ()
    held_out = (directory / "held_out/arrays.safetensors").read_bytes()

    def made():
        """Return the files that keep the scores of the solution, one per step size."""
        return sorted(directory.glob("conclusion/independent/solution0/*/arrays*"))

    with pytest.raises(InterruptedRunError, match="in the independent agent"):
        run(directory, independent=True, should_stop=lambda: bool(made()))
    num, first, seen = len(made()), made()[0], []
    written = first.read_bytes()

    def look():
        if first.exists():
            seen.append(first.read_bytes() == written)
        return False

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = run(directory, independent=True, should_stop=look)
    return Judged(directory, held_out, (num, seen), result, printed.getvalue())


def files(directory):
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_a_finished_run_is_judged_once_and_keeps_its_comparison(judged):
    directory, found = judged.directory, judged.result.independent
    assert [x.measure for x in found] == [
        "mean return over the lifetime",
        "final return",
    ]
    assert all(x.paired.num_pairs == 4 for x in found)
    assert "verdict: in an independent PPO (step sizes" in judged.printed
    held_out = (directory / "held_out/arrays.safetensors").read_bytes()
    assert held_out == judged.held_out
    page = (directory / "report/index.html").read_text(encoding="utf-8")
    assert "In an independent PPO (step sizes 0.0004, 0.001)" in page
    assert not (directory / "conclusion").exists()
    before = files(directory)
    again = run(directory, independent=True)
    assert [x.paired for x in again.independent] == [x.paired for x in found]
    assert run(directory).independent == again.independent
    assert files(directory) == before


def test_a_run_that_is_stopped_while_it_is_judged_goes_on(judged):
    num, seen = judged.kept
    assert num == 1
    assert seen
    assert all(seen)


def test_searches_that_cannot_be_judged_are_refused_before_anything_is_written(
    tmp_path,
):
    numbers = search(spaces.tune(lr=spaces.log()))
    with pytest.raises(ConfigError, match="ppo: value_loss, drift, reward"):
        run(tmp_path / "run", numbers, independent=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="held_out_seeds=0 must be at least 2"):
        RunConfig(independent=True, held_out_seeds=0)


def test_the_frames_of_the_independent_agent_are_counted():
    config = RunConfig(independent=True, held_out_seeds=4)
    assert costs.frames_judged(search(), config) == 2 * 2 * 4 * 256
    assert costs.frames_judged(search(), RunConfig()) == 0
    args = (4, 1, "cpu")
    with_it = costs.generations_after(search(), config, *args)
    without = costs.generations_after(search(), RunConfig(held_out_seeds=4), *args)
    assert with_it > without


def test_lost_or_damaged_scores_are_found_and_made_again(judged, tmp_path):
    shutil.copytree(judged.directory, tmp_path / "run")
    scores = tmp_path / "run" / "independent/arrays.safetensors"
    whole = scores.read_bytes()
    found = {found.name: found for found in verify.verify(tmp_path / "run")}
    assert all(x.ok for x in found.values())
    assert "in an independent PPO" in found["solution: independent verdict 2"].message
    alone = {x.name: x for x in verify.verify(tmp_path / "run" / "solution")}
    assert "no scores" in alone["solution: independent verdicts"].message
    scores.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    bad = [found.name for found in verify.verify(tmp_path / "run") if not found.ok]
    assert bad == ["independent"]
    run(tmp_path / "run", independent=True)
    assert scores.read_bytes() == whole
