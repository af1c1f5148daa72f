"""A generation's overhead over bare inner training.

    python -m benchmarks.generation                                 5 minutes

`engine`: a real run of `searches.ppo_value_loss` at its default size, and how much of
it passes between the end of a generation's training and the start of the next's: in
the middle, and of all (in some generations wandb is given a picture). `overhead`: some
of that apart, asking, sanitizing, telling, metrics, record and checkpoint, over the
training, which is timed for a sixteenth of a lifetime and scaled. `ask_tell`: OpenAI-ES
of 64 members over 1e2 to 1e6 numbers. `save`: one checkpoint and one line of the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

import metaevo  # noqa: E402
from benchmarks import measure  # noqa: E402
from metaevo import fitness, population  # noqa: E402
from metaevo.engine.job import State  # noqa: E402
from metaevo.engine.records import summary  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from metaevo.storage import checkpoint  # noqa: E402
from metaevo.storage.jsonl import JsonlLogger  # noqa: E402
from metaevo.types import Space  # noqa: E402
from searches import ppo_value_loss  # noqa: E402
from strategies.open_es import open_es  # noqa: E402

DEFAULTS = {
    "repeats": 7,
    "engine": True,
    "overhead": True,
    "ask_tell": True,
    "part_of": 16,  # of a lifetime, that `overhead` trains
    "seconds": 150.0,  # that `engine` runs
}


def outer(strategy, directory: Path):
    """`generation()`: all the engine does beside training; and its pieces, timed."""
    programs = {
        name: jax.jit(getattr(strategy, name)) for name in ("ask", "tell", "metrics")
    }
    held = [jax.jit(strategy.init)(jax.random.key(0))]
    shapes = jax.eval_shape(strategy.ask, jax.random.key(0), held[0])[0]
    size = population.size(shapes.params)
    raw = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    store = checkpoint.Store(directory / "checkpoints")
    log = JsonlLogger(directory / "metrics.jsonl", 0)
    count = [0]

    def ask_tell():
        proposal, state = programs["ask"](jax.random.key(1), held[0])
        scores, _ = fitness.sanitize(raw, strategy.mirrored)
        held[0] = programs["tell"](
            jax.random.key(2), state, proposal, jnp.asarray(scores)
        )
        jax.block_until_ready(held[0])

    def save():
        record = {
            "generation": count[0],
            **summary(raw),
            "population": raw,
            **programs["metrics"](held[0]),
        }
        offset = log.log(record)
        count[0] += 1
        about = {"generation": count[0], "failures": 0, "log_bytes": offset}
        store.save(count[0], State(held[0], ()), about)

    return ask_tell, save


def overhead(results: measure.Results, repeats: int, part_of: int) -> None:
    search = ppo_value_loss.search()
    loop = search.tasks[0]
    defaults = inspect.signature(ppo_value_loss.search).parameters["inner"].default
    shorter = dataclasses.replace(
        defaults,
        total_timesteps=defaults.total_timesteps // part_of,
        num_segments=1,
    )
    short = ppo_value_loss.search(inner=shorter)
    evaluator = LocalEvaluator(short)
    proposal, _ = short.strategy.ask(
        jax.random.key(0), short.strategy.init(jax.random.key(0))
    )
    with tempfile.TemporaryDirectory() as folder:
        ask_tell, save = outer(search.strategy, Path(folder))
        samples = measure.interleaved(
            {
                "training": lambda: evaluator(jax.random.key(0), proposal, ()),
                "ask and tell": ask_tell,
                "checkpoint and log": save,
            },
            repeats,
        )
    frames = loop.frames_per_segment * loop.num_segments
    scale = frames / short.tasks[0].frames_per_segment
    shares = [
        (a.wall + b.wall) / (t.wall * scale + a.wall + b.wall)
        for a, b, t in zip(
            samples["ask and tell"],
            samples["checkpoint and log"],
            samples["training"],
            strict=True,
        )
    ]
    for name, found in samples.items():
        factor = scale if name == "training" else 1.0
        seconds = measure.spread([factor * x.wall for x in found])
        results.add(part="overhead", piece=name, seconds=seconds, repeats=repeats)
    results.add(part="overhead", share_of_generation=measure.spread(shares))


def engine(results: measure.Results, seconds: float) -> None:
    train, spans = LocalEvaluator.__call__, []

    def timed(*args, **kwargs):
        began = time.perf_counter()
        out = train(*args, **kwargs)
        spans.append((began, time.perf_counter()))
        return out

    with (
        mock.patch.object(LocalEvaluator, "__call__", timed),
        tempfile.TemporaryDirectory() as folder,
        contextlib.suppress(metaevo.InterruptedRunError),  # there is time for a part
    ):
        config = metaevo.RunConfig(directory=f"{folder}/run", max_seconds=seconds)
        metaevo.run(ppo_value_loss.search(), config, "ppo_value_loss")
    pairs = list(itertools.pairwise(spans))
    gaps = [begin - end for (_, end), (begin, _) in pairs]
    whole = [after - before for (_, before), (_, after) in pairs]
    shares = [gap / all_ for gap, all_ in zip(gaps, whole, strict=True)]
    about = {"part": "engine", "repeats": len(pairs)}
    total = sum(gaps) / sum(whole)
    results.add(**about, piece="generation", seconds=measure.spread(whole))
    results.add(**about, piece="outside training", seconds=measure.spread(gaps))
    results.add(**about, share_of_generation=measure.spread(shares), of_all=total)


def ask_tell(results: measure.Results, repeats: int) -> None:
    for size in (10**2, 10**3, 10**4, 10**5, 10**6):
        space = Space(lambda key, n=size: jnp.zeros(n), lambda params, meta: meta)
        strategy = open_es(space, 64, 0.5, optax.adam(0.1))
        with tempfile.TemporaryDirectory() as folder:
            step, save = outer(strategy, Path(folder))
            samples = measure.interleaved({"ask_tell": step, "save": save}, repeats)
        for name, found in samples.items():
            seconds = measure.spread([x.wall for x in found])
            results.add(part=name, numbers=size, seconds=seconds, repeats=repeats)


def main(argv: list[str]) -> None:
    options = measure.switches(DEFAULTS, argv)
    results = measure.Results("generation")
    if options["ask_tell"]:
        ask_tell(results, options["repeats"])
    if options["engine"]:
        engine(results, options["seconds"])
    if options["overhead"]:
        overhead(results, options["repeats"], options["part_of"])


if __name__ == "__main__":
    main(sys.argv[1:])
