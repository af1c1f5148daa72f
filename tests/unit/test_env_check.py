"""`envs.make` names what an environment returns against its spaces."""

import inspect

import jax.numpy as jnp
import probes
import pytest

from metaevo import envs
from metaevo.envs._check import check, not_finite
from metaevo.errors import ConfigError


def made(**changes):
    """A corridor of 4 cells, with other functions."""

    def reset(key):
        return {"cell": jnp.int32(0)}, jnp.zeros(4)

    def step(key, state, action):
        cell = state["cell"] + action
        obs, flag = jnp.zeros(4), cell > 3
        return {"cell": cell}, envs.Step(obs, jnp.float32(1), flag, flag, obs, {})

    env = envs.Env(reset, step, step, envs.Box((4,)), envs.Discrete(2), 9)
    return env._replace(**changes)


def changed(**parts):
    """A step some of whose parts are others."""
    inner = made().step_raw

    def step(key, state, action):
        state, out = inner(key, state, action)
        return parts.get("state", state), out._replace(
            **{k: x for k, x in parts.items() if k != "state"}
        )

    return step


def does_not_multiply(key):
    return 0, jnp.zeros(4) @ jnp.zeros(3)


HERE = inspect.getsourcelines(does_not_multiply)[1]


FLAG, OBS = jnp.zeros((), bool), jnp.zeros(4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"reset": lambda key: jnp.zeros(4)},
            "reset returns float32[4], expected (state, obs)",
        ),
        (
            {"reset": lambda key: (0, jnp.zeros(3))},
            "reset: obs is float32[3], expected float32[4]",
        ),
        (
            {"reset": lambda key: (0, jnp.zeros(4, jnp.int32))},
            "reset: obs is int32[4], expected float32[4]",
        ),
        (
            {"reset": does_not_multiply},
            f"reset raises TypeError in line {HERE + 1} of {__file__}: dot_general",
        ),
        (
            {"step_raw": lambda key, state, action: (state, OBS, 1.0, FLAG, {})},
            "step_raw returns a tuple of 5, expected (state, Step)",
        ),
        (
            {"step_raw": lambda key, state, action: (state, (OBS, 1.0, FLAG, {}))},
            "step_raw returns a tuple of 4, not an envs.Step",
        ),
        (
            {"step_raw": changed(reward=jnp.int32(1))},
            "step_raw: reward is int32[], expected float32[]",
        ),
        (
            {"step": changed(terminated=jnp.zeros(1, bool))},
            "step: terminated is bool[1], expected bool[]",
        ),
        (
            {"step": changed(final_obs=jnp.zeros(5))},
            "step: final_obs is float32[5], expected float32[4]",
        ),
        (
            {"step": changed(state={"cell": jnp.float32(0)})},
            "step: state['cell'] is float32[], expected int32[] as from reset",
        ),
        (
            {"step": changed(state=jnp.int32(0))},
            "step: state is int32[], expected that of reset",
        ),
        ({"step": changed(info=None)}, "step: info is NoneType, not a dict"),
        (
            {"action_mask": lambda state: jnp.ones(3, bool)},
            "action_mask returns bool[3], expected bool[2]",
        ),
        (
            {"step_raw": lambda state, action: (state, None)},
            "step_raw raises TypeError",
        ),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    with pytest.raises(ConfigError) as error:
        check(made(**changes), envs.Step)
    assert str(error.value).startswith(message)


def test_make_names_the_environment(monkeypatch):
    monkeypatch.setattr(probes, "wrong", lambda: made(max_steps=9), raising=False)
    assert envs.make("probes:wrong").max_steps == 9
    bad = made(reset=lambda key: 0)
    monkeypatch.setattr(probes, "wrong", lambda: bad)
    with pytest.raises(ConfigError, match="env='probes:wrong': reset returns"):
        envs.make("probes:wrong")


@pytest.mark.parametrize(
    "name",
    [
        *("grid/random_mdp", "coin_game/3x3", "pgx/tic_tac_toe", "brax/fast"),
        *("versus/pgx/tic_tac_toe", "sparse/gymnax/Acrobot-v1"),
    ],
)
def test_environments_of_suites_pass(name):
    check(envs.make(name), envs.Step)


def test_numbers_that_are_not_finite_are_found_in_random_play():
    assert not_finite(made()) is None
    env = made(reset=lambda key: ({"cell": jnp.int32(0)}, jnp.zeros(4) / 0))
    assert not_finite(env) == "the observation of its reset is not finite"

    def step(key, state, action):
        state, out = made().step_raw(key, state, action)
        late = state["cell"] > 2
        return state, out._replace(reward=jnp.where(late, jnp.nan, 1.0))

    found = not_finite(made(step=step, step_raw=step))
    assert found is not None
    assert found.startswith("its reward is not finite in step ")


def test_random_play_takes_legal_actions_of_both_signs():
    def step(key, state, action):
        state, out = made().step_raw(key, state, action)
        return state, out._replace(reward=jnp.where(action == 1, jnp.nan, 1.0))

    env = made(step=step, step_raw=step)
    assert "its reward" in str(not_finite(env))
    masked = env._replace(action_mask=lambda state: jnp.array([True, False]))
    assert not_finite(masked) is None

    def apart(key, state, action):
        state, out = made().step_raw(key, state, jnp.int32(0))
        reward = jnp.where(action[0] * action[1] < 0, jnp.nan, jnp.exp(action[0]))
        return state, out._replace(reward=reward)

    env = made(step=apart, step_raw=apart, action=envs.Box((2,)))
    assert "its reward" in str(not_finite(env))


def raises():
    raise ValueError("no such map")


def test_a_function_that_raises_is_one_line():
    with pytest.raises(ConfigError, match=r"it raises ValueError in line .*no such m"):
        envs.make(f"{__name__}:raises")
