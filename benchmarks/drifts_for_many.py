"""Drifts evolved on three tasks against tuned clips, on five tasks that none saw.

Those are DPO's two constants (`drift`), and networks of LPO's form (`network`) in lives
of full length:

    for s in 0 1 2 3 4; do
        python -m searches.ppo_drift_for_many evolve=network sigma=0.2 \
            inner.total_timesteps=131072 num_generations=16 run.seed=$s \
            run.directory=runs/drift/network$s
    done
    for s in 0 1 2 3 4; do for e in drift clip clip_and_lr; do
        python -m searches.ppo_drift_for_many evolve=$e run.seed=$s \
            run.directory=runs/drift/$e$s
    done; done
    python -m benchmarks.drifts_for_many runs/drift

All candidates train PPO at a step size of 1e-3, `clip_and_lr` at the one that was
tuned. Beside them: PPO as it is, and the drift of DPO as published. Differences are
paired by seed; their intervals count searches and seeds, and p-values are corrected
(Holm) over the tasks. A line that is in the results is not made again, and holds the
numbers that evolved: without a directory the benchmark continues with these.
`only=ENV` trains on one task. MinAtar's networks are dense, as in PureJaxRL; with a
convolution a game takes some ten times as long.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import metaevo
from benchmarks.measure import Results, switches
from inner_loops import ppo
from metaevo import drifts, envs, fitness
from metaevo.analysis import differences, holdout
from metaevo.evaluators.local import LocalEvaluator
from metaevo.storage import artifacts
from metaevo.types import Params, Space
from searches import ppo_drift_for_many

NUM_SEARCHES, NUM_SEEDS = 5, 16
MEASURES = ("lifetime", "final_return")
PAIRS = [
    (ours, rival)
    for ours, rivals in (
        ("drift", ("ppo", "dpo", "clip", "clip_and_lr")),
        ("network", ("ppo", "dpo", "drift", "clip", "clip_and_lr")),
    )
    for rival in rivals
]
GROUPS = ("drift", "network", "clip", "clip_and_lr")
META = ppo.Meta(lr=1e-3)
CONTROL = ppo.Config(
    131_072, 8, normalize_observation=True, normalize_reward=True, features=(32, 32)
)
MINATAR = ppo.Config(524_288, 64, 32, num_minibatches=8, activation="relu")
TASKS = {
    "gymnax/MountainCarContinuous-v0": CONTROL,
    "brax/inverted_pendulum": CONTROL,
    "gymnax/Breakout-MinAtar": MINATAR,
    "gymnax/SpaceInvaders-MinAtar": MINATAR,
    "gymnax/Asterix-MinAtar": MINATAR,
}


def candidates(root: Path) -> dict[str, list[Params]]:
    """The solutions of each group of searches that is there."""
    return {
        group: [artifacts.params(root / f"{group}{i}") for i in range(NUM_SEARCHES)]
        for group in GROUPS
        if (root / f"{group}0").exists()
    }


def space_of(group: str) -> Space:
    """Return the space in which the solutions of a group are params."""
    if group == "ppo":
        return holdout.HAND_MADE
    if group == "dpo":
        return holdout.fixed({"drift": drifts.dpo})
    return ppo_drift_for_many.search(evolve=group).space


def trained(env: str, space: Space, members: list[Params]) -> dict[str, np.ndarray]:
    """Scores of each member, [members, seeds] for each measure."""
    loop = ppo.make(envs.make(env), TASKS[env], META)
    search = ppo_drift_for_many.search()._replace(
        inner_loop=loop,
        fitness=fitness.area_under_curve,
        vary=None,
    )
    runs, _ = holdout.train(
        search,
        space,
        {str(i): x for i, x in enumerate(members)},
        jax.random.key(0),
        NUM_SEEDS,
        LocalEvaluator,
    )
    lifetime = np.stack([x.fitness[0] for x in runs.values()])
    final = np.stack([x.final_return[0] for x in runs.values()])
    return {"lifetime": lifetime.astype(float), "final_return": final.astype(float)}


def verdicts(table: Mapping[tuple[str, str], Mapping[str, np.ndarray]]) -> list[dict]:
    """Drifts and networks against each other group, task by task.

    Args:
        table: (task, group) -> measure -> [members, seeds] scores.
    """
    lines, tasks = [], list(dict.fromkeys(env for env, _ in table))
    for measure in MEASURES:
        for ours, rival in PAIRS:
            searched = (True, rival in GROUPS)
            family = differences.holm(
                [
                    differences.crossed_difference(
                        table[env, ours][measure],
                        table[env, rival][measure],
                        searched,
                    )
                    for env in tasks
                ]
            )
            lines += [
                {
                    "measure": measure,
                    "ours": ours,
                    "rival": rival,
                    "env": env,
                    "difference": round(x.difference, 3),
                    "low": round(x.low, 3),
                    "high": round(x.high, 3),
                    "p_corrected": x.p_corrected,
                    "verdict": x.verdict,
                }
                for env, x in zip(tasks, family, strict=True)
            ]
    return lines


def main(arguments: list[str]) -> None:
    root, options = "", arguments
    if arguments and "=" not in arguments[0]:
        root, *options = arguments
    only = switches({"only": ""}, options)["only"]
    if only and only not in TASKS:
        sys.exit(f"only={only}: expected one of {', '.join(TASKS)}")
    metaevo.configure()
    results = Results("drifts_for_many", keep=True)
    lines = [json.loads(x) for x in results.lines]
    found = {x["group"]: x["members"] for x in lines}
    found |= candidates(Path(root)) if root else {}
    if not found.keys() >= set(GROUPS):
        sys.exit("expected the directory of the searches")
    found |= {"ppo": [holdout.NOTHING], "dpo": [holdout.NOTHING]}
    done = {(x["env"], x["group"]) for x in lines}
    for env in TASKS:
        for group in ("ppo", "dpo", *GROUPS):
            if (env, group) in done or only not in ("", env):
                continue
            members = [
                jax.tree.map(np.float32, x, is_leaf=lambda x: isinstance(x, list))
                for x in found[group]
            ]
            scores = trained(env, space_of(group), members)
            results.add(
                env=env,
                group=group,
                seeds=NUM_SEEDS,
                frames=TASKS[env].total_timesteps,
                members=[_numbers(x) for x in members],
                mean={k: round(float(x.mean()), 3) for k, x in scores.items()},
                failed=int(sum((~np.isfinite(x)).sum() for x in scores.values())),
                scores={k: x.round(3).tolist() for k, x in scores.items()},
            )
    table = {
        (x["env"], x["group"]): {k: np.asarray(v) for k, v in x["scores"].items()}
        for x in map(json.loads, results.lines)
    }
    whole = {env for env, _ in table if all((env, x) in table for x in found)}
    compared = Results("drifts_for_many_verdicts")
    for line in verdicts({k: v for k, v in table.items() if k[0] in whole}):
        compared.add(seeds=NUM_SEEDS, searches=NUM_SEARCHES, **line)


def _numbers(params: Params) -> Any:
    """The numbers of a member as they are in its artifact."""
    return jax.tree.map(lambda x: np.asarray(x, float).round(6).tolist(), params)


if __name__ == "__main__":
    main(sys.argv[1:])
