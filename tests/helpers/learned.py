"""Every learned function of the registry, with inputs, for the tests of all of them.

Nothing here is written down by hand for one function: cases are the operations'
examples, the first again with `temporal=True` where it has that setting.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loops import GAMES, SMALL

from metaevo import advantages, slots, spaces
from metaevo.export import inputs as of_users
from metaevo.learned import operations
from metaevo.learned.operations import Operation
from metaevo.portable import tracing

# --- inputs ---------------------------------------------------------------------------

_LINE = np.linspace(-1.0, 1.0, 41, dtype=np.float32)
_WAVE = np.cos(9 * _LINE)
# Where an episode terminates, and where one ends: of a rollout.
_ENDS = (np.arange(41) % 9 == 5, (np.arange(41) % 9 == 5) | (np.arange(41) == 20))
USUAL = {
    "value_loss": (8 * _LINE, 3 * _LINE[::-1], 5 * _WAVE),
    "td_loss": (8 * _LINE, 3 * _LINE[::-1], 8 * _LINE + 3 * _LINE[::-1]),
    "drift": (_LINE, 3 * _WAVE, 0.2),
    "policy_loss": (-1 + _LINE, 0.3 * _LINE[::-1], 3 * _WAVE, 1.5 + 0.5 * _LINE),
    "activation": (4 * _LINE,),
    "advantage": (3 * _WAVE, 2 * _LINE, 3 * _LINE[::-1], 0.3 * _WAVE, *_ENDS),
    "correction": (3 * _LINE,),
    "priority": (8 * _LINE, 1 + _LINE, 3 + 3 * _WAVE, 3 * _WAVE, _ENDS[0]),
}
"""Kind of slot -> a batch of its inputs, [41] each; other kinds are drawn.

Those of a kind over time are a trajectory, of which its cases have two.
"""
HUGE = {
    "value_loss": (1e6 * _LINE, -1e6 * _LINE, 1e6 + 0 * _LINE),
    "td_loss": (1e6 * _LINE, -1e6 * _LINE, 1e6 * _LINE),
    "drift": (40 * _LINE, 1e6 * _WAVE, 0.2),
    "policy_loss": (1e6 * _LINE, 80 * _LINE, 1e6 * _WAVE, 1e6 * _LINE),
    "activation": (1e6 * _LINE,),
    "advantage": (1e6 * _WAVE, -1e6 * _LINE, 1e6 * _LINE, 80 * _WAVE, *_ENDS),
    "correction": (80 * _LINE,),
    "priority": (1e6 * _LINE, 1 + _LINE, 1e6 + 1e6 * _WAVE, 1e6 * _WAVE, _ENDS[0]),
}
"""Numbers that no agent should see."""
SCALES = {
    "usual": (0.1, 0.01, 1.0, 0.0, 0.3),
    "huge": (0.0, 0.0, 1e20, 1e-30, 1e30),
}
"""Sizes of an optimizer's gradients, one an update."""


def network(key, *sizes):
    """Params as flax has them, with numbers of a policy beside."""
    layers = {}
    for i, shape in enumerate(itertools.pairwise(sizes)):
        layers[f"Dense_{i}"] = {
            "kernel": jax.random.normal(jax.random.fold_in(key, i), shape),
            "bias": jnp.zeros(shape[1]),
        }
    return {"actor": {"params": layers}, "log_std": jnp.ones(sizes[-1])}


@functools.cache
def agent():
    return jax.tree.map(np.asarray, network(jax.random.key(9), 3, 5, 2))


def gradients(*scales):
    """One for each scale; the signs change, so that averages do as well."""
    return [
        jax.tree.map(
            lambda x, i=i, scale=scale: np.float32(scale * np.cos(5 * i + 7 * x)),
            agent(),
        )
        for i, scale in enumerate(scales)
    ]


def _drawn(name, shape, size):
    """An input of any other slot: 30 elements and 4 actions where they are open."""
    shape = [{"n": 30, "a": 4}.get(str(x), x) for x in shape]
    if name == "terminated":
        return np.float64(np.arange(30) % 3 == 0)
    if name == "epsilon":
        return np.float64(0.2)
    if name == "action" and len(shape) == 1:
        return np.float64(np.arange(30) % 2)
    rng = np.random.default_rng([len(name), *map(ord, name)])
    return size * rng.normal(size=shape)


