"""Spaces: what may evolve, as replacements of slots.

`replace(value_loss=...)` puts learned functions into slots, `tune(lr=...)` evolves
numbers around their defaults, `schedule(lr=...)` lets them change over a lifetime,
`prior(lr=...)` draws them from ranges, `combine` joins spaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from metaevo import schedules, slots
from metaevo.errors import ConfigError
from metaevo.learned.functions import Learned
from metaevo.learned.transforms import (
    Transform,
    checked,
    linear,
    log,
    logit,
    one_minus_log,
)
from metaevo.types import Genome, Params, Space, keep

__all__ = [
    "Range",
    "Transform",
    "combine",
    "feedback",
    "grid",
    "horizon_uniform",
    "linear",
    "log",
    "log_uniform",
    "logit",
    "one_minus_log",
    "prior",
    "replace",
    "schedule",
    "tune",
    "uniform",
    "with_sigma",
]


def replace(**learned: Learned) -> Space:
    """Learned functions in place of hand-made ones.

    Args:
        **learned: slot name -> function with parameters, such as
            `value_loss=losses.residual_network()`.

    Returns:
        a space of params {slot: parameters of its function}.
    """

    programs = {
        name: f
        for name, f in learned.items()
        if isinstance(f, Learned) and f.programs is not None
    }
    if programs and len(learned) > 1:
        return combine(*(replace(**{name: f}) for name, f in learned.items()))

    def bind(params, meta):
        bound = {name: f.bind(params[name]) for name, f in learned.items()}
        return slots.replace(meta, **bound)

    return Space(
        _init({name: function.init for name, function in learned.items()}),
        bind,
        spec={name: dict(function.spec) for name, function in learned.items()},
        starts_hand_made=all(
            function.starts_hand_made for function in learned.values()
        ),
        programs=next(map(_of_slot, programs, programs.values()), None),
    )


def _of_slot(name: str, learned: Learned) -> Genome | None:
    """The genome of params {slot: params}, of a function's own."""
    inside = learned.programs
    if inside is None:
        return None

    def settled(params):
        function, kept = inside.settled(params[name])
        return replace(**{name: function}), {name: kept}

    return Genome(
        lambda key, params: {name: inside.mutate(key, params[name])},
        lambda params: inside.behaviour(params[name]),
        lambda params: inside.length(params[name]),
        settled,
        lambda text: {name: inside.read(text)},
    )


def _where(chosen: jax.Array, new: Params, old: Params) -> Params:
    return jax.tree.map(lambda x, y: jnp.where(chosen, x, y), new, old)


def _init(each: Mapping[str, Callable]) -> Callable:
    """`key -> params` by name, of `key -> params` of each name."""

    def init(key):
        return {
            name: one(jax.random.fold_in(key, i))
            for i, (name, one) in enumerate(sorted(each.items()))
        }

    return init


def tune(**transforms: Transform) -> Space:
    """Numbers, searched around their defaults: zero is the hand-made algorithm.

    number = T(T⁻¹(default) + scale · x), x starting at 0, one per slot. A default at an
    end of its scale, or None, cannot be moved: `log().starting_at(10.0)` takes another
    number in its place, and zero is then not the hand-made algorithm.

    Args:
        **transforms: slot name -> `log()`, `logit()`, `one_minus_log()`, `linear()`;
            see `metaevo.learned.transforms`.

    Returns:
        a space of params {slot: scalar}.
    """

    def init(key):
        del key
        return {name: jnp.zeros(()) for name in transforms}

    def bind(params, meta):
        numbers = {}
        for name, transform in transforms.items():
            default = slots.get(meta, name)
            if transform.start is not None:
                default = transform.start
            if callable(default) or default is None:
                raise ConfigError(f"tune({name}=...): slot {name!r} holds no number")
            default = checked(f"tune({name}", transform, default)
            numbers[name] = transform.moved(default, transform.scale * params[name])
        return slots.replace(meta, **numbers)

    return Space(
        init,
        bind,
        spec={
            name: {"op": "number", "transform": t.name, "scale": t.scale}
            | ({} if t.start is None else {"start": t.start})
            for name, t in transforms.items()
        },
        starts_hand_made=all(t.start is None for t in transforms.values()),
    )


