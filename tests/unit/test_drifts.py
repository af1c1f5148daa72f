"""Drifts: golden values, and that all are drifts whatever their numbers."""

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaevo import drifts, slots
from metaevo.slots import Context

EPS = 0.2
LEARNED = {
    name: case.make()
    for name, case in helper.cases().items()
    if "drift" in case.operation.guarantees(case.make().spec)
}
"""All of the registry that claim to be drifts, small."""
ONE_OF_EACH = {
    LEARNED[name].spec["op"]: name
    for name in sorted(LEARNED, key=lambda name: "temporal" in name)
}
"""Operation -> the name of one of its drifts, which reads the progress if any does."""


def drawn(learned, seed, size):
    """A drift with parameters `size` away from its start."""
    start, noise = helper.moved(learned, size, seed)
    return learned.bind(jax.tree.map(np.add, start, noise))


@jax.jit
def kept(drift, progress):
    """Which of the conditions on drifts a function keeps, on a grid."""
    context = Context(progress=progress)

    def value(d, a):
        return drift(d, a, EPS, context)

    slope = jnp.vectorize(jax.grad(value))
    advantage = jnp.linspace(-5.0, 5.0, 21)
    d, a = jnp.broadcast_arrays(jnp.linspace(-3.0, 3.0, 61)[:, None], advantage)
    one = jnp.zeros_like(advantage)
    # Where r = 1, and coming from both sides; r − 1 = log r up to its square.
    at_one = jnp.stack([slope(one + side, advantage) for side in (-1e-12, 0.0, 1e-12)])
    far = jnp.array([-50.0, -5.0, -1e-6, 0.0, 1e-6, 5.0, 40.0])[:, None]
    far, large = jnp.broadcast_arrays(far, jnp.array([-1e6, -1e3, 0.0, 1e3, 1e6]))
    slopes = jnp.concatenate([slope(d, a).ravel(), slope(far, large).ravel()])
    return {
        "not negative": (value(d, a) >= 0).all(),
        "zero at r = 1": (jnp.abs(value(one, advantage)) <= 1e-7).all(),
        "no slope at r = 1": (jnp.abs(at_one) <= 1e-5).all(),
        "finite gradients": jnp.isfinite(slopes).all(),
    }


def breaches(drift, progress=0.3):
    """Names of the conditions that it does not keep."""
    conditions = jax.device_get(kept(drift, np.float32(progress)))
    return {name for name, ok in conditions.items() if not ok}


@pytest.mark.parametrize("name", drifts.HAND_MADE)
def test_hand_made_drifts_are_drifts(name):
    assert breaches(drifts.HAND_MADE[name]) == set()


@pytest.mark.parametrize("name", ONE_OF_EACH.values())
@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31 - 1),
    size=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    progress=st.floats(0, 1, width=32),
)
def test_learned_drifts_are_drifts_whatever_their_numbers(name, seed, size, progress):
    assert breaches(drawn(LEARNED[name], seed, size), progress) == set()


def test_what_is_no_drift_is_found_out():
    """(r − 1) A is the negative control, and one for each condition."""

    @slots.function
    def linear(log_ratio, advantage, clip_eps, context):
        return jnp.expm1(log_ratio) * advantage

    @slots.function
    def shifted(log_ratio, advantage, clip_eps, context):
        return drifts.ppo_clip(log_ratio, advantage, clip_eps) + 1e-3

    @slots.function
    def steep(log_ratio, advantage, clip_eps, context):
        return jnp.abs(log_ratio * advantage)

    @slots.function
    def root(log_ratio, advantage, clip_eps, context):
        return jnp.sqrt(1e-9 + log_ratio**3 * advantage) - 1e-9**0.5

    assert breaches(linear) == {"not negative", "no slope at r = 1"}
    assert breaches(shifted) == {"zero at r = 1"}
    assert breaches(steep) == {"no slope at r = 1"}
    assert "finite gradients" in breaches(root)


def test_dpo_at_golden_values():
    learned = drifts.dpo_constants()
    start = learned.bind(learned.init(jax.random.key(0)))
    ratio = np.float32([1.0, 1.5, 3.0, 0.5, 0.5, 0.2, 1.5])
    advantage = np.float32([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    expected = [0.0, 0.01016, 0.47681, 0.0, 0.20146, 1.01503, 0.0]
    for drift in (drifts.dpo, start):
        found = jax.jit(drift)(np.log(ratio), advantage, EPS)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_dpos_gradient_survives_compilation():
    """Compiled within a loop, where its terms round differently. Of a ReLU of the
    difference as it is written in the paper, one sample in five had the gradient A."""
    advantage = jax.random.normal(jax.random.key(2), (160,))
    d = 1e-5 * jax.random.normal(jax.random.key(1), (160,))
    learned = drifts.dpo_constants()

    @jax.jit
    def run(params, d):
        def objective(d):
            drift = learned.apply(params, d, advantage, EPS)
            return (jnp.exp(d) * advantage - drift).sum()

        def step(d, _):
            gradient = jax.grad(objective)(d)
            return d - 0 * gradient, gradient

        return jax.lax.scan(step, d, None, length=2)[1]

    found = run(learned.init(jax.random.key(0)), d)
    expected = jnp.broadcast_to(jnp.exp(d) * advantage, (2, 160))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_dpos_limit_leaves_nothing_to_gain():
    """α, β -> 0: ReLU((r − 1) A) and ReLU(A log r), as `dpo_constants` says."""
    learned = drifts.dpo_constants(1e-2, 1e-2)
    params = jax.tree.map(lambda x: x - 7.0, learned.init(jax.random.key(0)))
    d = np.linspace(-2.0, 2.0, 41, dtype=np.float32)
    limit = jax.jit(learned.bind(params))
    for advantage, expected in ((1.0, np.exp(d) - 1), (-1.0, -d)):
        found = limit(d, np.full_like(d, advantage), EPS)
        np.testing.assert_allclose(found, np.maximum(expected, 0), atol=1e-4)


def test_a_drift_network_can_have_less_drift_than_ppo():
    learned = drifts.drift_network("ppo_clip", (4,))
    params = learned.init(jax.random.key(0))
    d, advantage = jnp.float32(1.0), jnp.float32(1.0)
    ppo = drifts.ppo_clip(d, advantage, EPS)
    for sign in (-1.0, 1.0):
        moved = learned.bind(params | {"b1": jnp.full(1, sign)})
        assert sign * (moved(d, advantage, EPS) - ppo) > 0.1


def test_lpo_is_ppo_up_to_its_dead_zone():
    learned = drifts.lpo_network("ppo_clip")
    start = learned.bind(learned.init(jax.random.key(0)))
    d = jnp.linspace(-2.0, 2.0, 81)
    advantage = jnp.linspace(3.0, -3.0, 81)
    ppo = drifts.ppo_clip(d, advantage, EPS)
    np.testing.assert_allclose(
        start(d, advantage, EPS), jax.nn.relu(ppo - 1e-4), rtol=1e-5, atol=1e-7
    )
    assert not learned.starts_hand_made


def test_every_learned_drift_claims_to_be_one():
    kinds = {name for name, one in helper.cases().items() if one.slot == "drift"}
    assert kinds == set(LEARNED)
    assert len(kinds) >= 9
