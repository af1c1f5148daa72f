"""Searches on a Ray cluster whose hosts die, stop and join.

Hosts are those of `ray.cluster_utils.Cluster`: processes of this machine with a core
each, which are killed, stopped and added for real.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import ray
from ray.cluster_utils import Cluster

import metaevo
from benchmarks import reliability_processes as processes
from benchmarks import tiny
from inner_loops import dqn, ppo
from metaevo.evaluators import ray_hosts
from metaevo.evaluators.local import LocalEvaluator
from metaevo.evaluators.ray import RayEvaluator
from metaevo.types import Proposal
from searches import dqn_pbt, ppo_pbt
from strategies.asha import asha


def host() -> dict[str, Any]:
    """Arguments of a host with one core."""
    given = {"num_cpus": 1, "object_store_memory": 100_000_000}
    with contextlib.ExitStack() as stack:
        # For ports that it chooses itself Ray waits 15 s, also on a busy machine.
        for name in (
            "metrics_agent",
            "dashboard_agent_listen",
            "runtime_env_agent",
            "metrics_export",
        ):
            free = stack.enter_context(socket.socket())
            free.bind(("", 0))
            given[f"{name}_port"] = free.getsockname()[1]
    return given


digest = processes.digest


@contextlib.contextmanager
def cluster(number: int) -> Iterator[Cluster]:
    """That many hosts with one core each."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    head = {"include_dashboard": False}
    with contextlib.ExitStack() as stack:
        made = _patiently(
            lambda: Cluster(initialize_head=True, head_node_args={**head, **host()})
        )
        stack.callback(_quietly, made.shutdown)
        for _ in range(number - 1):
            _patiently(lambda: made.add_node(**host()))
        ray.init(made.address, logging_level=logging.ERROR, log_to_driver=False)
        stack.callback(ray.shutdown)
        yield made


def _patiently(make: Callable[[], Any]) -> Any:
    """On a busy machine Ray's processes time out on each other."""
    for _ in range(4):
        with contextlib.suppress(Exception):
            return make()
    return make()


def _quietly(end: Callable[[], None]) -> None:
    """On a busy machine its own processes may be gone before it has ended them."""
    with contextlib.suppress(Exception):
        end()


Event = Callable[[ray_hosts.Pool], bool]  # says whether it has happened


def run(
    directory: str | Path,
    search: metaevo.Search,
    events: Mapping[int, Event] | None = None,
    checkpoint_every: int = 1,
) -> dict[str, Any]:
    """Run a search on the cluster, and let events happen in its generations.

    Returns:
        its digest, seconds per generation, and what the pool went through.
    """
    events = dict(events or {})
    log = Path(directory) / "metrics.jsonl"
    pools, ends = [], []

    class Recorded(ray_hosts.Pool):
        def __init__(self, *args):
            super().__init__(*args)
            pools.append(self)

    def should_stop() -> bool:
        done = log.read_bytes().count(b"\n") if log.exists() else 0
        while len(ends) < done:
            ends.append(time.monotonic())
        for due in [generation for generation in events if generation <= done]:
            if pools and events[due](pools[0]):
                del events[due]
        return False

    config = metaevo.RunConfig(
        directory=str(directory),
        evaluator="ray",
        held_out_seeds=0,
        wandb="disabled",
        checkpoint_every=checkpoint_every,
    )
    original, ray_hosts.Pool = ray_hosts.Pool, Recorded
    try:
        metaevo.run(search, config, "reliability", should_stop=should_stop)
    finally:
        ray_hosts.Pool = original
    assert not events, f"never happened: {sorted(events)}"
    (pool,) = pools
    return {
        "digest": digest(Path(directory)),
        "seconds": [round(b - a, 4) for a, b in itertools.pairwise(ends)],
        "hosts lost": pool.losses,
        "tasks given twice": pool.doubles,
        "MB moved": round(pool.moved / 1e6, 3),
        "trained again": pool.remade,
    }