def schedule(
    kind: str = "linear", num_knots: int = 5, **transforms: Transform
) -> Space:
    """Numbers that change over a lifetime: zero is the hand-made algorithm.

    number(τ) = T(T⁻¹(default) + scale · Σₖ xₖ Bₖ(τ)), τ in [0, 1] the progress, x
    starting at 0; see `schedules.knots`. Where the default is a schedule itself, such
    as DQN's `epsilon`, it is that which bends.

    Args:
        kind: `linear`, through the knots, or `cubic`, a smooth B-spline near them.
        num_knots: per slot; at least 2, or 4 if cubic.
        **transforms: slot name -> `log()` and so on, as in `tune`.

    Returns:
        a space of params {slot: [num_knots]}.

    Raises:
        ConfigError: a setting is wrong, or a slot holds no number.
    """

    def curve(transform, scale):
        return schedules.knots(kind, num_knots, transform, scale)

    return _moving("schedule", curve, transforms)


def feedback(
    stats: Mapping[str, float], features: Sequence[int] = (16,), **transforms: Transform
) -> Space:
    """Numbers that follow from how training goes: zero is the hand-made algorithm.

    number = T(T⁻¹(default) + scale · n(stats / units)), n a small network for each
    number that starts at zero; see `schedules.feedback`.

    Args:
        stats: entries of `context.stats` that n sees -> typical sizes; PPO's are
            `{"entropy": 1.0, "kl": 0.01, "clip_fraction": 0.1}`.
        features: hidden layer sizes.
        **transforms: slot name -> `log()` and so on, as in `tune`.

    Raises:
        ConfigError: a setting is wrong, or a slot holds no number.
    """

    def curve(transform, scale):
        return schedules.feedback(stats, features, transform, scale)

    return _moving("feedback", curve, transforms)


def _moving(what: str, curve: Callable, scales: Mapping[str, Transform]) -> Space:
    """Number slots that move away from their defaults as `curve` says."""
    try:
        curves = {name: curve(t.name, t.scale) for name, t in scales.items()}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: {error}") from None

    def bind(params, meta):
        bound = {}
        for name, curve in curves.items():
            default = slots.get(meta, name)
            if default is None or not slots.is_number(default):
                raise ConfigError(f"{what}({name}=...): slot {name!r} holds no number")
            if not callable(default):
                checked(f"{what}({name}", scales[name], default)
            bound[name] = Partial(curve.at, params[name], default)
        return slots.replace(meta, **bound)

    spec = {name: dict(curve.spec) for name, curve in curves.items()}
    init = _init({name: curve.init for name, curve in curves.items()})
    return Space(init, bind, spec=spec, starts_hand_made=True)


class Range(NamedTuple):
    """The range of a number: x in [0, 1] ↦ number, uniform in x.

    Attributes:
        to_number: of x in [0, 1].
        scaled: `(x, factor) -> x`, the number times `factor` on the range's own scale;
            may leave [0, 1].
        low, high: of the number.
        name: for the artifact.
        values: all numbers that it can be, in equal parts of [0, 1]; None: any.
    """

    to_number: Callable[[jax.Array], jax.Array]
    scaled: Callable[[jax.Array, jax.Array], jax.Array]
    low: float
    high: float
    name: str
    values: tuple[float, ...] | None = None


def uniform(low: float, high: float) -> Range:
    """A number in [low, high].

    Raises:
        ConfigError: not low < high.
    """
    _ordered("uniform", low, high)

    def to_number(x):
        return low + x * (high - low)

    def scaled(x, factor):
        return (factor * to_number(x) - low) / (high - low)

    return Range(to_number, scaled, low, high, "uniform")


def log_uniform(low: float, high: float) -> Range:
    """A positive number whose logarithm is uniform.

    Raises:
        ConfigError: not 0 < low < high.
    """
    _ordered("log_uniform", low, high)
    if low <= 0:
        raise ConfigError(f"log_uniform({low}, {high}): the lower end must be positive")
    width = math.log(high / low)

    def to_number(x):
        return low * jnp.exp(width * x)

    def scaled(x, factor):
        return x + jnp.log(factor) / width

    return Range(to_number, scaled, low, high, "log_uniform")


def horizon_uniform(low: float, high: float) -> Range:
    """A discount whose horizon 1 / (1 − number) is log-uniform; a factor acts on that.

    Raises:
        ConfigError: not low < high < 1.
    """
    _ordered("horizon_uniform", low, high)
    if high >= 1:
        raise ConfigError(f"horizon_uniform({low}, {high}): the upper end must be < 1")
    width = math.log((1 - low) / (1 - high))

    def to_number(x):
        return 1 - (1 - low) * jnp.exp(-width * x)

    def scaled(x, factor):
        return x + jnp.log(factor) / width

    return Range(to_number, scaled, low, high, "horizon_uniform")


