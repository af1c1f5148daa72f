"""Which part of zoo:value_loss is worth something in another PPO: bias or weight.

    python -m benchmarks.value_loss_parts

The independent PPO, whose own loss is the squared error, on CartPole and on Acrobot, at
three step sizes, with the evolved loss, with its parts alone, and with squares that
were written by hand: their minimum below or above the target, or an overestimate
three times as dear as an underestimate. Differences from the squared error are paired
by seed. A line that is in the results is not made again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import metaevo
from benchmarks.measure import Results
from metaevo import envs, slots, zoo
from metaevo.analysis import differences
from metaevo.analysis.independent import judge
from metaevo.learned import operations
from metaevo.storage import artifacts

ENVS = ("gymnax/CartPole-v1", "gymnax/Acrobot-v1")
STEP_SIZES = (5e-4, 1e-3, 5e-3)
NUM_SEEDS = 16
MEASURES = ("lifetime", "final_return")


def tilted(bias: float, over: float = 1.0) -> slots.Slot:
    """A square about `bias` standard deviations from the target.

    Args:
        over: weight of errors above the minimum.
    """

    @slots.function
    def loss(value, target, old_value, context):
        del old_value
        error = value - target - bias * context.return_std
        return 0.5 * jnp.where(error > 0, over, 1.0) * error**2

    return loss


def parts() -> dict[str, slots.Slot]:
    """The evolved loss, and it without its bias or without its weight."""
    place = Path(zoo.__path__[0]) / "value_loss"
    op = metaevo.load(place).manifest["slots"]["value_loss"]
    learned = operations.get(op["op"]).rebuild(op)
    params = jax.tree.map(jnp.asarray, artifacts.params(place)["value_loss"])
    still = jax.tree.map(jnp.zeros_like, params)
    return {
        "zoo:value_loss": learned.bind(params),
        "its weight": learned.bind({**params, "bias": still["bias"]}),
        "its bias": learned.bind({**still, "bias": params["bias"]}),
    }


def main() -> None:
    metaevo.configure()
    losses: Mapping[str, Any] = {
        "squared error": tilted(0.0),
        **parts(),
        "minimum 0.65 below": tilted(-0.65),
        "minimum 0.65 above": tilted(0.65),
        "overestimates 3 times": tilted(0.0, 3.0),
    }
    results = Results("value_loss_parts", keep=True)
    done = {(x["env"], x["loss"]) for x in map(json.loads, results.lines)}
    for name in ENVS:
        env, key = envs.make(name), jax.random.key(7)

        def train(loss, env=env, key=key):
            functions = {"value_loss": loss}
            return judge.scores("ppo", env, functions, key, NUM_SEEDS, STEP_SIZES)

        if all((name, x) in done for x in losses):
            continue
        square = train(losses["squared error"])
        for loss, function in losses.items():
            if (name, loss) in done:
                continue
            line = {"env": name, "loss": loss, "seeds": NUM_SEEDS}
            found = train(function)
            for measure in MEASURES:
                scores, base = getattr(found, measure), getattr(square, measure)
                pairs = [
                    *zip(scores, base, strict=True),
                    (scores.mean(0), base.mean(0)),
                ]
                each = [differences.paired_difference(a, b) for a, b in pairs]
                line[measure] = {
                    "mean": scores.mean(1).round(2).tolist(),
                    "minus_square": [
                        [round(y, 2) for y in (x.difference, x.low, x.high)]
                        for x in each
                    ],  # at each step size, and of the mean over them
                }
            results.add(step_sizes=STEP_SIZES, **line)


if __name__ == "__main__":
    main()
