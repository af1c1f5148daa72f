"""TD3, alone and with a critic that a population shares."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from lifetimes import close, programs, same, trained
from loops import COUPLED, SGD, SMALL
from test_inner_loops import equations

from inner_loops import _td3, td3, td3_shared
from metaevo import envs, fitness, policies, slots
from metaevo.engine import checks
from metaevo.errors import ConfigError
from metaevo.evaluators.local import LocalEvaluator
from metaevo.rl import critics, diversity, networks, off_policy
from metaevo.slots import Context
from metaevo.types import Proposal, Search, Space, Strategy

SMALL_TD3, SMALL_SHARED = SMALL["td3"], COUPLED["td3_shared"]
LAST = fitness.last_segments(1)


def test_targets_start_equal_and_twins_do_not():
    for name in ("td3", "sac"):
        meta = SMALL[name].meta
        agent = programs(name)[0](jax.random.key(0), meta).agent
        critic = agent.critic
        target = critic.target_params if name == "td3" else agent.target_critic
        same(target, critic.params)
        first, second = (
            jax.tree.map(lambda x, i=i: x[i], critic.params) for i in (0, 1)
        )
        with pytest.raises(AssertionError):
            close(first, second, rtol=1e-3)
    agent = programs("dqn")[0](jax.random.key(0), SMALL["dqn"].meta).agent
    same(agent.target_params, agent.params)


def test_acting_is_greedy_and_within_bounds():
    """Evaluation explores nothing, whatever the noise of training."""
    meta = SMALL_TD3.meta._replace(exploration_noise=5.0)
    loop, agent = SMALL_TD3.make(meta), trained("td3")[0].agent
    obs, act = np.float32([0.1, 0.9, -3.0]), jax.jit(loop.act)
    a, b = (act(jax.random.key(i), meta, agent, (), obs)[0] for i in (0, 1))
    np.testing.assert_array_equal(a, b)
    assert (np.abs(a) <= 2.0).all()


def test_a_given_actor_is_where_learning_starts_and_stays_if_it_does_not_learn():
    """As CEM-RL, whose strategy proposes actors, needs it. Its critic learns."""
    init, train = programs("td3_shared")
    meta = SMALL_SHARED.meta
    actor = jax.eval_shape(init, jax.random.key(0), meta).agent.actor.params
    actor = jax.tree.map(lambda x: np.full(x.shape, 0.1, x.dtype), actor)
    meta = meta._replace(actor=actor, learn=0.0)
    born = init(jax.random.key(7), meta)
    same(born.agent.actor.params, actor)
    same(born.agent.actor.target_params, actor)
    kept, _ = train(jax.random.key(1), meta, born)
    same(kept.agent.actor, born.agent.actor)
    with pytest.raises(AssertionError):
        close(kept.shared.critic.params, born.shared.critic.params, rtol=1e-4)


def test_targets_are_the_least_value_of_smoothed_actions_within_bounds():
    """Fujimoto et al., 2018, algorithm 1, for critics 5 a and o − 3 a."""

    def values(params, obs, action):
        return jnp.stack([params[0] * action, obs + params[1] * action])[..., 0]

    nets = _td3.Networks(
        None, lambda params, obs: params * obs, critics.Critics(None, values)
    )
    policy = _td3.TargetTrainState(None, 0.5, None)
    critic = _td3.TargetTrainState(None, (5.0, -3.0), None)
    obs = np.linspace(-3.0, 3.0, 13, dtype=np.float32)[:, None]
    noise = np.tile(np.float32([-4.0, -0.5, 0.0, 0.5, 4.0]), 13)[:13, None]
    end = np.arange(13) % 5 == 0
    ones = jnp.ones(13)
    batch = off_policy.NStepTransition(
        None, None, 2 * ones, obs, end, 0.9 * ones, None, None
    )
    meta = td3.Meta(smoothing_noise=0.4, noise_clip=0.3)

    @jax.jit
    def target(noise):
        return _td3.target_of(nets, policy, critic, batch, noise, meta, Context())

    found = target(noise)
    action = np.clip(0.5 * obs + np.clip(0.4 * noise, -0.3, 0.3), -1, 1)
    least = np.minimum(5 * action, obs - 3 * action)[:, 0]
    np.testing.assert_allclose(found, 2 + 0.9 * np.where(end, 0, least), rtol=1e-5)


def test_one_critic_no_delay_and_no_smoothing_are_ddpg():
    """Lillicrap et al., 2016, algorithm 1, written plainly, in four updates."""
    meta = td3.Meta(1e-2, 2e-2, gamma=0.9, tau=0.1, smoothing_noise=0.0)
    config = td3.Config(
        features=(8,), num_critics=1, policy_delay=1, num_gradient_steps=4, batch_size=5
    )
    env = envs.make("gymnax/Pendulum-v1")
    action = _td3.require_actions(env, config)
    nets = _td3.networks_of(env.observation, action, config, config.num_critics)
    rng = np.random.default_rng(0)
    first, second, action, reward, noise = (
        jnp.float32(rng.normal(size=(4, 1, 5, *shape)))
        for shape in ((3,), (3,), (1,), (), (1,))
    )
    end = jnp.arange(20).reshape(4, 1, 5) % 4 == 0
    discount = jnp.full(end.shape, 0.9)
    batches = off_policy.NStepTransition(
        first, jnp.tanh(action), reward, second, end, discount, None, None
    )
    policy = _td3.newborn(jax.jit(nets.init)(jax.random.key(0)), meta)
    critic = _td3.newborn(jax.jit(nets.critics.init)(jax.random.key(1)), meta)

    @jax.jit
    def ours(policy, critic):
        return _td3.learn(nets, policy, critic, batches, noise, meta, Context())[:2]

    actor = networks.mlp((8,), 1, activation="relu")
    value = networks.mlp((8,), 1, activation="relu")
    adam = optax.scale_by_adam(eps=1e-5)

    def pi(params, obs):
        return jnp.tanh(actor.apply(params, obs))

    def q(params, obs, action):
        return value.apply(params, jnp.concatenate([obs, action], -1))[:, 0]

    def descend(loss, params, state, lr):
        direction, state = adam.update(jax.grad(loss)(params), state)
        return jax.tree.map(lambda x, d: x - lr * d, params, direction), state

    @jax.jit
    def plain(theta, phi):
        slow_theta, slow_phi = theta, phi
        theta_state, phi_state = adam.init(theta), adam.init(phi)
        for i in range(4):
            batch = jax.tree.map(lambda x, i=i: x[i, 0], batches)
            bootstrap = q(slow_phi, batch.next_obs, pi(slow_theta, batch.next_obs))
            y = batch.reward + 0.9 * (1 - batch.terminated) * bootstrap

            def critic_loss(phi, batch=batch, y=y):
                return 0.5 * ((y - q(phi, batch.obs, batch.action)) ** 2).mean()

            phi, phi_state = descend(critic_loss, phi, phi_state, 2e-2)

            def actor_loss(theta, batch=batch, phi=phi):
                return -q(phi, batch.obs, pi(theta, batch.obs)).mean()

            theta, theta_state = descend(actor_loss, theta, theta_state, 1e-2)
            slow_theta = optax.incremental_update(theta, slow_theta, 0.1)
            slow_phi = optax.incremental_update(phi, slow_phi, 0.1)
        return theta, slow_theta, phi, slow_phi

    policy_after, critic_after = ours(policy, critic)
    phi = jax.tree.map(lambda x: x[0], critic.params)
    theta, slow_theta, phi, slow_phi = plain(policy.params, phi)
    for found, expected in (
        (policy_after.params, theta),
        (policy_after.target_params, slow_theta),
        (jax.tree.map(lambda x: x[0], critic_after.params), phi),
        (jax.tree.map(lambda x: x[0], critic_after.target_params), slow_phi),
    ):
        close(found, expected, rtol=1e-4, atol=1e-5)


# --- a population with one critic -----------------------------------------------------


SIZE = 4
late = slots.function(lambda context: 1e-2 * (context.progress >= 0.5))


@functools.cache
def evaluator(num_devices):
    """Of members that push each other apart; their critic starts to learn at half."""
    meta = SMALL_SHARED.meta._replace(diversity_coef=0.0, critic_lr=late, tau=late)
    space = Space(
        lambda key: {"coef": jnp.zeros(())},
        lambda params, meta: meta._replace(diversity_coef=params["coef"]),
    )
    loop = SMALL_SHARED.make(meta, num_segments=2)
    search = Search(loop, space, None, 2, LAST, segments_per_generation=1)
    return LocalEvaluator(search, jax.devices()[:num_devices])


@functools.cache
def generations(num_devices=1, newborn=False):
    """Two generations over a shared critic: the evaluation and what lives on, of each.

    Members live on, or are born again in the second.
    """
    evaluate = evaluator(num_devices)
    params = {"coef": jnp.zeros(SIZE)}
    carried, found = (), []
    for i in range(2):
        parents = jnp.full(SIZE, -1) if i == 0 or newborn else jnp.arange(SIZE)
        evaluated, carried = evaluate(
            jax.random.key(i), Proposal(params, parents), carried
        )
        found.append((evaluated, carried[0]))
    assert {p._cache_size() for p in evaluate.programs.values()} <= {0, 1}
    return found


def test_the_shared_critic_is_the_same_on_one_and_two_devices():
    (one, state), (_, other) = generations()[1], generations(num_devices=2)[1]
    assert one.healthy.all()
    close(state.shared.critic.params, other.shared.critic.params, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        state.shared.rows.numbers, other.shared.rows.numbers, rtol=1e-4, atol=1e-5
    )
    close(state.agent.actor.params, other.agent.actor.params, rtol=1e-3, atol=1e-5)


def test_everybodys_transitions_are_in_the_shared_buffer():
    _, state = generations()[1]
    config = SMALL_SHARED.config
    rows, num_envs, _ = state.shared.rows.numbers.shape[1:]
    assert num_envs == SIZE * config["num_envs"]
    written = np.abs(np.asarray(state.shared.rows.numbers[0])).sum(-1) > 0
    warmup = config["learning_starts"] // config["num_envs"]
    steps = 4 * config["num_steps"]
    assert written.sum(0).tolist() == [min(rows, warmup + steps)] * num_envs
    # Members act apart, so no two environments hold the same.
    newest = np.asarray(state.shared.rows.numbers[0, warmup : warmup + steps])
    assert len(np.unique(newest[0], axis=0)) == num_envs


def test_what_is_shared_has_no_axis_for_members():
    """Whatever the size of the population, its critic is one; only rows are more."""
    alone = programs("td3")[0](jax.random.key(0), SMALL_TD3.meta).agent.critic
    expected = [(1, *x.shape) for x in jax.tree.leaves(alone)]
    _, state = generations()[1]
    assert [x.shape for x in jax.tree.leaves(state.shared.critic)] == expected
    assert int(state.clock.update) == state.agent.age.max() == 4


def test_newborns_find_the_critic_that_is_there():
    """As in CEM-RL: actors and their optimizers start over; what is shared goes on."""
    steps = 2 * SMALL_SHARED.config["num_gradient_steps"]
    counts = []
    for _, state in generations(newborn=True):
        actor, critic = state.agent.actor, state.shared.critic
        counts += critic.opt_state.count.tolist()
        assert set(actor.opt_state.count[0].tolist()) == {steps // 2}
    assert counts == [steps, 2 * steps]
    rows = np.abs(np.asarray(state.shared.rows.numbers[0, :, 0])).sum(-1) > 0
    assert rows.sum() == 32 + 4 * SMALL_SHARED.config["num_steps"]


@pytest.mark.parametrize("newborn", [False, True])
def test_schedules_of_what_is_shared_follow_the_population(newborn):
    """By members' ages they would differ, and start over with newborns."""
    (_, first), (_, second) = generations(newborn=newborn)
    first, second = first.shared.critic, second.shared.critic
    same(first.params, first.target_params)  # as born: the rate was 0
    with pytest.raises(AssertionError):
        close(second.params, first.params, rtol=1e-4)