# Entries of the context that a function may read.
READ = {
    "progress": 0.55,
    "return_std": 1.7,
    "entropy": 1.3,
    "kl": 0.007,
    "clip_fraction": 0.1,
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "rho_clip": 1.2,
    "c_clip": 0.9,
    "pg_clip": 1.0,
    "leak": 0.0,
}


class Case(NamedTuple):
    """A learned function with one example's settings."""

    operation: Operation
    settings: Mapping[str, Any]

    def make(self):
        return self.operation.build(**self.settings)

    @property
    def slot(self):
        """The slot that takes it; a number slot for functions that move numbers."""
        kind = self.operation.slot
        return "gamma" if kind == "number" else kind

    @property
    def temporal(self):
        return bool(self.settings.get("temporal"))

    def inputs(self, huge=False):
        """Its inputs, then the scalars that it reads, float64."""
        kind, op = self.operation.slot, self.make().spec
        given, seen, _ = tracing.signature(op)
        if kind in USUAL:
            found = [
                np.broadcast_to(np.float64(x), _LINE.shape)
                for x in (HUGE if huge else USUAL)[kind]
            ]
            if kind in slots.OVER_TIME:  # a second trajectory is the first, backward
                found = [np.stack([x, x[::-1]], 1) for x in found]
        else:
            size = 1e6 if huge else 1.0
            found = [_drawn(name, shape, size) for name, shape in given.items()]
        return [*found, *(np.float64(READ[name]) for name in seen)]

    def tensors(self):
        """Inputs of its exported function by name, float64: no differences."""
        usual = tracing.signature(self.make().spec)
        names = (*usual.given, *usual.seen)
        found = dict(zip(names, self.inputs(), strict=True))
        if "td_error" in found:
            found.setdefault("q", 0.3 * found["td_error"][::-1])
            found["target"] = found["q"] + found["td_error"]
        if "log_ratio" in found:
            found.setdefault("log_prob", -1 - found["log_ratio"] ** 2)
            found["old_log_prob"] = found["log_prob"] - found["log_ratio"]
        given, seen, _ = of_users.signature(self.make().spec)
        return {name: found.get(name, READ.get(name)) for name in (*given, *seen)}


@functools.cache
def cases() -> dict[str, Case]:
    """All cases by name: `drift_network 1` is its second example's."""
    found = {}
    for name, operation in operations.everything().items():
        for i, example in enumerate(operation.examples):
            case = f"{name} {i}" if i else name
            found[case] = Case(operation, example)
            if "temporal" in operation.optional and not i:
                temporal = {**example, "temporal": True}
                found[f"{case} temporal"] = Case(operation, temporal)
    return found


def each(names, group):
    """Parametrize a test by cases; those of a kind of slot run in one process."""
    known = cases()
    kinds = {name: known[name].operation.slot for name in names}
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=pytest.mark.xdist_group(f"{group} {kind}"))
            for name, kind in kinds.items()
        ],
    )


def moved(learned, by=0.3, seed=1):
    """Its start, and by how much a strategy's sample moves it."""
    start = learned.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(start)
    rng = np.random.default_rng(seed)
    noise = [np.float32(by * rng.normal(size=x.shape)) for x in leaves]
    start = jax.tree.map(np.asarray, start)
    return start, jax.tree.unflatten(tree, noise)


def away(learned, by=0.3, seed=1):
    """Params off the start."""
    start, noise = moved(learned, by, seed)
    return jax.tree.map(np.add, start, noise)


# --- the table of spaces and algorithms -----------------------------------------------

LOOPS = SMALL | GAMES
STATISTICS = {"entropy": 1.0, "kl": 0.01, "clip_fraction": 0.1}
OF_NUMBERS: dict[str, Callable] = {
    "spaces.tune": lambda slot: spaces.tune(**{slot: spaces.logit()}),
    "spaces.prior": lambda slot: spaces.prior(**{slot: spaces.uniform(0.1, 0.9)}),
    "spaces.schedule linear": lambda slot: spaces.schedule(**{slot: spaces.logit()}),
    "spaces.schedule cubic": lambda slot: spaces.schedule(
        "cubic", **{slot: spaces.logit()}
    ),
    "spaces.feedback": lambda slot: spaces.feedback(
        STATISTICS, **{slot: spaces.logit()}
    ),
}
TELL_STATISTICS = ("ppo", "ppo_rnn", "impala")  # which `spaces.feedback` sees


