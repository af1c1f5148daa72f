"""CEM-RL: the cross-entropy method by hand, who learns, and what the mean follows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from climbing import compiled

from metaevo.errors import ConfigError
from metaevo.types import Space
from strategies.cem_rl import cem_rl

SIZE = 8


def space(start=2.0, dim=3) -> Space:
    """Actors that are a nested pytree of 2 x `dim` numbers, starting at `start`."""
    actor = {"a": jnp.full(dim, start), "b": {"c": jnp.full(dim, start)}}
    return Space(
        lambda key: {"actor": actor, "learn": jnp.ones(())},
        lambda params, meta: meta,
    )


def flat(params):
    leaves = jax.tree.leaves(params["actor"])
    return np.concatenate([np.asarray(x) for x in leaves], -1)


def made(*options, **named):
    return compiled(cem_rl(*options, **named))


def asked(strategy):
    """The first generation."""
    return strategy.ask(jax.random.key(1), strategy.init(jax.random.key(0)))


def generation(strategy, state, function, key=0):
    proposal, state = strategy.ask(jax.random.key(key), state)
    fitness = jnp.asarray(function(flat(proposal.params)), jnp.float32)
    return proposal, strategy.tell(jax.random.key(key), state, proposal, fitness)


def test_it_finds_the_top_of_a_parabola():
    """f(a) = −(a − 0.3)² with 64 members, 6 elites, 4 generations from N(0, 1)."""
    sizes = {"num_elites": 6, "num_learners": 0, "sigma": 1.0}
    strategy = made(space(0.0, dim=1), 64, **sizes, noise=0.0, final_noise=0.0)
    state = strategy.init(jax.random.key(0))
    for i in range(4):
        _, state = generation(strategy, state, lambda x: -((x - 0.3) ** 2).sum(1), i)
    np.testing.assert_allclose(flat(strategy.solution(state)), 0.3, atol=0.02)


def test_two_generations_by_hand():
    strategy = made(space(), SIZE, num_elites=3, sigma=0.2, noise=0.3)
    state = strategy.init(jax.random.key(0))
    mean, noise = np.full(6, 2.0), 0.3**2
    weights = np.log(4 / np.arange(1, 4))
    weights /= weights.sum()
    for i in range(2):
        proposal, state = generation(strategy, state, lambda x: -(x**2).sum(1), i)
        x = flat(proposal.params)
        elites = x[np.argsort((x**2).sum(1))[:3]]
        noise = 0.95 * noise + 0.05 * 0.003**2
        variance = weights @ (elites - mean) ** 2 / 3 + noise
        mean = weights @ elites
        np.testing.assert_allclose(flat(strategy.solution(state)), mean, rtol=1e-5)
    # What is drawn next has that variance.
    ask = jax.jit(jax.vmap(lambda key: strategy.ask(key, state)[0].params))
    drawn = ask(jax.random.split(jax.random.key(2), 2000))
    spread = flat(drawn).var((0, 1))
    np.testing.assert_allclose(spread, variance, rtol=0.05)


def test_the_first_half_learns_and_the_distribution_does_not_see_it():
    strategy = made(space(), SIZE)
    proposal, state = asked(strategy)
    assert proposal.parents is None
    assert proposal.params["learn"].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert state.mean.shape == (6,)
    assert strategy.solution(state)["learn"] == 0
    for num in (0, 8):
        proposal, _ = asked(made(space(), SIZE, num_learners=num))
        assert proposal.params["learn"].sum() == num


def test_the_mean_follows_what_was_learned():
    """Members come back with the actors that they trained: these enter the mean."""
    strategy = made(space(), SIZE, num_elites=1)
    proposal, state = asked(strategy)
    learned = jax.tree.map(lambda x: x - 1.0, proposal.params["actor"])
    proposal = proposal._replace(params=proposal.params | {"actor": learned})
    fitness = jnp.arange(SIZE, 0.0, -1.0)
    told = strategy.tell(jax.random.key(2), state, proposal, fitness)
    np.testing.assert_allclose(
        flat(strategy.solution(told)), flat({"actor": learned})[0], rtol=1e-6
    )
    assert strategy.metrics(told)["learned"] == 1.0
    told = strategy.tell(jax.random.key(2), state, proposal, -fitness)
    assert strategy.metrics(told)["learned"] == 0.0


def test_ties_share_their_ranks():
    """Two best of four: which of them comes first must not matter."""
    strategy = made(space(), 4, num_elites=3)
    proposal, state = asked(strategy)
    fitness = jnp.array([1.0, 5.0, 5.0, 0.0])
    told = strategy.tell(jax.random.key(2), state, proposal, fitness)
    weights = np.log(4 / np.arange(1, 4))
    first, second, third = weights / weights.sum()
    x = flat(proposal.params)
    expected = (first + second) / 2 * (x[1] + x[2]) + third * x[0]
    np.testing.assert_allclose(flat(strategy.solution(told)), expected, rtol=1e-5)


def test_mirrored_members_are_mirror_images():
    strategy = made(space(), SIZE, mirrored=True)
    assert strategy.mirrored
    assert not cem_rl(space(), SIZE).mirrored
    x = flat(asked(strategy)[0].params) - 2.0
    np.testing.assert_allclose(x[:4], -x[4:], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"population_size": 1}, "population_size=1: expected 2 or more"),
        ({"population_size": 7, "mirrored": True}, "population_size=7.* even"),
        ({"num_elites": 0}, "num_elites=0: expected 1 to 8"),
        ({"num_elites": 9}, "num_elites=9: expected 1 to 8"),
        ({"num_learners": 9}, "num_learners=9: expected 0 to 8"),
        ({"sigma": 0.0}, r"sigma=0\.0"),
        ({"noise": -1.0}, r"noise=-1\.0"),
        ({"final_noise": -1.0}, r"final_noise=-1\.0"),
        ({"noise_decay": 1.5}, r"noise_decay=1\.5: expected 0 to 1"),
        (
            {"space": Space(lambda key: jnp.zeros(3), None)},
            "needs a space with `learn`",
        ),
    ],
)
def test_wrong_options_are_refused(change, message):
    options = {"space": space(), "population_size": SIZE} | change
    with pytest.raises(ConfigError, match=message):
        cem_rl(**options)
