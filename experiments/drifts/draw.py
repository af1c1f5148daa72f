"""Draw the networks of LPO's form that evolved, beside PPO and DPO.

    python -m experiments.drifts.draw

The slope of the objective r A − D(r, A) by r, as the paper draws it, of the members in
`benchmarks/results/cpu/drifts_for_many.jsonl`. Writes `docs/images/lpo.png`.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np

from metaevo import drifts
from metaevo.slots import Context

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[2]
RATIO, ADVANTAGE = np.linspace(0.5, 1.8, 131), np.linspace(-2.0, 2.0, 81)


def evolved() -> dict:
    """Name -> drift, of each search."""
    path = ROOT / "benchmarks" / "results" / "cpu" / "drifts_for_many.jsonl"
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    members = next(x["members"] for x in lines if x["group"] == "network")
    learned = drifts.lpo_network(features=(16,))
    return {
        f"search {i}": learned.bind(
            {name: jnp.asarray(x, jnp.float32) for name, x in member["drift"].items()}
        )
        for i, member in enumerate(members)
    }


def slopes(drift) -> np.ndarray:
    """Of r A − D by r, [advantages, ratios]."""

    def objective(ratio, advantage):
        return ratio * advantage - drift(jnp.log(ratio), advantage, 0.2, Context())

    by_ratio = jax.vmap(jax.grad(objective), (0, None))
    return jax.vmap(by_ratio, (None, 0))(jnp.asarray(RATIO), jnp.asarray(ADVANTAGE))


def main() -> None:
    found = {"PPO": drifts.ppo_clip, "DPO": drifts.dpo, **evolved()}
    figure, axes = plt.subplots(
        1, len(found), figsize=(17, 3), sharey=True, layout="constrained"
    )
    for ax, (name, drift) in zip(axes, found.items(), strict=True):
        image = ax.pcolormesh(
            RATIO, ADVANTAGE, slopes(drift), cmap="RdBu", vmin=-2.0, vmax=2.0
        )
        ax.axvline(1.0, linewidth=0.5, color="black")
        ax.set(title=name, xlabel="ratio r")
    axes[0].set_ylabel("advantage A")
    figure.colorbar(image, ax=axes, label="slope of r A - D by r")
    figure.savefig(ROOT / "docs" / "images" / "lpo.png", dpi=90)


if __name__ == "__main__":
    main()
