"""Evolved shapers and messages beside agents in which they did not evolve.

    python -m searches.mfos_ipd run.directory=runs/shaper
    python -m searches.cheap_talk_ally run.directory=runs/ally
    python -m searches.cheap_talk_adversary run.directory=runs/adversary
    python -m experiments.transfer.run shaper=runs/shaper ally=runs/ally \
        adversary=runs/adversary

A shaper plays 256 fresh games against each opponent, as the naive learner does in its
place. Messages reach victims with other step sizes and with a recurrent PPO, 16 seeds,
beside silence. A line that is in the results is not made again.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import metaevo
from benchmarks.measure import Results, switches
from inner_loops import opponents, ppo, ppo_rnn
from metaevo import envs
from metaevo.analysis import differences
from metaevo.envs import matrix
from metaevo.rl import game_players

FOLDER = Path(__file__).parent
OPPONENTS = ("naive", "lola", "best_response", "meta_learned", "tit-for-tat")
NUM_GAMES, NUM_SEEDS = 256, 16
SIZES: dict[str, Any] = {"total_timesteps": 32_768, "num_segments": 8}
SIZES |= {"message_size": 2}
VICTIMS = {
    "ppo 1e-3": (ppo, {"num_steps": 256, "features": (32,)}, 1e-3),
    "ppo 5e-3": (ppo, {"num_steps": 256, "features": (32,)}, 5e-3),
    "ppo 64-64": (ppo, {"num_steps": 128}, 2.5e-3),
    "ppo_rnn": (ppo_rnn, {}, 2.5e-3),
}


def payoffs(opponent: str, shaper: Any) -> np.ndarray:
    """Mean payoffs of both over the meta-episode, [2]."""
    game = matrix.make("prisoners_dilemma")
    meta = opponents.Meta(shaper=shaper, **game_players.opponent(opponent, game))
    loop = opponents.make(game, opponents.Config(num_envs=NUM_GAMES), meta)

    @jax.jit
    def run(key):
        step = functools.partial(loop.train, key, loop.meta)
        state = loop.init(key, loop.meta)
        return jax.lax.scan(lambda s, _: step(s), state, None, loop.num_segments)[1]

    metrics = run(jax.random.key(1_000))
    return np.array([metrics[x].mean() for x in ("return", "opponent_return")])


def scores(victim: str, message: Any) -> dict[str, np.ndarray]:
    """Mean return over the lifetime and final return of a victim, [seeds] each."""
    module, sizes, lr = VICTIMS[victim]
    meta = module.Meta(lr=lr)
    if message is not None:
        meta = meta._replace(message=message)
    env = envs.make("gymnax/CartPole-v1")
    training = metaevo.train(
        module.make(env, module.Config(**SIZES, **sizes), meta), NUM_SEEDS
    )
    lifetime = np.nanmean(training.metrics["return"], 1)
    return {"lifetime": lifetime, "final_return": np.asarray(training.final_return)}


def main() -> None:
    kinds = ("shaper", "ally", "adversary")
    given = switches(dict.fromkeys(kinds, ""), sys.argv[1:])
    metaevo.configure()
    results = Results("results", keep=True, folder=FOLDER)
    done = {(x["kind"], x["beside"]) for x in map(json.loads, results.lines)}
    for kind in kinds:
        if not given[kind]:
            continue
        found = metaevo.load(str(given[kind]))
        for beside in OPPONENTS if kind == "shaper" else VICTIMS:
            if (kind, beside) in done:
                continue
            line: dict[str, Any] = {"kind": kind, "beside": beside}
            if kind == "shaper":
                line |= {
                    name: payoffs(beside, shaper).astype(float).round(3).tolist()
                    for name, shaper in (("evolved", found.shaper), ("naive", None))
                }
            else:
                spoken, silent = scores(beside, found.message), scores(beside, None)
                for measure, mine in spoken.items():
                    x = differences.crossed_difference(
                        mine[None], silent[measure][None], (True, False)
                    )
                    interval = [round(y, 2) for y in (x.difference, x.low, x.high)]
                    line[measure] = {
                        "evolved": round(float(mine.mean()), 2),
                        "silence": round(float(silent[measure].mean()), 2),
                        "difference": interval,
                    }
            results.add(**line)


if __name__ == "__main__":
    main()
