"""Keep what `metaevo tune choose=true` found as rivals of searches in its setting.

    metaevo tune dqn env=gymnax/CartPole-v1 inner.total_timesteps=24000 ... choose=true
    python -m benchmarks.kept_rivals runs/dqn/seed0-...

It writes `metaevo/rivals/LOOP-TASK-FRAMES.json`: the setting, and the scores by
held-out seed of the static choices and of the numbers that were tuned under them. Those
that name a `source` were added by hand from an experiment.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

import jax
import numpy as np

from metaevo.analysis import holdout
from metaevo.cli import runs
from metaevo.engine import kept_rivals
from metaevo.storage import artifacts, run_directory


def rivals(directory: Path) -> dict:
    """Return the setting of a run of `metaevo tune`, and its rivals with scores."""
    search = runs.remade(runs.opened(directory))
    manifest = run_directory.read_manifest(directory)
    settings = manifest["identity"]["settings"]
    chosen = [x for x in (settings["choices"] or "").split(";") if x]
    found, facts = holdout.load(run_directory.paths(directory).held_out)
    records = (directory / "metrics.jsonl").read_text().splitlines()
    name = "tuned static" if chosen else "tuned"
    candidates = {name: ("solution", json.loads(records[-1])["frames"])}
    # The start is the choice alone only if the numbers start at their defaults.
    if chosen and search.space.starts_hand_made:
        candidates = {"best static": ("start", 0)} | candidates
    params = artifacts.params(run_directory.paths(directory).solution)
    numbers = jax.tree.map(lambda x: np.round(np.float64(x), 5).tolist(), params)
    each = [
        {
            "name": name,
            "changes": chosen,
            "numbers": numbers if tuned else None,
            "tuned": tuned,
            "scores": {
                facts["measure"]: _rounded(found[candidate].fitness[0]),
                "final return": _rounded(found[candidate].final_return[0]),
            },
        }
        for name, (candidate, tuned) in candidates.items()
    ]
    return {
        "setting": kept_rivals.setting(holdout.as_hand_made(search)),
        "command": [x for x in manifest["changes"] if not x.startswith("run.")],
        "metaevo": manifest["versions"]["metaevo"],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rivals": each,
    }


def _rounded(scores: np.ndarray) -> list[float]:
    return [round(float(x), 2) for x in scores]


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for given in sys.argv[1:]:
        kept = rivals(Path(given))
        (loop, *_), env = kept["setting"]["loop"], kept["setting"]["env"]
        task = env.partition("/")[2].partition("-v")[0]
        frames = kept["setting"]["config"]["total_timesteps"]
        path = kept_rivals.FOLDER / f"{loop}-{task}-{frames}.json"
        parts = [f"{json.dumps(k)}: {json.dumps(x)}" for k, x in kept.items()]
        path.write_text("{" + ",\n ".join(parts) + "}\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
