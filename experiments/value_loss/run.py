"""PureJaxRL's figure: evolved value losses and the curves of agents that learn by them.

    python -m experiments.value_loss.run                         60 minutes on one core

Four searches of `ppo_weighted_value_loss` with 48 generations, 8e8 frames in all. Each
solution is trained on 64 seeds that no search saw, beside the squared error, which is
where the searches start, and PPO's clipped loss. One line per candidate: its fitness
and final return by seed, the mean curve with its standard error, and for a search the
loss on a grid of value - target. A line that is in the results is not made again. The
figure is docs/images/value_loss_curves.png.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import metaevo

metaevo.configure()

import jax  # noqa: E402

from benchmarks.measure import Results  # noqa: E402
from metaevo import losses  # noqa: E402
from metaevo.analysis import differences, holdout  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from metaevo.slots import Context  # noqa: E402
from searches import ppo_weighted_value_loss  # noqa: E402

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PICTURE = ROOT / "docs" / "images" / "value_loss_curves.png"
NUM_SEARCHES, NUM_SEEDS, GENERATIONS = 4, 64, 48
ERRORS = np.linspace(-3.0, 3.0, 121)  # value - target, in deviations of the targets


def scored(search, space, params) -> dict:
    """Scores and the curve of one candidate, on seeds that no search saw."""
    runs, _ = holdout.train(
        *(search, space, {"": params}, jax.random.key(2**31 + 1), NUM_SEEDS),
        LocalEvaluator,
    )
    found = runs[""]
    curve = np.asarray(found.train[0]["return"], float)
    error = np.nanstd(curve, 0, ddof=1) / len(curve) ** 0.5
    return {
        "fitness": np.round(found.fitness[0].astype(float), 2).tolist(),
        "final_return": np.round(found.final_return[0].astype(float), 2).tolist(),
        "curve": np.round(np.nanmean(curve, 0), 2).tolist(),
        "curve_error": np.round(error, 2).tolist(),
    }


def on_grid(function) -> list[float]:
    """A loss at `ERRORS` where the target is 0 with a deviation of 1."""
    context = Context(0.5, return_std=1.0)
    found = function(ERRORS.astype(np.float32), 0.0, 0.0, context)
    return np.round(np.asarray(found, float), 5).tolist()


def searched(seed: int) -> dict:
    """The line of a search."""
    search = ppo_weighted_value_loss.search(num_generations=GENERATIONS)
    config = metaevo.RunConfig(
        seed=seed,
        directory=str(ROOT / "runs" / "value_loss_curves" / f"seed{seed}"),
        held_out_seeds=0,
        wandb="disabled",
    )
    result = metaevo.run(search, config)
    means = [round(float(x["fitness_mean"]), 2) for x in result.metrics]
    frames = int(sum(x["frames"] for x in result.metrics[-1:]))
    line = scored(search, search.space, result.solution)
    loss = on_grid(result.artifact.value_loss)
    return line | {"frames": frames, "mean": means, "loss": loss}


def by_hand(way: str) -> dict:
    """The line of a hand-made loss."""
    search = ppo_weighted_value_loss.search(num_generations=GENERATIONS)
    chosen = {"square": losses.square, "clipped": losses.clipped_square}[way]
    space = holdout.fixed({"value_loss": chosen})
    return scored(search, space, holdout.NOTHING)


def verdicts(lines: list[dict]) -> None:
    """Print the searches less each hand-made loss; seeds are paired."""
    for measure in ("fitness", "final_return"):
        mine = np.array([x[measure] for x in lines if x["way"] == "evolved"])
        for way in ("square", "clipped"):
            rival = np.array([x[measure] for x in lines if x["way"] == way])
            found = differences.crossed_difference(mine, rival, (True, False))
            interval = f"[{found.low:+.1f}, {found.high:+.1f}]"
            each = np.round((mine - rival).mean(1), 1).tolist()
            print(f"{measure}, less {way}: {found.difference:+.1f} {interval}; {each}")
        print(measure, {x["way"]: np.mean(x[measure]).round(1) for x in lines})


def draw(lines: list[dict]) -> None:
    """Left, the losses; right, the curves of agents that learn by them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    evolved = [x for x in lines if x["way"] == "evolved"]
    for i, line in enumerate(evolved):
        label = "evolved, four searches" if i == 0 else None
        left.plot(ERRORS, line["loss"], color="C0", alpha=0.7, label=label)
    left.plot(ERRORS, 0.5 * ERRORS**2, color="C1", label="half the squared error")
    left.set(xlabel="value - target, deviations of the targets", ylabel="loss")
    left.set_ylim(0, 8)
    left.legend(frameon=False, fontsize=8)
    shown = {"evolved": "C0", "square": "C1", "clipped": "C2"}
    names = {"evolved": "evolved", "square": "squared error", "clipped": "PPO's own"}
    for way, color in shown.items():
        chosen = [x for x in lines if x["way"] == way]
        curves = np.array([x["curve"] for x in chosen])
        places = (np.arange(curves.shape[1]) + 1) * 32_768 / curves.shape[1]
        for i, curve in enumerate(curves):
            label = names[way] if i == 0 else None
            right.plot(places, curve, color=color, alpha=0.7, label=label)
        if len(chosen) == 1:
            error = 1.96 * np.array(chosen[0]["curve_error"])
            ends = curves[0] - error, curves[0] + error
            right.fill_between(places, *ends, color=color, alpha=0.2, linewidth=0)
    right.set(xlabel="frames", ylabel="return on CartPole, 64 seeds")
    right.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    results = Results("results", keep=True, folder=FOLDER)
    wanted = [("square", 0), ("clipped", 0)]
    wanted += [("evolved", seed) for seed in range(NUM_SEARCHES)]
    for way, seed in wanted:
        known = {(x["way"], x["seed"]) for x in map(json.loads, results.lines)}
        if (way, seed) not in known:
            line = searched(seed) if way == "evolved" else by_hand(way)
            results.add(way=way, seed=seed, **line)
    lines = [json.loads(x) for x in results.lines]
    verdicts(lines)
    draw(lines)


if __name__ == "__main__":
    main()