def grid(values: Sequence[float]) -> Range:
    """One of some numbers; a factor other than 1 leads to a neighbour in the list.

    A factor above 1 leads to the next one, a factor below 1 to the one before.

    Raises:
        ConfigError: fewer than two, one twice, or one that is not finite.
    """
    chosen = tuple(float(x) for x in values)
    if (
        len(chosen) < 2
        or len({*chosen}) < len(chosen)
        or not all(map(math.isfinite, chosen))
    ):
        raise ConfigError(
            f"grid({list(values)}): expected at least two different numbers"
        )

    def to_number(x):
        at = jnp.clip(x * len(chosen), 0, len(chosen) - 1).astype(jnp.int32)
        return jnp.asarray(chosen)[at]

    def scaled(x, factor):
        return x + jnp.sign(factor - 1) / len(chosen)

    return Range(to_number, scaled, min(chosen), max(chosen), "grid", chosen)


def _ordered(name: str, low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"{name}({low}, {high}): expected two numbers, low < high")


def prior(**ranges: Range) -> Space:
    """Numbers drawn from ranges, for PBT, random search and grid search.

    Params are {slot: x}, x in [0, 1]; `init` draws them independently, and `perturb`
    multiplies the numbers and stays within their ranges.

    Args:
        **ranges: slot name -> `log_uniform(1e-5, 1e-2)`, `uniform()`,
            `horizon_uniform()`, `grid([0.1, 0.01])`.
    """

    def bind(params, meta):
        numbers = {}
        for name, range_ in ranges.items():
            if not slots.is_number(slots.get(meta, name)):
                raise ConfigError(f"prior({name}=...): slot {name!r} holds no number")
            numbers[name] = range_.to_number(jnp.clip(params[name], 0.0, 1.0))
        return slots.replace(meta, **numbers)

    def perturb(params, factors):
        return {
            name: jnp.clip(range_.scaled(params[name], factors[name]), 0.0, 1.0)
            for name, range_ in ranges.items()
        }

    spec = {
        name: {"op": "number", "prior": r.name, "low": r.low, "high": r.high}
        | ({} if r.values is None else {"values": list(r.values)})
        for name, r in ranges.items()
    }
    init = _init(dict.fromkeys(ranges, jax.random.uniform))
    return Space(init, bind, spec=spec, perturb=perturb)


def of_prior(space: Space, who: str) -> list[str]:
    """The names of a `prior` space's numbers, in order.

    Raises:
        ConfigError: it is another space; the message names `who`.
    """
    if not space.spec or not all("prior" in op for op in space.spec.values()):
        raise ConfigError(
            f"{who} needs a space of ranges alone, spaces.prior(...), as that of "
            "searches.ppo_pbt"
        )
    return sorted(space.spec)


def require_numbers(space: Space, who: str) -> None:
    """Check that params are numbers.

    Raises:
        ConfigError: they are programs; the message names `who`.
    """
    if space.programs is not None:
        raise ConfigError(
            f"{who} moves numbers, and this space's params are programs "
            f"({', '.join(space.spec)}): take a strategy that mutates, "
            "strategies.regularized_evolution"
        )


def schedule_from(values: Mapping[str, jax.Array]) -> Space:
    """Number slots that go through `values`, equally long each, in a lifetime.

    Args:
        values: slot name -> [N], such as the schedule that PBT found.

    Returns:
        a space of params {slot: [N]} that starts at `values`.
    """
    steps = {name: schedules.steps(len(x)) for name, x in values.items()}
    start = {name: jnp.asarray(x, jnp.float32) for name, x in values.items()}
    return replace(**steps)._replace(init=lambda key: start)


def combine(*spaces: Space) -> Space:
    """Several spaces as one; params are the union of theirs.

    Raises:
        ConfigError: two spaces replace the same slot.
    """
    spec: dict = {}
    for space in spaces:
        if twice := spec.keys() & space.spec.keys():
            raise ConfigError(f"combine: slot {min(twice)!r} is in two spaces")
        spec |= space.spec

    def init(key):
        params = {}
        for i, space in enumerate(spaces):
            params |= space.init(jax.random.fold_in(key, i))
        return params

    def part(space, params):
        return {name: params[name] for name in space.spec}

    def bind(params, meta):
        for space in spaces:
            meta = space.bind(part(space, params), meta)
        return meta

    def inherit(params, state):
        for space in spaces:
            params = params | space.inherit(part(space, params), state)
        return params

    def perturb(params, factors):
        perturbed = {}
        for space in spaces:
            perturbed |= space.perturb(part(space, params), part(space, factors))
        return perturbed

    lamarckian = any(space.inherit is not keep for space in spaces)
    return Space(
        init,
        bind,
        inherit if lamarckian else keep,
        spec,
        all(space.starts_hand_made for space in spaces),
        perturb,
        _programs_among(spaces, part),
    )


_SAME = 0.05  # numbers beside programs that differ by less are the same