def test_the_gradient_of_diversity_is_that_of_the_whole_population():
    """Against one gradient of one function of all actors, without collectives.

    In an environment with one observation every batch is known, and plain descent at
    rate 0.1 shows the gradient. The actor's own is that of its weight times its action;
    the small ones cut the diversity's, the large ones do not.
    """
    seen, coef, size = jnp.array([0.7, -0.4]), 0.6, 4
    weight = jnp.array([1e-3, 1e3, 1e3, 1e-3])
    env = probes.always(seen)
    config = td3_shared.Config(
        **SMALL_SHARED.config
        | {"total_timesteps": 72, "num_gradient_steps": 1, "policy_delay": 1}
        | {"num_segments": 1, "batch_size": 32}
    )
    meta = td3_shared.Meta(actor_lr=0.1, diversity_coef=coef, optimizer=SGD)
    loop, policy = td3_shared.make(env, config, meta), policies.of(env, config)
    rng = np.random.default_rng(0)
    actor = jax.tree.map(
        lambda x: jnp.float32(rng.normal(scale=0.5, size=(size, *x.shape))),
        jax.eval_shape(policy.init, jax.random.key(0)),
    )

    def actions(actor):
        return jax.vmap(policy.apply, (0, None))(actor, seen)

    def volume(actor):
        repeated = jnp.repeat(actions(actor), config.num_diversity_states, 1)
        return diversity.log_volume(repeated)

    def own(actor):
        return (weight * actions(actor)[:, 0]).sum()

    def norms(gradient):
        flat = [x.reshape(size, -1) for x in jax.tree.leaves(gradient)]
        return jnp.linalg.norm(jnp.concatenate(flat, 1), axis=1)

    down, apart = jax.jit(lambda x: (jax.grad(own)(x), jax.grad(volume)(x)))(actor)
    cut = jnp.minimum(1.0, norms(down) / norms(apart))
    assert ((cut < 1) == (weight < 1)).all()

    def expected(down, apart):
        apart = apart * cut.reshape(size, *[1] * (apart.ndim - 1))
        return -0.1 * (down - coef * apart)

    def bind(params, meta):
        @slots.function
        def push(q, action, context):
            return params["weight"] * action.sum(-1) + 0.0 * q

        return meta._replace(actor=params["actor"], actor_loss=push)

    space = Space(lambda key: None, bind)
    search = Search(loop, space, None, 1, LAST, segments_per_generation=1)
    evaluate = LocalEvaluator(search, jax.devices()[:2])
    newborn = Proposal({"actor": actor, "weight": weight}, jnp.full(size, -1))
    _, (state,) = evaluate(jax.random.key(0), newborn, ())
    assert len(evaluate.devices) == 2
    step = jax.tree.map(lambda x, old: x[0] - old, state.agent.actor.params, actor)
    close(step, jax.tree.map(expected, down, apart), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("slot", ["tau", "td_loss"])
def test_members_cannot_differ_in_what_acts_on_the_shared_critic(slot):
    """It would be nobody's critic, or fail deep inside JAX."""
    replaced = {slot: SMALL_TD3.changes[slot]}
    space = Space(
        lambda key: jnp.zeros(()), lambda params, meta: meta._replace(**replaced)
    )
    strategy = Strategy(
        init=lambda key: (),
        ask=lambda key, state: (Proposal(jnp.zeros(4)), state),
        tell=None,
        solution=None,
    )

    def checked(small, per):
        loop = small.make(num_segments=2)
        score = fitness.final_return
        search = Search(loop, space, strategy, 2, score, segments_per_generation=per)
        return checks.check(search)

    assert checked(SMALL_TD3, None).params.shape == (4,)
    with pytest.raises(ConfigError, match=f"slot '{slot}' cannot evolve here"):
        checked(SMALL_SHARED, 1)


def test_what_is_off_costs_nothing():
    """No collective, and no parameter of what is not used, in the plain program."""
    loop, meta = SMALL_TD3.make(), SMALL_TD3.meta
    state = jax.eval_shape(loop.init, jax.random.key(0), meta)
    run = jax.make_jaxpr(lambda state: loop.train(jax.random.key(0), meta, state))
    names = {e.primitive.name for e in equations(run(state).jaxpr)}
    assert not names & {"psum", "all_gather", "axis_index", "slogdet", "lu"}
    assert not loop.coupled


def test_options_that_do_not_go_together_are_refused():
    assert "diversity_coef" not in td3.Meta._fields
    with pytest.raises(ConfigError, match=r"inner\.normalize_observation"):
        SMALL_SHARED.make(normalize_observation=True)
    env = envs.make("gymnax/Pendulum-v1")._replace(action=envs.Box((1,)))
    for small in (SMALL_TD3, SMALL_SHARED):
        with pytest.raises(ConfigError, match=r"inner\.policy_delay=3"):
            small.make(policy_delay=3)
        with pytest.raises(ConfigError, match="finite bounds"):
            small.module.make(env)


# --- the delay as a slot --------------------------------------------------------------


def steps_of_both(delay):
    """Steps that Adam counted of critics and actor, and the agent."""
    agent = trained("td3", policy_delay=delay)[0].agent
    return int(agent.critic.opt_state.count), int(agent.actor.opt_state.count), agent


@pytest.mark.parametrize(("delay", "share"), [(1.5, 10), (3.0, 5), (0.1, 16)])
def test_the_actor_steps_as_often_as_the_slot_says(delay, share):
    """Of 16 steps of the critics; below 1 the delay counts as 1."""
    critics, actor, _ = steps_of_both(delay)
    assert (critics, actor) == (16, share)


def test_the_delay_as_a_slot_is_that_of_the_config():
    """The counts of Adam's steps are among what is compared."""
    critics, actor, agent = steps_of_both(2.0)
    assert (critics, actor) == (16, 8)
    close(agent, trained("td3")[0].agent, rtol=1e-5, atol=1e-6)
