"""The picture of docs/log/cheap_talk.md, from two finished runs.

    python scripts/cheap_talk.py ADVERSARY ALLY [FILE]

draws the victims' learning curves on held-out seeds, and the first number of both
messages over the angle and the angular velocity of the pole, to
docs/images/cheap_talk.png.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

import metaevo
from metaevo import envs, rewards
from metaevo.analysis import holdout, stats
from metaevo.analysis.plots import figures

LABELS = {"start": "a random message", "hand-made": "a constant message"}
OURS = {"adversary": "--", "ally": "-"}


def curves(axes, name: str, directory: Path, controls: bool) -> None:
    """Draw interquartile means over seeds with bootstrap 95 % intervals."""
    runs, facts = holdout.load(directory / "held_out")
    (per_segment,) = facts["frames_per_segment"]
    for candidate, run in runs.items():
        if candidate != "solution" and not controls:
            continue
        curve = run.train[0]["return"]
        rows = [stats.bootstrap(x[np.isfinite(x)], stats.iqm)[:3] for x in curve.T]
        iqm, low, high = np.array(rows).T
        frames = per_segment * np.arange(1, len(rows) + 1)
        label = LABELS.get(candidate, f"the {name}'s message")
        style = OURS[name] if candidate == "solution" else "-"
        color = figures.COLORS[candidate]
        axes.plot(frames, iqm, style, color=color, label=label)
        axes.fill_between(frames, low, high, color=color, alpha=0.2, lw=0)
    axes.set(xlabel="frames", ylabel="training return of the victim")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def message(axes, name: str, directory: Path) -> None:
    """Draw number 0 where the cart stands still in the middle."""
    units = np.array(rewards.units(envs.make("gymnax/CartPole-v1")), np.float32)
    angle, velocity = np.meshgrid(*[np.linspace(-1, 1, 101)] * 2)
    obs = np.zeros((*angle.shape, 4), np.float32)
    obs[..., 2], obs[..., 3] = angle * units[2], velocity * units[3]
    said = np.asarray(metaevo.load(directory).message(obs))[..., 0]
    found = axes.contourf(obs[..., 2], obs[..., 3], said, 11, cmap="RdBu_r")
    axes.figure.colorbar(found, ax=axes)
    axes.set(xlabel="angle (rad)", ylabel="angular velocity (rad/s)")
    axes.set_title(f"number 0 of the {name}'s message", fontsize=10)


def main(adversary: str, ally: str, file: str = "docs/images/cheap_talk.png") -> None:
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    left, *others = figure.subplots(1, 3)
    for name, directory in (("adversary", adversary), ("ally", ally)):
        curves(left, name, Path(directory), controls=name == "ally")
        message(others.pop(0), name, Path(directory))
    left.legend(loc=(0.45, 0.68), fontsize=8, frameon=False)
    left.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
