"""The memory that a run announces is the peak of its process."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_memory_is_announced_within_a_tenth_of_the_peak(tmp_path):
    """For agents with buffers that live on, from the start and when continued.

    Compiled as users do: of programs with few optimizations it does not hold.
    """
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    for generations in (2, 4):
        command = ["case=pbt of sac Pendulum", f"directory={tmp_path}"]
        out = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.memory",
                *command,
                f"generations={generations}",
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        found = json.loads(out.stdout.splitlines()[-1])
        assert found["live_on_mib"] > 500  # beside which a process is small
        assert 0.9 < found["ratio"] < 1.1, found
