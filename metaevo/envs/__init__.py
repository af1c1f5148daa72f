"""Environments: one member's one environment as pure functions.

`make("gymnax/CartPole-v1")` resolves a suite by prefix; `make("package.module:fn")`
calls a function of your own that returns an `Env`. All suites give the same `Step`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.envs._check import check
from metaevo.envs._check import not_finite as not_finite
from metaevo.errors import ConfigError, MetaevoError, raised
from metaevo.types import Key, PyTree

MOST_LISTED = 30  # environments that an error message names
SUITES = (
    *("gymnax", "brax", "grid", "pgx", "coin_game", "sparse", "versus"),
    *("navix", "jumanji"),
)


class Box(NamedTuple):
    """Real vectors.

    Attributes:
        shape: shape of one element.
        low, high: bounds, scalars or arrays of `shape`.
        binary: True if every component is always 0 or 1; see `packed`.
    """

    shape: tuple[int, ...]
    low: Any = -jnp.inf
    high: Any = jnp.inf
    binary: bool = False


class Discrete(NamedTuple):
    """Integers in [0, num)."""

    num: int


class Step(NamedTuple):
    """One transition.

    Attributes:
        obs: the next observation; after an episode's end, the new episode's first
            observation. float32.
        reward: float32 scalar; of an environment of N > 1 players [N].
        terminated: the task ended: nothing follows, do not bootstrap.
        truncated: only the time limit ended it: bootstrap from `final_obs`.
        final_obs: the observation that the action led to, never a reset's.
        info: further outputs of the suite. `info["metrics"]`, scalars by name, are
            averaged over the steps of a segment into the metrics of training.
    """

    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: jax.Array
    info: dict[str, Any]

    @property
    def done(self) -> jax.Array:
        """The episode ended, for any reason: cut traces, reset memories."""
        return self.terminated | self.truncated


class Env(NamedTuple):
    """An environment.

    With `num_players` N > 1 all players act at once: observations, also `final_obs`,
    are [N, ...], actions [N, ...], rewards [N]; `observation` and `action` are those of
    one player. The episode ends for all of them.

    Attributes:
        reset: `key -> (state, obs)`.
        step: `(key, state, action) -> (state, Step)`, with auto-reset.
        step_raw: the same without auto-reset: `obs` is `final_obs`.
        observation: `Box`; observations are float32.
        action: `Discrete` or `Box`. Actions outside a `Box` are clipped to it.
        max_steps: time limit.
        action_mask: `state -> [num_actions] bool`, the legal actions, or None: all
            are, always. Where none is, as an episode's last state may have it, all
            count as legal.
        name: the argument of `make` that gives it.
        cheap_reset: True if a reset costs about as much as a step.
        render: `[state, ...] -> [frame, ...]`, uint8 [height, width, 3] each, not
            traced; None where the suite cannot draw it. Of a game of two it also takes
            `shares`, [num_actions] for each move: of the search that found it.
        task: `key -> params`, drawn once for each lifetime and kept to its end, and the
            same for all members of a world; None: there is one task alone.
        at: `params -> Env`, the environment of a task, with the same spaces and
            `max_steps`; `params` may be traced. The functions above are those of a task
            in the middle. None where `task` is.
        num_players: N, players that act at once.
        player: `state -> int32`, who is to move, of two players who take turns; 0 moves
            first. `step` then takes the action of that one, `obs` is what that one
            sees, `reward` what the move gave to who made it, and `info["rewards"]` [2]
            what it gave to each. None: nobody takes turns.
    """

    reset: Callable[[Key], tuple[PyTree, jax.Array]]
    step: Callable[[Key, PyTree, jax.Array], tuple[PyTree, Step]]
    step_raw: Callable[[Key, PyTree, jax.Array], tuple[PyTree, Step]]
    observation: Box
    action: Box | Discrete
    max_steps: int
    action_mask: Callable[[PyTree], jax.Array] | None = None
    name: str = ""
    cheap_reset: bool = True
    render: Callable[[list[PyTree]], list[Any]] | None = None
    task: Callable[[Key], PyTree] | None = None
    at: Callable[[PyTree], Env] | None = None
    num_players: int = 1
    player: Callable[[PyTree], jax.Array] | None = None


def make(name: str) -> Env:
    """Make an environment.

    Args:
        name: `SUITE/NAME`, or an import path `package.module:function` of a function
            without arguments that returns an `Env`.

    Raises:
        ConfigError: there is no such environment, and the nearest is named; or the
            functions of yours do not return what its spaces say.
    """
    if ":" in name:
        module, _, function = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"env={name!r}: {error}; expected package.module:function, of an "
                "installed package or of a file in the folder that you work in"
            ) from error
        try:
            with contextlib.suppress(ValueError):  # a builtin may have no signature
                inspect.signature(found).bind()
        except TypeError as error:
            raise ConfigError(
                f"env={name!r}: expected a function without arguments that returns an "
                f"Env ({error})"
            ) from error
        try:
            env = found()
        except MetaevoError:
            raise
        except Exception as error:
            raise ConfigError(
                f"env={name!r}: it raises {raised(error, found)}"
            ) from error
        if not isinstance(env, Env):
            raise ConfigError(
                f"env={name!r} returned {type(env).__name__}, not an Env of "
                "metaevo.envs, of pure functions in JAX; see: metaevo list environments"
            )
        try:
            check(env, Step)
        except ConfigError as error:
            raise ConfigError(f"env={name!r}: {error}") from error
        return env
    prefix, slash, rest = name.partition("/")
    if not slash or (prefix not in SUITES and prefix not in declared_suites()):
        known_suites = (*SUITES, *sorted(declared_suites()))
        near = difflib.get_close_matches(prefix.lower(), known_suites, 1)
        hint = f" Did you mean {near[0]}/{rest or 'NAME'}?" if near else ""
        if not hint and (known := _suite_of(rest or prefix)):
            hint = f" Did you mean {known}?"
        hint = hint or " Try: metaevo list environments"
        raise ConfigError(
            f"env={name!r}: expected SUITE/NAME with SUITE one of "
            f"{', '.join(known_suites)}, or package.module:function.{hint}"
        )
    return suite(prefix).make(rest)


def unknown(
    prefix: str, name: str, names: Sequence[str], kind: str = "environment"
) -> ConfigError:
    """Return the error that a suite has no environment of a name; gives the nearest.

    >>> str(unknown("grid", "mase", ["maze", "key_door"]))
    "env='grid/mase': no such environment. Did you mean grid/maze?"
    >>> str(unknown("grid", "", ["maze", "key_door"]))
    "env='grid/': no such environment; expected one of maze, key_door"
    """
    near = difflib.get_close_matches(name.partition("/")[0], names, 1)
    if near:
        remedy = f". Did you mean {prefix}/{near[0]}?"
    elif name and (known := _suite_of(name)):
        remedy = f". Did you mean {known}?"
    elif len(names) <= MOST_LISTED:
        remedy = f"; expected one of {', '.join(names)}"
    else:
        remedy = f", of {len(names)}. Try: metaevo list environments"
    return ConfigError(f"env='{prefix}/{name}': no such {kind}{remedy}")


@contextlib.contextmanager
def optional(user: str, extra: str) -> Iterator[None]:
    """Import an optional package inside the context.

    Args:
        user: what needs the package, for the message.
        extra: extra of metaevo that installs it.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{user}: {error}. Install it with: pip install 'metaevo[{extra}]'"
        ) from error


