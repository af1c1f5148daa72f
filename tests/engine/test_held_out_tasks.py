"""The comparison on tasks that the search never saw: `run.held_out_tasks`."""

import numpy as np
import optax
import pytest
import toys
from runs import write_short_reports

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness, losses, spaces
from metaevo.analysis import holdout, verdicts
from metaevo.engine import costs
from metaevo.errors import ConfigError
from metaevo.storage import checkpoint
from strategies.open_es import open_es

OTHER = "gymnax/MountainCar-v0"


def search(env="gymnax/CartPole-v1", scored=fitness.final_return):
    space = spaces.replace(value_loss=losses.residual_network("square", (2,)))
    inner = ppo.Config(512, num_envs=2, num_steps=16, num_segments=2, features=(4,))
    return metaevo.Search(
        ppo.make(envs.make(env), inner),
        space,
        open_es(space, 4, 0.5, optax.adam(0.3)),
        1,
        scored,
    )


def config(directory, **options):
    options = {"held_out_seeds": 3, "devices": 2, "wandb": "disabled"} | options
    return metaevo.RunConfig(directory=str(directory), **options)


def toy(env):
    """Returns are those of as many values as there are observations, below 0."""
    loop = toys.values(dim=env.observation.shape[0])
    return loop._replace(env=env, on=toy)


def test_comparison_is_made_on_tasks_that_the_search_never_saw(tmp_path, capsys):
    space = spaces.replace(td_loss=losses.td_network(features=(2,)))
    strategy = open_es(space, 4, 0.5, optax.adam(0.3))
    made = metaevo.Search(
        toy(envs.make("gymnax/CartPole-v1")), space, strategy, 1, fitness.final_return
    )
    found = metaevo.run(made, config(tmp_path, held_out_tasks=(OTHER,)), "tiny")
    simple, _, own, other = found.verdicts
    assert [simple.rival, own.rival] == ["best simple", "hand-made"]
    assert own.sentence.startswith("on gymnax/CartPole-v1, the solution")
    assert other.sentence.startswith(f"on {OTHER}, which the search never saw, the")
    held_out, facts = holdout.load(tmp_path / "held_out")
    assert held_out["solution"].fitness.shape == (2, 3)
    own, other = held_out["hand-made"].fitness
    assert (own != other).all()
    assert facts["tasks"] == ["gymnax/CartPole-v1", OTHER]
    assert f"on {OTHER}, which the search never saw" in capsys.readouterr().out
    page = (tmp_path / "report" / "index.html").read_text()
    assert "which the search never saw" in page
    # The agents that are kept are those of the search's own task.
    agents, _ = checkpoint.read(tmp_path / "agents" / "solution")
    assert [x.shape[1:] for x in agents.values()] == [(4,)]

    # Asked again it is finished.
    metaevo.run(made, config(tmp_path, held_out_tasks=(OTHER,)), "tiny")
    assert "already finished" in capsys.readouterr().out


@pytest.mark.slow
def test_own_task_is_compared_to_the_same_bits(tmp_path, monkeypatch):
    write_short_reports(monkeypatch)
    alone = metaevo.run(search(), config(tmp_path / "a"), "tiny")
    more = metaevo.run(
        search(), config(tmp_path / "b", held_out_tasks=(OTHER,)), "tiny"
    )
    for name, runs in alone.held_out.items():
        np.testing.assert_array_equal(runs.fitness[0], more.held_out[name].fitness[0])
    assert alone.verdicts[0].place == ""


@pytest.mark.parametrize(
    ("task", "scored", "message"),
    [
        ("gymnax/CartPole-v1", fitness.final_return, "no other task than the search's"),
        ("gymnax/CartPol-v1", fitness.final_return, "Did you mean"),
        ("gymnax/Acrobot-v1", fitness.area_under_curve, "would have no score"),
    ],
)
def test_task_that_does_not_fit_is_refused_before_anything_runs(
    tmp_path, task, scored, message
):
    run = config(tmp_path / "run", held_out_tasks=(task,))
    with pytest.raises(ConfigError, match=message):
        costs.compared(search(scored=scored), run)
    with pytest.raises(ConfigError, match=message):
        metaevo.run(search(scored=scored), run, "tiny")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="turns off"):
        config(tmp_path, held_out_tasks=(OTHER,), held_out_seeds=0)


def test_visited_range_is_that_of_the_search_s_own_tasks():
    def task(error):
        return {
            "value_error_mean": np.array([error]),
            "value_error_rms": np.array([abs(error) + 1.0]),
        }

    scores = np.zeros((2, 1))
    runs = holdout.HeldOut(scores, scores, (task(1.0), task(1000.0)))
    spec = {"value_loss": {"op": "residual_network"}}
    own = verdicts.visited({"solution": runs}, spec, {"num_searched": 1})
    every = verdicts.visited({"solution": runs}, spec, {})
    assert own["value_loss"][1] < 10 < every["value_loss"][1]


def test_places_of_runs_without_names_are_numbers():
    assert verdicts.places({}, 2) == ["on task 0", "on task 1"]
    assert verdicts.places({"tasks": ["a"]}, 1) == [""]
