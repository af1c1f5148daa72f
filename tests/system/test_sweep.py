"""wandb's own programs drive the shipped sweep, against a server on this machine."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import wandb_server
import yaml
from runs import records

from metaevo.engine.loggers import wandb as mirror

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "examples" / "sweeps" / "ppo_value_loss.yaml"
NUM_RUNS = 2


def small():
    """The shipped file, at sizes of seconds: what it sweeps, and how, stays.

    Strategies are swept beside it.
    """
    sweep = yaml.safe_load(SHIPPED.read_text())
    sweep["parameters"] |= {
        "population_size": {"values": [4, 6]},
        "strategy": {"values": ["snes", "sep_cma_es"]},
        "num_generations": {"value": 2},
    }
    sizes = "inner.total_timesteps=2048", "inner.num_segments=4", "num_seeds=1"
    values = sweep["command"].index("${args_no_hyphens}")
    sweep["command"][values:values] = [*sizes, "run.held_out_seeds=2"]
    return sweep


def drive(server, sweep, folder):
    """Call `wandb sweep` and `wandb agent` as its page does; the agent's output."""
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    environment = server.environment() | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }

    def wandb(*arguments):
        return subprocess.run(
            ["wandb", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )

    made = wandb("sweep", "sweep.yaml")
    name = f"{wandb_server.ENTITY}/metaevo/{wandb_server.SWEEP}"
    assert f"wandb agent {name}" in made.stderr, made.stderr
    agent = wandb("agent", "--count", str(NUM_RUNS), name)
    assert agent.returncode == 0, agent.stderr
    return agent.stdout + agent.stderr


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    with wandb_server.serve() as server:
        output = drive(server, small(), folder)
    return server, folder / "runs" / "ppo_value_loss" / "sweep-sweep123", output


def test_all_runs_end_on_the_server(swept):
    server, folder, output = swept
    assert server.unknown == []
    names = [f"run{i}" for i in range(NUM_RUNS)]
    assert list(server.runs) == names, output
    assert sorted(path.name for path in folder.iterdir()) == names
    assert {run.sweep for run in server.runs.values()} == {wandb_server.SWEEP}
    assert {run.exit_code for run in server.runs.values()} == {0}, output


def test_each_run_has_the_values_that_the_sweep_gave_it(swept):
    server, folder, _ = swept
    for name, run in server.runs.items():
        values = server.handed_out[name]
        assert set(values) == set(small()["parameters"])
        manifest = json.loads((folder / name / "manifest.json").read_text())
        used = manifest["identity"]["settings"]
        for key, value in values.items():
            assert run.config[key] == pytest.approx(value)
            assert key == "num_generations" or used[key] == pytest.approx(value)
        assert run.config["run.seed"] == 0
        assert run.tags == ["value_loss"]
    sigmas = {run.config["sigma"] for run in server.runs.values()}
    assert len(sigmas) == NUM_RUNS


def test_each_run_has_the_metric_that_is_maximized(swept):
    server, folder, _ = swept
    metric = yaml.safe_load(SHIPPED.read_text())["metric"]["name"]
    for name, run in server.runs.items():
        expected = mirror.summary(folder / name)
        assert math.isfinite(run.summary[metric])
        assert {k: run.summary[k] for k in expected} == expected
    assert len({run.summary[metric] for run in server.runs.values()}) > 1


def test_each_run_has_every_generation(swept):
    server, folder, _ = swept
    for name, run in server.runs.items():
        rows = [row for row in run.history if "fitness_mean" in row]
        ours = records(folder / name)
        assert (
            [row["_step"] for row in rows] == [x["generation"] for x in ours] == [0, 1]
        )
        for row, record in zip(rows, ours, strict=True):
            assert row["fitness_mean"] == pytest.approx(record["fitness_mean"])


def test_each_run_has_its_artifact(swept):
    server, folder, _ = swept
    for name, run in server.runs.items():
        (made,) = [x for x in run.artifacts if x.asked["artifactTypeName"] == "evolved"]
        assert made.committed
        assert json.loads(made.asked["metadata"]) == mirror.summary(folder / name)
        solution = folder / name / "solution"
        assert made.asked["description"] == (solution / "README.md").read_text()
        assert set(made.files) >= {path.name for path in solution.iterdir()}
        for path in solution.iterdir():
            assert made.files[path.name] == path.read_bytes()
