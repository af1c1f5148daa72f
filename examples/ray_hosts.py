"""IMPALA members over three Ray hosts, one of which is lost: the bits of one machine.

    pip install 'metaevo[ray]'
    python examples/ray_hosts.py

The hosts are processes of this machine, as Ray starts them. After the second generation
one is removed with all that runs on it. Its members go to the others, and the run ends
with the numbers that this process finds alone.
"""

import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import ray
from ray.cluster_utils import Cluster

import metaevo
from inner_loops import impala
from searches import impala_vtrace

HOST = {"num_cpus": 1, "object_store_memory": 100_000_000}


def search() -> metaevo.Search:
    """Six generations of V-trace's clips under two delays."""
    return impala_vtrace.search(
        delays=(0, 4),
        population_size=6,
        num_generations=6,
        inner=impala.Config(100_000, num_segments=5),
    )


def lose(cluster, host, metrics: Path, after: int) -> None:
    """Remove a host when `after` generations have ended."""
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < after:
        time.sleep(0.05)
    cluster.remove_node(host, allow_graceful=False)
    print(f"a host is lost after generation {after - 1}", flush=True)


def main() -> bool:
    """Run both; return whether all members' fitness and the solution are equal."""
    quiet = {"held_out_seeds": 0, "wandb": "disabled"}
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(initialize_head=True, head_node_args=HOST)
        hosts = [cluster.add_node(**HOST) for _ in range(2)]
        ray.init(cluster.address, log_to_driver=False)
        there = Path(folder) / "ray"
        threading.Thread(
            target=lose, args=(cluster, hosts[0], there / "metrics.jsonl", 2)
        ).start()
        config = metaevo.RunConfig(directory=str(there), evaluator="ray", **quiet)
        lost = metaevo.run(search(), config, "ray_hosts")
        ray.shutdown()
        cluster.shutdown()
        here = metaevo.RunConfig(directory=str(Path(folder) / "local"), **quiet)
        alone = metaevo.run(search(), here, "ray_hosts")
        fitness = [
            np.array([row["population"] for row in result.metrics], np.float32)
            for result in (lost, alone)
        ]
    same = np.array_equal(*fitness)
    print(f"fitness of {fitness[0].size} members: {'equal' if same else 'different'}")
    return same


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
