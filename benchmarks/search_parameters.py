"""Evolved search parameters of AlphaZero against mctx's defaults, at equal simulations.

    python -m searches.alphazero_search_parameters run.directory=runs/az run.seeds=3
    python -m benchmarks.search_parameters runs/az/*

400 games of tic-tac-toe a run, over both seats: 50 of each of 8 agents trained with
seeds that the search did not see. In one match both sides have the network trained with
the defaults, and in the other each side its own, so that what is learned counts too.
Both sides take their best moves, so the first two of a game are random: without them
all games of two agents would be alike. The interval counts the agents, not the games.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import metaevo
from benchmarks.measure import Results
from metaevo import envs
from metaevo.analysis import stats
from metaevo.rl import matches
from metaevo.storage import artifacts
from metaevo.types import InnerLoop
from searches import alphazero_search_parameters

NUM_AGENTS, GAMES_EACH = 8, 50


def trained(loop: InnerLoop, meta: Any) -> Any:
    """Agents after a lifetime, leaves [8, ...]."""

    def one(key):
        init_key, train_key = jax.random.split(key)
        state = loop.init(init_key, meta)

        def segment(state, _):
            return loop.train(train_key, meta, state)[0], None

        return jax.lax.scan(segment, state, None, loop.num_segments)[0].agent

    keys = jax.random.split(jax.random.key(2**20), NUM_AGENTS)
    return jax.jit(jax.vmap(one))(keys)


def match(loop: InnerLoop, env: envs.Env, ours: tuple, theirs: tuple) -> dict:
    """Shares of all games, and the mean score with an interval over the agents.

    Args:
        ours, theirs: a meta and agents with leaves [8, ...].
    """
    metas = ours[0], theirs[0]

    def one(key, agents):
        def player(meta, agent, key, obs, env_state, mask):
            move = loop.act(key, meta, agent, (), obs, env_state, mask)[0]
            opening = matches.random(key, obs, env_state, mask)
            return jnp.where(obs.sum() < 2, opening, move)  # stones of both

        players = map(partial(partial, player), metas, agents)
        return matches.play(key, env, *players, GAMES_EACH)

    keys = jax.random.split(jax.random.key(2**21), NUM_AGENTS)
    results = jax.jit(jax.vmap(one))(keys, (ours[1], theirs[1]))
    shares = {k: round(float(x), 4) for k, x in matches.metrics(results).items()}
    interval = stats.mean_interval(np.asarray(results.score.mean(1)))
    return shares | {"low": float(interval.low), "high": float(interval.high)}


def main(directories: list[str]) -> None:
    if not directories:
        sys.exit(__doc__)
    metaevo.configure()
    search = alphazero_search_parameters.search()
    loop = search.tasks[0]
    env = envs.make("pgx/tic_tac_toe")
    results = Results("search_parameters", keep=True)
    done = {json.loads(line)["run"] for line in results.lines}
    default = loop.meta, trained(loop, loop.meta)
    for directory in map(Path, directories):
        if directory.name in done:
            continue
        meta = search.space.bind(artifacts.params(directory), loop.meta)
        numbers = {
            name: round(float(getattr(meta, name)), 4)
            for name in ("q_scale", "q_visits", "gumbel_scale")
        }
        cases = {
            "same network": (meta, default[1]),
            "own network": (meta, trained(loop, meta)),
        }
        rows = {name: match(loop, env, ours, default) for name, ours in cases.items()}
        for name, row in rows.items():
            about = {"run": directory.name, "match": name, "evolved": numbers}
            games = {"agents": NUM_AGENTS, "games": NUM_AGENTS * GAMES_EACH}
            results.add(**about, **games, **row)


if __name__ == "__main__":
    main(sys.argv[1:])
