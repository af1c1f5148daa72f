"""Check of an environment's functions by their shapes, before anything compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.errors import ConfigError, raised
from metaevo.types import PyTree

__all__ = ["check", "not_finite"]

_STEPS = 200  # of random play


def check(env: Any, step_type: type) -> None:
    """Check that an environment's functions return what its spaces say.

    Nothing is computed.

    Args:
        env: an `Env`.
        step_type: `envs.Step`.

    Raises:
        ConfigError: one returns another structure, shape or type, or raises.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    one = (env.num_players,) if env.num_players > 1 else ()
    obs = jax.ShapeDtypeStruct((*one, *env.observation.shape), jnp.float32)
    discrete = hasattr(env.action, "num")
    action = jax.ShapeDtypeStruct(
        (*one, *(() if discrete else env.action.shape)),
        jnp.int32 if discrete else jnp.float32,
    )
    state, seen = _pair("reset", ("state", "obs"), env.reset, key)
    _same("reset", "obs", seen, obs)
    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    expected = {
        "obs": obs,
        "reward": jax.ShapeDtypeStruct(one, jnp.float32),
        "terminated": flag,
        "truncated": flag,
        "final_obs": obs,
    }
    for name, step in (("step_raw", env.step_raw), ("step", env.step)):
        after, out = _pair(name, ("state", "Step"), step, key, state, action)
        if not isinstance(out, step_type):
            raise ConfigError(f"{name} returns {_told(out)}, not an envs.Step")
        _same(name, "state", after, state)
        for field, wanted in expected.items():
            _same(name, field, getattr(out, field), wanted)
        if not isinstance(out.info, dict):
            raise ConfigError(f"{name}: info is {_told(out.info)}, not a dict")
    if env.action_mask is not None and discrete:
        mask = _called("action_mask", env.action_mask, state)
        wanted = jax.ShapeDtypeStruct((*one, env.action.num), jnp.bool_)
        if np.shape(mask) != wanted.shape:
            raise ConfigError(
                f"action_mask returns {_told(mask)}, expected {_told(wanted)}"
            )


def not_finite(env: Any) -> str | None:
    """Return what an environment gives in random play that is not finite, in words.

    It is played for 200 steps from one reset.

    Args:
        env: an `Env`.

    Returns:
        what and where; None if all numbers are finite.
    """
    one = (env.num_players,) if env.num_players > 1 else ()

    def act(key: jax.Array, state: PyTree) -> jax.Array:
        if hasattr(env.action, "num"):
            legal = jnp.ones((*one, env.action.num), bool)
            if env.action_mask is not None:
                legal = env.action_mask(state)
            return jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf))
        low, high = (jnp.asarray(x) for x in (env.action.low, env.action.high))
        # Bounds that are infinite, or as good as that, are near the others.
        low = jnp.where(low > -1e6, low, jnp.minimum(-1.0, high - 1.0))
        high = jnp.where(high < 1e6, high, jnp.maximum(1.0, low + 1.0))
        free = jax.random.uniform(key, (*one, *env.action.shape))
        return (low + free * (high - low)).astype(jnp.float32)

    def one_step(state: PyTree, key: jax.Array) -> tuple[PyTree, tuple]:
        state, out = env.step(key, state, act(key, state))
        seen = _finite(out.obs) & _finite(out.final_obs)
        return state, (seen, _finite(out.reward))

    @jax.jit
    def played(key: jax.Array) -> tuple:
        state, obs = env.reset(key)
        _, found = jax.lax.scan(one_step, state, jax.random.split(key, _STEPS))
        return _finite(obs), *found

    at_reset, *in_steps = map(np.asarray, played(jax.random.key(0)))
    if not at_reset:
        return "the observation of its reset is not finite"
    for name, finite in zip(("observation", "reward"), in_steps, strict=True):
        if not finite.all():
            return f"its {name} is not finite in step {finite.argmin()} of random play"
    return None


def _finite(x: jax.Array) -> jax.Array:
    return jnp.isfinite(x).all()


def _called(name: str, function: Callable, *args: Any) -> PyTree:
    """Return the shapes of what a function returns."""
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        raise ConfigError(f"{name} raises {raised(error, function)}") from error


def _pair(name: str, parts: tuple[str, str], function: Callable, *args: Any) -> tuple:
    found = _called(name, function, *args)
    if type(found) is not tuple or len(found) != 2:
        raise ConfigError(
            f"{name} returns {_told(found)}, expected ({', '.join(parts)})"
        )
    return found


def _same(name: str, part: str, found: PyTree, wanted: PyTree) -> None:
    """Check structure, shapes and types of what a function returns.

    Raises:
        ConfigError: they are others.
    """
    if jax.tree.structure(found) != jax.tree.structure(wanted):
        expected = "that of reset" if part == "state" else _told(wanted)
        raise ConfigError(f"{name}: {part} is {_told(found)}, expected {expected}")
    those = jax.tree.leaves(wanted)
    these = jax.tree_util.tree_leaves_with_path(found)
    for (path, x), y in zip(these, those, strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            place = jax.tree_util.keystr(path)
            raise ConfigError(
                f"{name}: {part}{place} is {_told(x)}, expected {_told(y)}"
                + " as from reset" * (part == "state")
            )


def _told(x: PyTree) -> str:
    """Return a leaf's type and shape, and the type of anything else.

    >>> _told(jax.ShapeDtypeStruct((3,), jnp.float32)), _told((1, 2))
    ('float32[3]', 'a tuple of 2')
    """
    if hasattr(x, "dtype"):
        return f"{x.dtype}[{','.join(map(str, x.shape))}]"
    if isinstance(x, tuple | list):
        return f"a {type(x).__name__} of {len(x)}"
    return type(x).__name__