def _busy(pool: ray_hosts.Pool) -> ray_hosts.Actor | None:
    """An actor in the middle of something."""
    for actor in pool.actors:
        if actor.task and time.monotonic() - actor.task.since > 0.02:
            return actor
    return None


def kill(pool: ray_hosts.Pool) -> bool:
    """kill -9 of an actor at work."""
    actor = _busy(pool)
    if actor:
        os.kill(actor.pid, signal.SIGKILL)
    return actor is not None


def stop(seconds: float) -> Event:
    """An actor at work answers late."""

    def event(pool: ray_hosts.Pool) -> bool:
        actor = _busy(pool)
        if actor is None:
            return False
        os.kill(actor.pid, signal.SIGSTOP)
        threading.Timer(seconds, _wake, (actor.pid,)).start()
        return True

    return event


def _wake(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # replaced in the meantime
        os.kill(pid, signal.SIGCONT)


def add(made: Cluster) -> Event:
    """A host joins; the search waits for its actor, so that it takes part."""

    def event(pool: ray_hosts.Pool) -> bool:
        before = len(_up(pool))
        _patiently(lambda: made.add_node(**host()))
        while len(_up(pool)) <= before:
            pool.poll()
            time.sleep(0.05)
        return True

    return event


def _up(pool: ray_hosts.Pool) -> list[ray_hosts.Actor]:
    return [actor for actor in pool.actors if actor.ready is None]


# --- commands -------------------------------------------------------------------------


def same_bits(length: int = 20, steps: int = 2000) -> Iterator[dict[str, Any]]:
    """One search on every layout; the digest of its state after the last generation."""
    first = []
    search = tiny.search(num_generations=length, steps=steps)
    options = [f"num_generations={length}", f"steps={steps}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def row(layout: str, directory: Path, **facts: Any) -> dict[str, Any]:
            found = digest(directory)
            first.append(found)
            same = found == first[0]
            return {"layout": layout, "digest": found, "same": same, **facts}

        for devices in (1, 2, 4):
            directory = folder / f"local{devices}"
            process = processes.start(
                directory,
                *options,
                f"run.devices={devices}",
                JAX_NUM_CPU_DEVICES="4",
            )
            assert processes.ended(process) == 0
            yield row(f"{devices} of 4 virtual devices", directory)
        if shutil.which("mpiexec"):
            command = ["mpiexec", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
            program = [sys.executable, "-m", "benchmarks.tiny", *options]
            program += [f"run.directory={folder / 'mpi'}", *processes.QUIET]
            subprocess.run(
                [*command, *program, "run.distributed=true"],
                cwd=processes.ROOT,
                check=True,
                capture_output=True,
                timeout=1200,
            )
            yield row("2 processes, mpiexec", folder / "mpi")
        middle = length // 2
        for number, events in (
            (1, {}),
            (2, {"an actor killed -9": kill, "an actor stopped for 60 s": stop(60.0)}),
            (2, {"a host added": add}),
            (3, {}),
        ):
            with cluster(number) as made:
                cases = {"": {}}
                for what, event in events.items():
                    event = add(made) if event is add else event
                    cases[f", {what}"] = {middle: event}
                for i, (what, case) in enumerate(cases.items()):
                    directory = folder / f"ray{number}-{len(events)}-{i}"
                    facts = run(directory, search, case)
                    facts = {k: facts[k] for k in ("hosts lost", "tasks given twice")}
                    yield row(f"Ray, {number} actor(s){what}", directory, **facts)


def lives(only: str = "", checkpoint_every: int = 10) -> Iterator[dict[str, Any]]:
    """Members that live on, on every layout: PBT of PPO and of DQN, and ASHA of PPO.

    Args:
        only: a part of the name of a search.
    """
    every = {"checkpoint_every": checkpoint_every}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what, search in _living().items():
            if only not in what:
                continue
            config = metaevo.RunConfig(
                directory=str(folder / what),
                held_out_seeds=0,
                wandb="disabled",
                **every,
            )
            peak = _peak(
                lambda search=search, config=config: metaevo.run(search, config, what)
            )
            first = digest(folder / what)
            carried = LocalEvaluator(search).carried_bytes(_proposal(search))
            yield {
                "what": what,
                "layout": "local",
                "digest": first,
                "same": True,
                "MB of members": round(carried / 1e6, 2),
                "driver's peak_MB": peak,
            }
            for layout, number, event in _LAYOUTS:
                if "every 30 s" in layout and "ASHA" not in what:
                    continue
                with cluster(number) as made, contextlib.ExitStack() as ending:
                    directory = folder / f"{what}, {layout}"
                    events = {12: event(made, ending)} if event else {}
                    facts: dict[str, Any] = {}
                    peak = _peak(
                        lambda d=directory, s=search, e=events, f=facts: f.update(
                            run(d, s, e, **every)
                        )
                    )
                    facts.pop("seconds")
                    found = facts.pop("digest")
                    yield {
                        "what": what,
                        "layout": f"Ray, {layout}",
                        "digest": found,
                        "same": found == first,
                        **facts,
                        "driver's peak_MB": peak,
                    }


def _living() -> dict[str, metaevo.Search]:
    """Searches of 8 members that live on for 20 generations or more."""
    ppo_config = ppo.Config(160_000, num_segments=20, anneal_lr=False)
    dqn_config = dqn.Config(20_000, 1_000, num_segments=20, buffer_size=5_000)
    pbt = ppo_pbt.search(population_size=8, inner=ppo_config)
    halving = pbt._replace(strategy=asha(pbt.space, 8, 20), num_generations=60)
    found = {
        "PBT of PPO": pbt,
        "PBT of DQN": dqn_pbt.search(population_size=8, inner=dqn_config),
        "ASHA of PPO": halving,
    }
    return {k: x._replace(chunk_size=2) for k, x in found.items()}


def _proposal(search: metaevo.Search) -> Proposal:
    def asked(key):
        return search.strategy.ask(key, search.strategy.init(key))[0]

    return jax.eval_shape(asked, jax.random.key(0))


def _peak(do: Callable[[], Any]) -> float:
    """The most memory of this process in MB while it does something."""
    Path("/proc/self/clear_refs").write_text("5")
    do()
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (x.split()[1] for x in lines if x.startswith("VmHWM"))
    return round(int(found) / 1024)


def _lost_host(made: Cluster, ending: contextlib.ExitStack) -> Event:
    """A host ends with all that runs on it, the states of members too."""
    del ending

    def event(pool: ray_hosts.Pool) -> bool:
        node = next(iter(made.worker_nodes))
        made.remove_node(node, allow_graceful=False)
        return True

    return event


def _killing(seconds: float) -> Callable[[Cluster, contextlib.ExitStack], Event]:
    """One actor after the other is killed -9."""

    def event_of(made: Cluster, ending: contextlib.ExitStack) -> Event:
        over = threading.Event()
        ending.callback(over.set)

        def event(pool: ray_hosts.Pool) -> bool:
            def kill_each() -> None:
                for turn in itertools.count():
                    if over.wait(seconds):
                        return
                    up = _up(pool)
                    if up:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(up[turn % len(up)].pid, signal.SIGKILL)

            threading.Thread(target=kill_each, daemon=True).start()
            return True

        return event

    return event_of


_LAYOUTS = (
    ("1 host", 1, None),
    ("2 hosts", 2, None),
    ("3 hosts", 3, None),
    ("2 hosts, an actor killed -9", 2, lambda made, ending: kill),
    ("2 hosts, an actor stopped for 60 s", 2, lambda made, ending: stop(60.0)),
    ("2 hosts, one of which is lost", 2, _lost_host),
    ("1 host, another joins", 1, lambda made, ending: add(made)),
    ("3 hosts, an actor killed -9 every 30 s", 3, _killing(30.0)),
)


def _in_turns(
    evaluators: Mapping[str, Any], proposal: Proposal, repeats: int
) -> dict[str, list[float]]:
    """Return the seconds of each evaluator's generations, made in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in evaluators}
    for i in range(repeats):
        for name, evaluate in evaluators.items():
            began = time.perf_counter()
            evaluate(jax.random.key(i), proposal, ())
            seconds[name].append(time.perf_counter() - began)
    return seconds


def overhead(repeats: int = 7) -> Iterator[dict[str, Any]]:
    """A generation on one core, through Ray and not, in turns; and one with a kill.

    The members do next to nothing, so the difference is what Ray costs.
    """
    with cluster(2), ray_hosts.pool(None) as pool:
        for size in (64, 1024, 16_384):
            search = tiny.search(population_size=size, chunk_size=64, steps=4)
            proposal = Proposal({"lr": jax.numpy.linspace(-1.0, 1.0, size)})
            here = LocalEvaluator(search, jax.devices()[:1])
            there = RayEvaluator(search, pool)
            seconds = _in_turns({"local": here, "ray": there}, proposal, repeats + 3)
            local, through = (statistics.median(x[3:]) for x in seconds.values())
            while not all(a.task is None and a.compiled for a in _up(pool)):
                there(jax.random.key(0), proposal, ())
            os.kill(_up(pool)[0].pid, signal.SIGKILL)
            began = time.perf_counter()
            there(jax.random.key(0), proposal, ())
            killed = time.perf_counter() - began
            yield {
                "members": size,
                "local, 1 device_ms": round(1e3 * local, 1),
                "Ray, 2 hosts_ms": round(1e3 * through, 1),
                "Ray, a host killed_ms": round(1e3 * killed, 1),
                "compiling_s": round(seconds["ray"][0], 1),
            }
            while len(_up(pool)) < 2:
                pool.poll()
                time.sleep(0.1)


def hosts(repeats: int = 7) -> Iterator[dict[str, Any]]:
    """Generations that are mostly messages, on 1 to 4 hosts of this machine."""
    size, width = 1024, 8
    search = tiny.search(population_size=size, chunk_size=width, steps=4)
    proposal = Proposal({"lr": jax.numpy.linspace(-1.0, 1.0, size)})
    here = LocalEvaluator(search, jax.devices()[:1])
    for number in range(1, 5):
        with cluster(number), ray_hosts.pool(None) as pool:
            there = RayEvaluator(search, pool)
            while not all(a.task is None and a.compiled for a in _up(pool)):
                there(jax.random.key(0), proposal, ())
            seconds = _in_turns({"local": here, "ray": there}, proposal, repeats + 2)
            local, through = (statistics.median(x[2:]) for x in seconds.values())
            # A host gets a message and sends one.
            yield {
                "hosts": number,
                "local, 1 device_ms": round(1e3 * local, 1),
                "a generation_ms": round(1e3 * through, 1),
                "messages a second": round(2 * number / through),
                "members a second": round(size / through),
            }


def driver(tasks: int = 1000, numbers: int = 1000) -> dict[str, Any]:
    """Time the driver's work for a task: members out, an answer in, nothing done.

    An estimate for as many hosts: tasks are as many, and the actors are here.
    """
    with cluster(1):

        @ray.remote(num_cpus=0)
        class Idle:
            def work(self, params):
                return np.zeros(8, np.float32)

        actors = [Idle.remote() for _ in range(2)]
        params = np.zeros((8, numbers), np.float32)
        ray.get([actor.work.remote(params) for actor in actors])
        began = time.perf_counter()
        left = [actors[i % 2].work.remote(params) for i in range(tasks)]
        sent = time.perf_counter() - began
        while left:
            ready, left = ray.wait(left, num_returns=min(20, len(left)))
            ray.get(ready)
        whole = time.perf_counter() - began
    return {
        "tasks": tasks,
        "8 members x numbers": numbers,
        "sending_ms per task": round(1e3 * sent / tasks, 2),
        "all_ms per task": round(1e3 * whole / tasks, 2),
        "a generation on 1,000 hosts costs the driver_s": round(whole / tasks * 1e3, 2),
    }


COMMANDS = {f.__name__: f for f in (same_bits, lives, overhead, hosts, driver)}
