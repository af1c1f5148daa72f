"""Guarantees of families of learned functions, for members drawn at random.

A family claims its guarantees in the registry, by the names of `operations.GUARANTEES`;
here is a check of each name, for every family that claims it. The checks of one family
share its programs. A loss without guarantees is the negative control.
"""

import functools

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import optax
import pytest
from loops import SMALL

from metaevo import envs, losses
from metaevo.learned import operations, rescalings
from metaevo.learned.functions import Learned
from metaevo.learned.operations import Operation
from metaevo.rl import normalization
from metaevo.slots import Context

NUM_MEMBERS = 120
DISTANCES = (0.3, 1.0, 3.0)
"""How far members lie from the start, in standard deviations of their parameters."""
CASES = helper.cases()


CHECKS = {}
"""Guarantee -> its check, `(name of a case) -> None`."""


def check_of(guarantee):
    def register(check):
        CHECKS[guarantee] = check
        return check

    return register


def claims(name):
    """The guarantees of a case."""
    case = CASES[name]
    return case.operation.guarantees(case.make().spec)


def claiming(guarantee):
    """Names of the cases that give it."""
    return [name for name in CASES if guarantee in claims(name)]


each = functools.partial(helper.each, group="guarantees")


# Drifts are held to theirs in tests/unit/test_drifts.py.
@each([name for name in CASES if set(claims(name)) - {"drift"}])
def test_a_family_keeps_what_it_claims(name):
    for guarantee in claims(name):
        CHECKS[guarantee](name)


def members(learned, num=NUM_MEMBERS, distances=DISTANCES):
    """Params of random members, leaves [num, ...]."""
    start = learned.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(start)
    rng = np.random.default_rng(1)
    size = np.resize(distances, num)

    def away(x):
        noise = rng.normal(size=(num, *x.shape))
        return jnp.asarray(x + size.reshape(-1, *[1] * x.ndim) * noise, jnp.float32)

    return jax.tree.unflatten(tree, [away(x) for x in leaves])


def member(params, i):
    return jax.tree.map(lambda x: np.asarray(x[i]), params)


# --- losses of critics ----------------------------------------------------------------


def of_critic(learned, kind):
    """`(params, value, target, return_std) -> loss`, elementwise, of either slot."""

    def loss(params, value, target, std):
        context = Context(0.4, std, {"clip_eps": 0.2})
        first = (value, target, value)
        if kind == "td_loss":
            first = (target - value, value, target)
        return learned.apply(params, *first, context)

    return loss


@functools.cache
def evaluated(name):
    """Params of many members, the errors in s, and `(errors, target, s) -> losses and
    slopes [members, points]`."""
    case = CASES[name]
    return _evaluated(case.make(), case.operation.slot)


def _evaluated(learned, kind):
    loss = of_critic(learned, kind)
    params = members(learned)
    near, far = np.linspace(-8, 8, 401), np.geomspace(8, 1e4, 40)[1:]
    error = np.float32(np.concatenate([-far[::-1], near, far]))

    @jax.jit
    def at(error, target, std):
        def one(params, error):
            return jax.value_and_grad(
                lambda v: loss(params, v, jnp.float32(target), std)
            )(target + error)

        over = jax.vmap(jax.vmap(one, (None, 0)), (0, None))
        return over(params, error)

    return params, error, lambda *args: jax.tree.map(np.asarray, at(*args))


@check_of("nonnegative")
def never_negative(name):
    _, error, at = evaluated(name)
    for target, std in ((0.0, 1.0), (-3.0, 1.0), (0.0, 1e-3), (0.0, 100.0)):
        value, _ = at(error, target, std)
        assert (value >= 0).all()


@check_of("coercive")
def grows_without_bound_in_the_error(name):
    _, error, at = evaluated(name)
    value, slope = at(error, 0.0, 1.0)
    tail = np.abs(error) >= 20
    assert (slope * np.sign(error) > 0)[:, tail].all()
    # Over the last decade at least as a root of the error does.
    for end, decade in ((0, np.searchsorted(error, -1e3)),
                        (-1, np.searchsorted(error, 1e3))):  # fmt: skip
        assert (value[:, end] > 3 * value[:, decade]).all()