def _programs_among(spaces: Sequence[Space], part: Callable) -> Genome | None:
    """How the union of params changes if one of the spaces is of programs.

    Half of the changes are of a program, and half of one number beside it, which moves
    by a normal draw of deviation 1.
    """
    if all(space.programs is None for space in spaces):
        return None
    programs = [i for i, space in enumerate(spaces) if space.programs is not None]
    numbers = [i for i, space in enumerate(spaces) if space.programs is None]
    for i in numbers:
        for name, op in spaces[i].spec.items():
            if op["op"] not in ("number", "knots"):
                raise ConfigError(
                    f"combine: slot {name!r} evolves as a function of many numbers, "
                    "and another as a program; search one after the other"
                )

    genomes = [_genome(i, space) for i, space in enumerate(spaces)]

    def mutate(key, params):
        kind_key, which_key, key = jax.random.split(key, 3)
        of_program = jax.random.bernoulli(kind_key, 0.5 if numbers else 1.0)
        changed = {}
        for group, chosen in ((programs, of_program), (numbers, ~of_program)):
            at = jax.random.randint(which_key, (), 0, max(len(group), 1))
            for place, i in enumerate(group):
                mine, one_key = part(spaces[i], params), jax.random.fold_in(key, i)
                moved = genomes[i].mutate(one_key, mine)
                changed |= _where(chosen & (at == place), moved, mine)
        return changed

    def of_each(name, params):
        return [
            getattr(genome, name)(part(space, params))
            for genome, space in zip(genomes, spaces, strict=True)
        ]

    def behaviour(params):
        told = of_each("behaviour", params)
        learns = jnp.stack([told[i].any() for i in programs]).all()
        return jnp.where(learns, jnp.concatenate(told), 0.0)

    def length(params):
        return jnp.stack(of_each("length", params)).sum()

    def settled(params):
        kept = of_each("settled", params)
        numbers = {name: x for _, each in kept for name, x in each.items()}
        return combine(*(space for space, _ in kept)), numbers

    def read(text):
        if len(programs) > 1:
            raise ConfigError("a formula for one of several slots: which is unknown")
        return {k: x for genome in genomes for k, x in genome.read(text).items()}

    return Genome(mutate, behaviour, length, settled, read)


def _genome(i: int, space: Space) -> Genome:
    """The genome of the i-th space; of numbers, they move and stay as they are."""
    if space.programs is not None:
        return space.programs
    return Genome(
        _one_moved,
        _rounded,
        lambda params: jnp.int32(0),
        lambda params: (space, params),
        lambda text: space.init(jax.random.key(i)),
    )


def _one_moved(key: jax.Array, params: Params) -> Params:
    """Params with one of their leaves moved by normal draws."""
    leaves, tree = jax.tree.flatten(params)
    which_key, key = jax.random.split(key)
    which = jax.random.randint(which_key, (), 0, len(leaves))
    moved = [
        x + (which == i) * jax.random.normal(jax.random.fold_in(key, i), jnp.shape(x))
        for i, x in enumerate(leaves)
    ]
    return tree.unflatten(moved)


def _rounded(params: Params) -> jax.Array:
    """Numbers in steps of `_SAME`."""
    rounded = [jnp.round(jnp.ravel(x) / _SAME) for x in jax.tree.leaves(params)]
    return jnp.concatenate(rounded)


def with_sigma(space: Space, number_sigma: float, sigma: float) -> Space:
    """A space whose numbers a strategy with `sigma` spreads by `number_sigma`.

    What `tune` and `schedule` made has its `scale` times number_sigma / sigma. All else
    stays, so that one strategy searches a network and numbers, each in its own steps.

    >>> with_sigma(tune(lr=log()), 1.0, 0.5).spec["lr"]["scale"]
    2.0

    Raises:
        ConfigError: one of the two is not a positive number.
    """
    for name, value in (("number_sigma", number_sigma), ("sigma", sigma)):
        if not 0 < value < math.inf:
            raise ConfigError(f"{name}={value!r} must be positive and finite")
    factor = number_sigma / sigma
    if factor == 1.0:
        return space
    moved = {
        name: op | {"scale": op["scale"] * factor}
        for name, op in space.spec.items()
        if op["op"] in ("number", "knots") and "scale" in op
    }

    def times(params, factor):
        return params | {name: params[name] * factor for name in moved}

    return space._replace(
        init=lambda key: times(space.init(key), 1 / factor),
        bind=lambda params, meta: space.bind(times(params, factor), meta),
        spec=dict(space.spec) | moved,
    )


def size(space: Space) -> int:
    """Number of evolved numbers.

    >>> size(tune(lr=log(), gamma=one_minus_log()))
    2
    """
    shapes = jax.eval_shape(space.init, jax.random.key(0))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
