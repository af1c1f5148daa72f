"""Searches for policies reach their targets: whole runs, scored by their artifacts.

    pytest tests/learning/test_policy_searches.py -m slow -s -k CartPole

Scores are those of the artifact's policy on 128 fresh episodes.
"""

import importlib
import json

import jax
import numpy as np
import pytest

import metaevo
from inner_loops import fixed_policy, td3_shared
from metaevo import envs
from metaevo.analysis import results
from metaevo.engine import play
from metaevo.rl import evaluation

CARTPOLE, PENDULUM = "gymnax/CartPole-v1", "gymnax/Pendulum-v1"


def score(env, act, num_episodes=128):
    """Mean return of `obs -> action` on episodes that no search saw."""

    @jax.jit
    def run(key):
        def choose(key, carry, obs, state, mask):
            return act(obs), carry

        return evaluation.first_episodes(key, env, choose, (), num_episodes)["return"]

    return float(run(jax.random.key(2**31 - 1)))


def searched(name, directory, seed=0, held_out_seeds=0, **options):
    """The directory of a whole run, and its records."""
    search = importlib.import_module(f"searches.{name}").search(**options)
    config = metaevo.RunConfig(
        directory=str(directory),
        seed=seed,
        held_out_seeds=held_out_seeds,
        devices=1 if search.tasks[0].coupled else None,
        wandb="disabled",
    )
    metaevo.run(search, config, name)
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return directory, [json.loads(line) for line in lines]


# --- as small as can be ---------------------------------------------------------------

TD3 = {"total_timesteps": 440, "learning_starts": 40, "num_gradient_steps": 2}
TD3 |= {"num_steps": 20, "batch_size": 16, "num_segments": 2, "features": (8,)}
TINY = {
    "policy_open_es": {
        "num_generations": 2,
        "inner": fixed_policy.Config(1000, 2, 500, features=(8,), num_eval_envs=2),
    },
    "td3_cem_rl": {"inner": td3_shared.Config(**TD3, num_eval_envs=2)},
    "td3_dvd": {"inner": td3_shared.Config(**TD3, num_eval_envs=2)},
}


@pytest.mark.parametrize("name", TINY)
def test_a_search_runs_from_end_to_end(name, tmp_path):
    folder, records = searched(
        name, tmp_path / name, held_out_seeds=4, population_size=4, **TINY[name]
    )
    assert len(records) == 2
    assert all(np.isfinite(r["fitness_mean"]) and not r["failed"] for r in records)
    artifact = metaevo.load(folder)
    scores = results.read_scores(folder).evaluations
    assert all(np.isfinite(x).all() for x in scores.values())
    assert (folder / "report" / "index.html").exists()
    made = importlib.import_module(f"searches.{name}").search(
        population_size=4, **TINY[name]
    )
    _, steps, _ = play.play(lambda: made, folder, "best")
    assert steps > 0
    if name == "td3_dvd":
        assert set(scores) == {"best agent", "population mean"}
        assert (folder / "agents" / "best").is_dir()
        assert float(artifact.diversity_coef(metaevo.Context())) in (0.0, 0.5)
    else:
        assert "solution" in scores
        assert play.play(lambda: made, folder, "solution")[1] > 0
        env = envs.make(CARTPOLE if name == "policy_open_es" else PENDULUM)
        assert np.isfinite(score(env, artifact.actor, 4))


# --- what they reach ------------------------------------------------------------------

# env -> (the search's options, what its mean policy must reach)
ES = {
    CARTPOLE: ({}, 475),
    PENDULUM: (
        {"num_generations": 200, "inner": fixed_policy.Config(3200, 16, 200)},
        -400,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("env", ES)
def test_evolution_strategies_find_a_policy(env, tmp_path):
    options, threshold = ES[env]
    scores = []
    for seed in range(3):
        folder, _ = searched(
            "policy_open_es", tmp_path / str(seed), seed, env=env, **options
        )
        scores.append(score(envs.make(env), metaevo.load(folder).actor))
    print(f"\nes_policy, {env}: {np.round(scores, 1)}")
    assert min(scores) >= threshold


def test_the_populations_take_fifty_thousand_frames():
    """Warm-up included, for all members together."""
    for name in ("td3_cem_rl", "td3_dvd"):
        search = importlib.import_module(f"searches.{name}").search()
        (loop,), inner = search.tasks, 200
        size = 10 if name == "td3_cem_rl" else 5
        lived = loop.frames_per_segment * search.num_generations
        assert size * (inner + lived) == 50_000
        # The authors evaluate CEM-RL's actors after they learned; DvD selects none.
        assert search.fitness.needs_evaluation == (name == "td3_cem_rl")


@pytest.mark.slow
def test_cem_rl_reaches_its_target(tmp_path):
    """The policy of the mean, which never learned, on 128 fresh episodes."""
    scores = []
    for seed in range(3):
        folder, records = searched("td3_cem_rl", tmp_path / str(seed), seed)
        assert sum(r["failed"] for r in records) == 0
        assert records[-1]["frames"] + 10 * 200 == 50_000
        scores.append(score(envs.make(PENDULUM), metaevo.load(folder).actor))
    print(f"\ntd3_cem_rl, mean policy: {np.round(scores, 1)}")
    assert np.mean(scores) >= -250
    assert max(scores) >= -200


@pytest.mark.slow
def test_dvd_reaches_its_target(tmp_path):
    """All members, and the one that was best on 128 episodes, on 128 others."""
    means, bests = [], []
    for seed in range(3):
        folder, records = searched("td3_dvd", tmp_path / str(seed), seed, 32)
        assert sum(r["failed"] for r in records) == 0
        assert records[-1]["frames"] + 5 * 200 == 50_000
        scores = results.read_scores(folder).evaluations
        means.append(scores["population mean"].mean())
        bests.append(scores["best agent"].mean())
    print(f"\ntd3_dvd, members: {np.round(means, 1)}, best: {np.round(bests, 1)}")
    assert np.mean(means) >= -250
    assert min(bests) >= -200