@check_of("scale-equivariant")
def scales_as_the_squared_error(name):
    """f(c v, c g, c s) = c² f(v, g, s), and its slopes are c times as large."""
    _, error, at = evaluated(name)
    value, slope = at(error, 0.0, 1.0)
    size = 1 + np.abs(error)
    for c in np.float32([1 / 1024, 0.01, 8.0, 100.0]):
        scaled, scaled_slope = at(c * error, 0.0, c)
        # Powers of two change no bits; the steepest of the members magnify the others'.
        near = 0.0 if np.log2(c) % 1 == 0 else 1e-4
        # Terms of opposite signs may cancel, so beside the squared error.
        close = functools.partial(np.testing.assert_allclose, rtol=near, atol=10 * near)
        close(scaled / c**2 / size**2, value / size**2)
        close(scaled_slope / c / size, slope / size)
    assert np.ptp(value[:, 0] / error[0] ** 2) > 0.1


@check_of("convex")
def slope_never_falls(name):
    _, error, at = evaluated(name)
    _, slope = at(error, 0.0, 1.0)
    rises = np.diff(slope, axis=1)
    rounding = 1e-5 * np.maximum(np.abs(error[1:]), np.abs(error[:-1])) + 1e-6
    assert (rises >= -8 * rounding).all()
    assert np.ptp(slope[:, 0]) > 0.1 * np.abs(error[0])


BIASED = [name for name, case in CASES.items() if "max_bias" in case.make().spec]


def test_losses_whose_facts_have_a_minimum_are_those_tested_below():
    found = []
    for name, case in CASES.items():
        if case.operation.slot in ("value_loss", "td_loss"):
            made = case.make()
            if "minimum" in case.operation.facts(made.spec, helper.away(made)):
                found.append(name)
    assert found == BIASED


@each(BIASED)
def test_a_loss_is_least_where_its_facts_say(name):
    case = CASES[name]
    params, error, at = evaluated(name)
    value, _ = at(error, 0.0, 1.0)
    made = case.make()
    loss = jax.jit(of_critic(made, case.operation.slot))
    found = []
    for i in range(0, NUM_MEMBERS, 10):
        one = member(params, i)
        minimum = case.operation.facts(made.spec, one)["minimum"]
        least, slope = jax.value_and_grad(loss, 1)(
            one, jnp.float32(minimum), jnp.float32(0.0), jnp.float32(1.0)
        )
        assert least <= value[i].min() + 1e-6
        assert abs(slope) < 1e-4
        found.append(minimum)
    assert np.ptp(found) > 0.1 or made.spec["max_bias"] == 0


NUM_FITTED, NUM_STEPS, STEP_SIZE = 1000, 200, 0.25


def fitted(learned, kind):
    """Distances of values from fixed targets, [members, targets], before and after.

    In standard deviations of the targets; each member's values are the parameters, and
    Adam could carry them 50 of these away.
    """
    loss = of_critic(learned, kind)
    rng = np.random.default_rng(2)
    target = np.float32(7.0 + 3.0 * rng.normal(size=8))
    std = np.float32(target.std())
    start = np.float32(7.0 + 6.0 * rng.normal(size=8))
    adam = optax.adam(STEP_SIZE * float(std))

    def fit(params):
        def step(carry, _):
            value, state = carry
            slope = jax.grad(lambda v: loss(params, v, target, std).mean())(value)
            change, state = adam.update(slope, state)
            return (optax.apply_updates(value, change), state), None

        carry = jnp.asarray(start), adam.init(jnp.asarray(start))
        (value, _), _ = jax.lax.scan(step, carry, length=NUM_STEPS)
        return value

    value = jax.jit(jax.vmap(fit))(members(learned, NUM_FITTED))
    return np.abs(start - target) / std, np.abs(np.asarray(value) - target) / std


@each([x for x in claiming("coercive") if not CASES[x].temporal])
def test_no_member_runs_away_from_fixed_targets(name):
    case = CASES[name]
    before, after = fitted(case.make(), case.operation.slot)
    assert (after <= before + 5).all()
    # They were fitted at all: most values come near their targets.
    assert np.median(after) < 0.5 * np.median(before)


