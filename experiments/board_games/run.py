"""Gumbel AlphaZero on board games, against players that learn nothing.

    python -m experiments.board_games.run tic_tac_toe=true    3 agents, 3 minutes
    python -m experiments.board_games.run connect_four=true   3 agents, an hour

An agent is trained by self-play, then meets its opponents over both seats. It plans
with as many simulations as in training, and takes the best move. Durations are for two
cores, of which one agent uses one. A match that is in the results is not played again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import metaevo
from benchmarks.measure import Results, switches
from inner_loops import gumbel_alphazero
from metaevo import envs
from metaevo.analysis import stats
from metaevo.rl import matches

FOLDER = Path(__file__).parent


class Game(NamedTuple):
    """A game: the agents trained on it and their opponents.

    Attributes:
        config, meta: of Gumbel AlphaZero.
        opponents: names for `matches.player`.
        num_games: of each match.
        num_agents: with seeds 0, 1, 2 ...
    """

    config: gumbel_alphazero.Config
    meta: gumbel_alphazero.Meta
    opponents: tuple[str, ...]
    num_games: int
    num_agents: int


GAMES = {
    "tic_tac_toe": Game(
        gumbel_alphazero.Config(200_000, num_simulations=32),
        gumbel_alphazero.Meta(q_scale=0.03, gumbel_scale=2.0),
        ("random", "minimax"),
        1000,
        3,
    ),
    "connect_four": Game(
        gumbel_alphazero.Config(
            1_600_000,
            num_envs=128,
            num_steps=32,
            num_simulations=32,
            torso="cnn",
            features=(256, 128),
        ),
        gumbel_alphazero.Meta(lr=1e-3, q_scale=0.03, gumbel_scale=3.0),
        ("random", "rollouts-100"),
        400,
        3,
    ),
}


def trained(game: Game, env: envs.Env, seed: int) -> tuple[Any, Any, float]:
    """The loop, its state after a lifetime, and seconds; prints as it goes."""
    loop = gumbel_alphazero.make(env, game.config, game.meta)
    state = jax.jit(loop.init)(jax.random.key(seed), loop.meta)
    train = jax.jit(loop.train)
    began = time.perf_counter()
    for segment in range(loop.num_segments):
        state, metrics = train(jax.random.key(100 + seed), loop.meta, state)
        shown = {name: round(float(x), 3) for name, x in metrics.items()}
        print(f"segment {segment}", shown, flush=True)
    return loop, state, time.perf_counter() - began


def match(loop, state, env, opponent: str, num_games: int, seed: int) -> dict:
    """The shares of a match, and the mean score with its interval."""
    other = matches.player(env, opponent)

    @jax.jit
    def played(key, state):
        def agent(key, obs, env_state, mask):
            return loop.act(key, loop.meta, state.agent, (), obs, env_state, mask)[0]

        return matches.play(key, env, agent, other, num_games)

    results = played(jax.random.key(200 + seed), state)
    shares = {k: round(float(x), 4) for k, x in matches.metrics(results).items()}
    interval = stats.bootstrap(np.asarray(results.score), stats.mean)
    return shares | {"low": float(interval.low), "high": float(interval.high)}


def main() -> None:
    options = switches(dict.fromkeys(GAMES, False), sys.argv[1:])
    if not any(options.values()):
        sys.exit(__doc__)
    metaevo.configure()
    results = Results("results", keep=True, folder=FOLDER)
    for name, game in GAMES.items():
        env = envs.make(f"pgx/{name}")
        for seed in range(game.num_agents) if options[name] else ():
            lines = [json.loads(line) for line in results.lines]
            if any((x["game"], x["seed"]) == (name, seed) for x in lines):
                continue
            loop, state, seconds = trained(game, env, seed)
            about = {
                "game": name,
                "seed": seed,
                "moves": game.config.total_timesteps,
                "simulations": game.config.num_simulations,
                "seconds": round(seconds),
                "games": game.num_games,
            }
            scores = {
                opponent: match(loop, state, env, opponent, game.num_games, seed)
                for opponent in game.opponents
            }
            for opponent, score in scores.items():
                results.add(**about, opponent=opponent, **score)


if __name__ == "__main__":
    main()