def require(suite: str, package: str, extra: str) -> None:
    """Check that the package of a suite is installed; it is not imported.

    Raises:
        ConfigError: it is not; names the extra that installs it.
    """
    with optional(f"env={suite}/...", extra):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"No module named {package!r}")


def with_types(tree: PyTree, types: PyTree) -> PyTree:
    """Leaves with the types of `types`, and none of them weak.

    The types of a state must not change between steps; a reset's types decide.
    """
    return jax.tree.map(
        lambda x, t: jax.lax.convert_element_type(jnp.asarray(x), t.dtype), tree, types
    )


def declared_suites() -> dict[str, metadata.EntryPoint]:
    """Return the suites that other distributions declare, by prefix."""
    points = metadata.entry_points(group="metaevo.envs")
    return {point.name: point for point in points if point.name not in SUITES}


def suite(prefix: str) -> Any:
    """Return the module of a suite, which has `make(name)` and `names()`.

    Args:
        prefix: one of `SUITES`, or the name of an entry point of `metaevo.envs`.

    Raises:
        ConfigError: the module of an entry point cannot be imported.
    """
    if prefix in SUITES:
        return importlib.import_module(f"metaevo.envs.{prefix}")
    point = declared_suites()[prefix]
    try:
        return importlib.import_module(point.module)
    except ImportError as error:
        raise ConfigError(
            f"entry point {prefix!r} of 'metaevo.envs': {error}"
        ) from error