@functools.cache
def functions() -> dict[str, Operation]:
    """Operations that a function slot takes, by title; numbers have spaces."""
    return {
        operation.title: operation
        for operation in operations.everything().values()
        if operation.slot != "number" and not operation.as_params
    }


def of_function(operation: Operation, loop: str):
    """The space of a learned function in a loop's environment."""
    settings = operation.for_env(LOOPS[loop].world(LOOPS[loop].env))
    return spaces.replace(**{operation.slot: operation.build(**settings)})


def pairs() -> dict[tuple[str, str], tuple[str, Callable]]:
    """(space, loop) -> slot, and how the space is made, where they fit."""
    found = {}
    for loop, small in LOOPS.items():
        for title, operation in functions().items():
            if operation.slot in small.meta._fields:
                made = functools.partial(of_function, operation, loop)
                found[title, loop] = operation.slot, made
        for name, make in OF_NUMBERS.items():
            if name != "spaces.feedback" or loop in TELL_STATISTICS:
                made = functools.partial(make, small.tuned)
                found[name, loop] = small.tuned, made
        if small.make().tunable is not None:
            found["its own TUNABLE", loop] = (
                "several",
                lambda small=small: small.make().tunable,
            )
    return found


DOCS = Path(__file__).parents[2] / "docs" / "spaces.md"
BEGIN, END = "<!-- table of tests/helpers/learned.py -->\n", "<!-- end of table -->\n"


def table() -> str:
    """The table of `docs/spaces.md`."""
    rows: dict[str, dict[str, str]] = {}
    for (space, loop), (slot, _) in pairs().items():
        rows.setdefault(space, {})[loop] = f"`{slot}`" if slot != "several" else "yes"
    lines = [
        "| space | " + " | ".join(f"`{loop}`" for loop in LOOPS) + " |",
        "|---" * (len(LOOPS) + 1) + "|",
    ]
    for name in [*functions(), *OF_NUMBERS, "its own TUNABLE"]:
        cells = [rows.get(name, {}).get(loop, "") for loop in LOOPS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


# --- one program for all functions of a loop ------------------------------------------


def default(kind: str):
    """An empty function slot as a function; `test_inner_loops` holds loops to these."""
    none = {
        "activation": jnp.tanh,
        "policy_loss": lambda log_prob, *rest: 0.0 * log_prob,
        "advantage": advantages.vtrace,  # where weights are 1, a generalized one
    }
    return none[kind]


def switched(kind: str, choices: list[tuple[Any, Any]], which: Any):
    """A slot's value that is the one of `choices` numbered `which`, traced.

    Args:
        choices: `(learned function, params)`, or `(None, slot's value)`.
    """
    learned = [one for one, _ in choices]
    params = tuple(() if one is None else numbers for one, numbers in choices)
    values = [value for _, value in choices]
    if kind == "optimizer":
        return _switched_optimizer(learned, params, values, which)

    def apply(which, params, *inputs):
        def branch(i):
            def one(inputs):
                if learned[i] is not None:
                    return learned[i].apply(params[i], *inputs)
                value = default(kind) if values[i] is None else values[i]
                return jnp.asarray(value(*inputs), jnp.float32)

            return one

        return jax.lax.switch(which, [branch(i) for i in range(len(learned))], inputs)

    return jax.tree_util.Partial(apply, which, params)


def _switched_optimizer(learned, params, values, which):
    def init(params, agent):
        return tuple(
            values[i].init(agent) if one is None else one.start(agent)
            for i, one in enumerate(learned)
        )

    def update(which, params, gradient, states, agent, context):
        def branch(i):
            def one(states):
                make = values[i] if learned[i] is None else learned[i].bind(params[i])
                direction, state = make.update(gradient, states[i], agent, context)
                return direction, (*states[:i], state, *states[i + 1 :])

            return one

        branches = [branch(i) for i in range(len(learned))]
        return jax.lax.switch(which, branches, states)

    partial = jax.tree_util.Partial
    return slots.Optimizer(partial(init, params), partial(update, which, params))


if __name__ == "__main__":
    before, rest = DOCS.read_text().split(BEGIN)
    after = rest.split(END)[1]
    DOCS.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")
