"""Spaces of numbers that change over a lifetime start at the hand-made algorithm.

In whole training runs; that they leave it, and that what they find is saved. The same
of learned functions is in `test_learned_functions.py`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loops import SMALL

import metaevo
from inner_loops import dqn
from metaevo import spaces
from metaevo.errors import ConfigError
from metaevo.slots import Context
from metaevo.storage import artifacts
from metaevo.types import Space


def bent(kind, **numbers):
    """A schedule of each number, on the scale of that name."""
    scales = {name: getattr(spaces, scale)() for name, scale in numbers.items()}
    return spaces.schedule(kind, **scales)


class Case(NamedTuple):
    loop: str
    space: Space
    config: Any = {}  # noqa: RUF012


OF_PPO = {"lr": "log", "clip_eps": "log", "ent_coef": "log", "gamma": "one_minus_log"}
OF_PPO |= {"gae_lambda": "one_minus_log", "vf_coef": "log", "max_grad_norm": "log"}
OF_TD3 = {"actor_lr": "log", "critic_lr": "log", "tau": "logit", "noise_clip": "log"}
OF_TD3 |= {"exploration_noise": "log", "smoothing_noise": "log"}
OF_TD3 |= {"noise_correlation": "one_minus_log"}
OF_SAC = {"target_entropy": "linear", "temperature_lr": "log", "reward_scale": "log"}
FIVE_UPDATES = {"total_timesteps": 144}  # of DQN, ten minibatches
CASES = {
    "ppo, linear": Case("ppo", bent("linear", **OF_PPO)),
    "ppo, cubic": Case("ppo", bent("cubic", **OF_PPO)),
    "ppo, feedback": Case(
        "ppo",
        spaces.feedback(
            {"entropy": 1.0, "kl": 0.01, "clip_fraction": 0.1},
            lr=spaces.log(),
            clip_eps=spaces.log(),
            gae_lambda=spaces.one_minus_log(),
        ),
    ),
    "dqn, linear": Case(
        "dqn",
        bent("linear", lr="log", epsilon="logit", target_rate="linear"),
        FIVE_UPDATES,
    ),
    "td3, linear": Case("td3", bent("linear", **OF_TD3)),
    "sac, linear": Case("sac", bent("linear", **OF_SAC)),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def life(case):
    """A lifetime as a program: `meta -> agent`."""
    loop = SMALL[case.loop].make(**case.config)

    @jax.jit
    def run(meta):
        state = loop.init(jax.random.key(0), meta)
        return loop.train(jax.random.key(1), meta, state)[0].agent

    return run


@functools.cache
def hand_made(name):
    """The agent of the loop of that name; cases of one loop have one config."""
    case = next(case for case in CASES.values() if case.loop == name)
    return life(case)(SMALL[name].meta)


def at(case, distance):
    """Params at a distance from the start, in a direction that is random."""
    start = case.space.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(start)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    moved = [
        x + distance * jax.random.normal(key, x.shape)
        for x, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, moved)


TRAINED = ("ppo, cubic", "ppo, feedback", "td3, linear")
"""Each kind of space. That every slot takes a schedule: `test_inner_loops`."""


@pytest.mark.parametrize("case", [CASES[x] for x in TRAINED], ids=TRAINED)
def test_ten_minibatches_from_the_start_are_the_hand_made_algorithm(case):
    """And mirrored members about it differ: what an evolution strategy climbs by."""
    meta = SMALL[case.loop].meta
    assert case.space.starts_hand_made
    plain, run = hand_made(case.loop), life(case)
    start, up, down = (
        run(case.space.bind(at(case, x), meta)) for x in (0.0, 0.3, -0.3)
    )
    for a, b in zip(jax.tree.leaves(start), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((up, down)))
    pairs = zip(jax.tree.leaves(up), jax.tree.leaves(down), strict=True)
    assert any(not np.allclose(a, b, rtol=1e-6) for a, b in pairs)
    pairs = zip(jax.tree.leaves(up), jax.tree.leaves(plain), strict=True)
    assert any(not np.allclose(a, b, rtol=1e-6) for a, b in pairs)


def values(case, slots, size=1.0):
    """What the slots of a space come to, at three times of a life."""
    stats = {"gamma": 0.9, "entropy": 0.6 * size, "kl": -size, "clip_fraction": 0.1}
    return [
        slots[name](Context(progress=jnp.float32(progress), stats=stats))
        for name in sorted(case.space.spec)
        for progress in (0.0, 0.37, 1.0)
    ]


@every_case
def test_what_was_found_is_saved_and_loaded(case, tmp_path):
    meta = SMALL[case.loop].meta
    params = at(case, 0.3)
    bound = case.space.bind(params, meta)
    spec = artifacts.complete(case.space.spec, bound, meta)
    artifacts.save(tmp_path / "solution", params, spec, {}, {})
    loaded = metaevo.load(tmp_path).slots
    for a, b in zip(values(case, loaded), values(case, bound._asdict()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    # And put into an agent again.
    again, one = artifacts.as_space(tmp_path)
    once_more = again.bind(one, meta)._asdict()
    for a, b in zip(values(case, once_more), values(case, loaded), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@every_case
def test_it_is_finite_whatever_it_is_told(case):
    for distance, size in ((0.3, 1e6), (1e3, 1.0)):
        bound = case.space.bind(at(case, distance), SMALL[case.loop].meta)
        for value in values(case, bound._asdict(), size):
            assert np.isfinite(value).all()


def test_numbers_at_an_end_of_their_scale_start_beside_it():
    """The target rate of DQN is 1, and its gradients are not clipped."""
    tunable, meta = dqn.TUNABLE, dqn.Meta()
    names = {"lr", "gamma", "epsilon", "target_rate", "max_grad_norm"}
    assert set(tunable.spec) == names
    bound = tunable.bind(tunable.init(jax.random.key(0)), meta)
    assert (float(bound.target_rate), float(bound.max_grad_norm)) == (
        pytest.approx(0.9),
        10.0,
    )
    assert float(bound.lr) == pytest.approx(meta.lr)
    assert not tunable.starts_hand_made
    with pytest.raises(ConfigError, match="outside that scale"):
        spaces.tune(target_rate=spaces.logit()).bind({"target_rate": 0.0}, meta)