def _suite_of(name: str) -> str | None:
    """Return `SUITE/NAME` of the environment that a name without a suite may mean."""
    for prefix in (*SUITES, *declared_suites()) if name else ():
        try:
            names = suite(prefix).names()
        except (ImportError, ConfigError):  # the suite's package is not installed
            continue
        short = {x.lower(): x for x in names}
        short |= {x.lower().partition("-")[0]: x for x in reversed(names)}
        if near := difflib.get_close_matches(name.lower(), short, 1, 0.8):
            return f"{prefix}/{short[near[0]]}"
    return None


def unit_box(action: Box) -> tuple[Callable, Callable]:
    """The maps between actions in [−1, 1] and those of a bounded `Box`.

    Returns:
        `unit -> action` and its inverse.

    Raises:
        ConfigError: the box has no bounds.
    """
    low, high = np.float32(action.low), np.float32(action.high)
    if not (np.isfinite(low) & np.isfinite(high)).all():
        raise ConfigError("this algorithm needs actions with finite bounds")
    middle, half = (high + low) / 2, (high - low) / 2
    return lambda unit: middle + half * unit, lambda given: (given - middle) / half


def legal_actions(env: Env, state: PyTree) -> jax.Array | None:
    """The legal actions in a state, [num_actions] bool; of N > 1 players [N, ...].

    None: the environment has no `action_mask`.
    """
    if env.action_mask is None:
        return None
    mask = env.action_mask(state).astype(bool)
    return mask | ~mask.any(-1, keepdims=True)


def packed(env: Env, obs: jax.Array) -> jax.Array:
    """`obs` for storage: a byte a component where that is exact.

    A rollout of MinAtar is thousands of floats a step, and reading it again in random
    order is a good part of PPO's time.
    """
    return obs.astype(bool) if env.observation.binary else obs


def unpacked(obs: jax.Array) -> jax.Array:
    """float32 observations, from `packed` ones."""
    return obs.astype(jnp.float32)


def select(env: Env, indices: Sequence[int]) -> Env:
    """`env` showing only some components of its flat observation.

    An agent must remember what is hidden: `select(cartpole, (0, 2))` has positions
    without velocities, which take two observations.

    Args:
        indices: of the components, in the order they are shown, each in [0, size).

    Raises:
        ConfigError: observations are not flat, or have no such component.
    """
    shape = env.observation.shape
    if len(shape) != 1 or not indices or not all(0 <= i < shape[0] for i in indices):
        raise ConfigError(
            f"env={env.name!r}: cannot select components {tuple(indices)} of "
            f"observations of shape {shape}"
        )
    chosen = np.array(indices)

    def reset(key):
        state, obs = env.reset(key)
        return state, obs[..., chosen]

    def masked(step):
        def run(key, state, action):
            state, out = step(key, state, action)
            obs, final_obs = out.obs[..., chosen], out.final_obs[..., chosen]
            return state, out._replace(obs=obs, final_obs=final_obs)

        return run

    low, high = (
        np.broadcast_to(bound, shape)[chosen]
        for bound in (env.observation.low, env.observation.high)
    )
    return env._replace(
        reset=reset,
        step=masked(env.step),
        step_raw=masked(env.step_raw),
        observation=Box((len(chosen),), low, high),
        at=(lambda params: select(at(params), indices)) if (at := env.at) else None,
    )