CONTROLS = {
    "residual_network zero": losses.residual_network("zero", scale=3.0),
    "residual_network": losses.residual_network("square", scale=3.0),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_family_without_guarantees_fails_where_it_should(name):
    """Members that run away, from a start at no loss; minima below 0 and slopes that
    fall, from one at the squared error."""
    learned = CONTROLS[name]
    _, error, at = _evaluated(learned, "value_loss")
    value, slope = at(error, 0.0, 1.0)
    assert (value < 0).any()
    assert (np.diff(slope, axis=1) < -1e-2).any()
    scaled, _ = at(8 * error, 0.0, 8.0)
    assert not np.allclose(scaled / 64, value, rtol=0.1)
    if name.endswith("zero"):
        before, after = fitted(learned, "value_loss")
        ran = (after > before + 5).any(1).mean()
        assert ran > 0.1


def test_without_return_std_it_says_what_to_give():
    for name in claiming("scale-equivariant"):
        learned = CASES[name].make()
        params = jax.eval_shape(learned.init, jax.random.key(0))
        for context in (Context(), Context(0.3)):
            call = functools.partial(learned.apply, context=context)
            with pytest.raises(ValueError, match=r"Context\(return_std=targets\.std"):
                jax.eval_shape(call, params, *jnp.ones((3, 4)))


# --- drifts, rewards and others -------------------------------------------------------


@check_of("potential")
def adds_nothing_along_a_cycle(name):
    """With γ = 1 what a potential adds on the way is lost on the way back; and into an
    end it adds what does not depend on the end."""
    case = CASES[name]
    reward = case.make().bind(helper.away(case.make(), 1.0))
    obs = np.random.default_rng(0).normal(size=(6, len(case.settings["units"])))
    obs = jnp.asarray(3 * obs, jnp.float32)
    context = Context(stats={"gamma": 1.0})

    def added(o, after, terminated):
        one = jax.vmap(lambda o, x: reward(o, 0, 2.0, x, terminated, context) - 2.0)
        return one(o, after)

    along = added(obs, jnp.roll(obs, -1, 0), jnp.bool(False))
    assert np.abs(along).max() > 0.1
    np.testing.assert_allclose(along.sum(), 0.0, atol=1e-4)
    ends = [added(obs, jnp.roll(obs, -i, 0), jnp.bool(True)) for i in (1, 2)]
    np.testing.assert_array_equal(*ends)


@check_of("bounded")
def stays_within_its_bound(name):
    """For inputs of any size; and the bound is not idle."""
    case = CASES[name]
    made, call = case.make(), helper.tracing.signature(case.make().spec).call
    inputs = [np.float32(x) for x in case.inputs()]
    given = helper.tracing.signature(made.spec).given
    context = helper.tracing.context_of({"progress": np.float32(0.0)})

    @jax.jit
    def output(params, scale):
        arrays = [scale * x for x in map(jnp.asarray, inputs[: len(given)])]
        if case.operation.slot == "reward":
            at = list(given).index("reward")
            arrays[at] = jnp.zeros_like(arrays[at])
            at = list(given).index("action")
            if arrays[at].ndim == 1:
                arrays[at] = jnp.asarray(inputs[at])
        return call(made.apply, params, arrays, context)

    reached = 0.0
    for distance in DISTANCES:
        for seed in range(3):
            params = helper.away(made, distance, seed)
            bound = case.operation.facts(made.spec, params)["bound"]
            for scale in np.float32([1.0, 1e3, 1e20]):
                largest = float(np.abs(output(params, scale)).max())
                assert largest <= bound * (1 + 1e-5)
                reached = max(reached, largest / bound)
    assert reached > 0.05


@check_of("between")
def lies_between_one_and_the_ratio(name):
    """And never falls with it; a smaller clip gives a smaller weight."""
    case = CASES[name]
    made = case.make()
    log_ratio = np.linspace(-6, 6, 1201, dtype=np.float32)
    weight = jax.jit(jax.vmap(lambda params, x: made.apply(params, x), (0, None)))
    found = np.asarray(weight(members(made), log_ratio))
    ratio, rounding = np.exp(log_ratio), 1 + 1e-5
    assert (found >= np.minimum(1, ratio) / rounding).all()
    assert (found <= np.maximum(1, ratio) * rounding).all()
    assert found.max() <= made.spec["largest"] * rounding
    assert found.max() > 0.5 * made.spec["largest"]
    assert (np.diff(found, axis=1) >= -1e-5 * found[:, 1:]).all()
    # c f(r / c) grows with c where log f rises by no more than log r.
    assert (np.diff(np.log(found), axis=1) <= np.diff(log_ratio) + 1e-5).all()
    # Where both policies agree an action counts once.
    np.testing.assert_array_equal(found[:, 600], 1.0)


@check_of("increasing")
def keeps_order_and_range(name):
    case = CASES[name]
    made = case.make()
    q = np.linspace(0, 1, 501, dtype=np.float32)
    mapped = jax.jit(jax.vmap(lambda params, q: made.apply(params, q), (0, None)))
    found = np.asarray(mapped(members(made), q))
    assert (np.diff(found, axis=1) >= -1e-6).all()
    np.testing.assert_allclose(found[:, 0], 0.0, atol=1e-6)
    np.testing.assert_allclose(found[:, -1], 1.0, atol=1e-5)
    assert np.abs(found - q).max() > 0.5  # and is not the value itself


@check_of("order-preserving")
def keeps_order_and_comes_back(name):
    """However far they are, and through the inverse."""
    made = CASES[name].make()
    x = np.sinh(np.linspace(-14, 14, 561, dtype=np.float32))

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def there_and_back(params, x):
        y = made.apply(params, x)
        return y, rescalings.inverse(made.bind(params), y)

    found, back = map(np.asarray, there_and_back(members(made), x))
    assert (np.diff(found, axis=1) > 0).all()
    np.testing.assert_allclose(found[:, 280], 0.0, atol=1e-6)
    np.testing.assert_allclose(back, np.broadcast_to(x, back.shape), 2e-4, 1e-4)


@check_of("proportional")
def follows_the_error_and_the_scale_of_rewards(name):
    case = CASES[name]
    made, call = case.make(), helper.tracing.signature(case.make().spec).call
    error, age, visits, reward, terminated = map(np.float32, case.inputs()[:5])

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def priority(params, scale):
        context = Context(np.float32(0.0), scale * np.float32(1.7))
        given = scale * error, age, visits, scale * reward, terminated
        return call(made.apply, params, given, context)

    found = np.asarray(priority(members(made), np.float32(1.0)))
    most = made.spec["largest"]
    assert (found <= np.abs(error) * most * (1 + 1e-5)).all()
    assert (found >= np.abs(error) / most / (1 + 1e-5)).all()
    ratio = found[:, error != 0] / np.abs(error[error != 0])
    assert ratio.max() > 0.5 * most
    assert ratio.min() < 2 / most
    for scale in np.float32([0.01, 100.0]):
        scaled = priority(members(made), scale)
        np.testing.assert_allclose(scaled, scale * found, rtol=2e-3)


# --- the registry ---------------------------------------------------------------------


def test_every_guarantee_has_a_meaning_a_check_and_a_family():
    assert operations.GUARANTEES.keys() == CHECKS.keys() | {"drift"}
    assert all(claiming(name) for name in operations.GUARANTEES)
    assert {x for name in CASES for x in claims(name)} == operations.GUARANTEES.keys()


def test_a_false_claim_is_found():
    """A family that says it is coercive and is not fails the tests of it."""
    zero = losses.residual_network("zero")
    false = Learned(zero.init, zero.apply, zero.spec)
    false_claims = "coercive", "nonnegative"
    one = Operation(
        *("false", "value_loss", lambda: false, frozenset()),
        guarantees=lambda op: false_claims,
    )
    CASES["false"] = helper.Case(one, {})
    try:
        assert "false" in claiming("coercive")
        checks = [CHECKS[claim] for claim in false_claims]
        for check in (*checks, test_no_member_runs_away_from_fixed_targets):
            with pytest.raises(AssertionError):
                check("false")
    finally:
        del CASES["false"]
        evaluated.cache_clear()


# --- in the inner loops ---------------------------------------------------------------


VALUES = ("dqn", "gorila", "apex", "r2d2", "pqn", "gumbel_alphazero")


def paid(by, obs, action, reward, next_obs, terminated, context):
    return by * reward


def changed(env, by, scale, shift):
    """An environment of other rewards and observations; traced."""

    def seen(obs):
        return scale * obs + shift

    def reset(key):
        state, obs = env.reset(key)
        return state, seen(obs)

    def step_raw(key, state, action):
        state, out = env.step_raw(key, state, action)
        obs, final_obs = seen(out.obs), seen(out.final_obs)
        reward = by * out.reward
        return state, out._replace(obs=obs, final_obs=final_obs, reward=reward)

    step = envs.with_auto_reset(reset, step_raw)
    return env._replace(reset=reset, step=step, step_raw=step_raw)


def of_other_scales(name, normalize, env=None):
    """Return how weights of policies differ, of rewards that are scaled by 128, and of
    observations that are scaled and shifted.

    PPO has a member of a family that measures errors in the targets' deviation.
    Statistics are given, since a first rollout is made without any: of observations but
    to PPO, of returns to a search, which plans it. So is R2D2's memory of the warm-up.
    """
    small, here = SMALL[name], envs.make(env or SMALL[name].env)
    plain, plans = small.meta, name == "gumbel_alphazero"
    options = {"normalize_reward": normalize}
    if name == "ppo":
        learned = CASES["weighted_square"].make()
        loss = learned.bind(helper.away(learned, 0.5))
        plain = plain._replace(value_loss=loss)
    else:
        options["normalize_observation"] = normalize
    if name == "r2d2":
        plain = plain._replace(stored_memory=0.0)

    @jax.jit
    def trained(by, scale, shift):
        env, meta = changed(here, by if plans else 1.0, scale, shift), plain
        if not plans:
            meta = meta._replace(reward=jax.tree_util.Partial(paid, by))
        inner = small.make(plain, env=env, **options)
        state = inner.init(jax.random.key(0), meta)
        agent, size = state.agent, here.observation.shape
        if name != "ppo":
            variance = jnp.full(size, (0.5 * scale) ** 2)
            stats = normalization.RunningStats(
                jnp.full(size, shift), variance, jnp.float32(100)
            )
            agent = agent._replace(obs_stats=stats)
        if plans:
            given = normalization.RunningStats(0.0 * by, by**2, jnp.float32(9))
            agent = agent._replace(return_stats=given)
        state = state._replace(agent=agent)
        if name == "r2d2":
            hidden = jnp.zeros_like(state.experience.hidden)
            experience = state.experience._replace(hidden=hidden)
            state = state._replace(experience=experience)
        return inner.train(jax.random.key(1), meta, state)[0].agent.params

    # By numbers that round nothing away.
    first, *others = (
        jax.tree.leaves(trained(*np.float32(by)))
        for by in ((1.0, 1.0, 0.0), (128.0, 1.0, 0.0), (1.0, 4.0, 8.0))
    )
    return [
        max(np.abs(a - b).max() for a, b in zip(first, other, strict=True))
        for other in others
    ]


@pytest.mark.parametrize("name", ["ppo", *VALUES])
def test_what_is_normalized_does_not_change_policies_by_its_scale(name):
    """Nor observations by their origin."""
    by_rewards, by_observations = of_other_scales(name, True)
    if name == "gumbel_alphazero":  # the observations of its own hardly vary
        _, by_observations = of_other_scales(name, True, "gymnax/CartPole-v1")
    assert by_rewards < 1e-3
    assert by_observations < 1e-3 or name == "ppo"


@pytest.mark.parametrize("name", ["ppo", "dqn", "gumbel_alphazero"])
def test_what_is_not_normalized_gives_another_policy(name):
    """The test above can fail."""
    assert min(of_other_scales(name, False)) > 0.01