def each_player(env: Env, act: Callable) -> Callable:
    """The function by which all players act, from that of one.

    Args:
        act: `(key, carry, obs, state, mask) -> (action, carry)` of one player. With
            N > 1 players all of these but `key` and `state` gain a leading axis N.
    """
    if env.num_players == 1:
        return act

    def everyone(key, carry, obs, state, mask):
        keys = jax.random.split(key, env.num_players)
        axes = 0, 0, 0, None, None if mask is None else 0
        return jax.vmap(act, axes)(keys, carry, obs, state, mask)

    return everyone


def against(env: Env, play: Callable[[jax.Array], jax.Array]) -> Env:
    """The environment of the second of two players, against a fixed first one.

    `info["metrics"]` of a step holds both rewards: `partner_reward`, the first
    player's, and `own_reward`.

    Args:
        env: of two players.
        play: `observation of the first player -> its action`; it may close over traced
            values.

    Raises:
        ConfigError: the environment has another number of players, or an action mask.
    """
    if env.num_players != 2 or env.action_mask is not None:
        raise ConfigError(
            f"env={env.name!r}: needs 2 players, without an action mask; it has "
            f"{env.num_players}"
        )

    def reset(key):
        state, obs = env.reset(key)
        return (state, obs[0]), obs[1]

    def step_raw(key, state, action):
        state, theirs = state
        actions = jnp.stack([play(theirs).astype(action.dtype), action])
        state, out = env.step_raw(key, state, actions)
        paid = {"partner_reward": out.reward[0], "own_reward": out.reward[1]}
        metrics = {**out.info.get("metrics", {}), **paid}
        seen = {"obs": out.obs[1], "final_obs": out.final_obs[1]}
        info = {**out.info, "metrics": metrics}
        step = out._replace(**seen, reward=out.reward[1], info=info)
        return (state, out.final_obs[0]), step

    return env._replace(
        reset=reset,
        step=with_auto_reset(reset, step_raw),
        step_raw=step_raw,
        render=(lambda states: draw([x for x, _ in states]))
        if (draw := env.render)
        else None,
        task=None,
        at=None,
        num_players=1,
    )


def inner(prefix: str, name: str, example: str) -> Env:
    """`make`, for a suite that puts something around the environments of others.

    Raises:
        ConfigError: there is no such environment; gives `example`, one of the suite.
    """
    try:
        return make(name)
    except ConfigError as error:
        raise ConfigError(
            f"env='{prefix}/{name}': expected {prefix}/SUITE/NAME, as in "
            f"{prefix}/{example}; {error}"
        ) from error


def auto_reset(
    state: PyTree, step: Step, fresh_state: PyTree, fresh_obs: jax.Array
) -> tuple[PyTree, Step]:
    """Replace an ended episode by a fresh one; `final_obs` is kept.

    Fresh starts may be drawn beforehand for many steps at once, which costs less
    than a reset inside a scan.
    """
    done = step.done
    state = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh_state, state)
    return state, step._replace(obs=jnp.where(done, fresh_obs, step.final_obs))


def with_auto_reset(reset: Callable, step_raw: Callable) -> Callable:
    """The `step` that goes with `reset` and `step_raw`."""

    def step(key, state, action):
        step_key, reset_key = jax.random.split(key)
        state, out = step_raw(step_key, state, action)
        return auto_reset(state, out, *reset(reset_key))

    return step


def around(env: Env, reset: Callable, step_raw: Callable, **changes: Any) -> Env:
    """`env` with a `reset` and a `step_raw` whose states hold its own as `state`.

    Args:
        changes: further attributes. Without `at` the environment of a task is what it
            is for `env`: an inner loop that puts something around its environment does
            so again in `InnerLoop.on`.
    """
    draw, mask = env.render, env.action_mask
    if mask is not None:
        changes.setdefault("action_mask", lambda state: mask(state.state))
    if draw is not None:
        changes.setdefault("render", lambda states: draw([x.state for x in states]))
    return env._replace(
        reset=reset, step=with_auto_reset(reset, step_raw), step_raw=step_raw, **changes
    )
