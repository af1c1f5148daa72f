"""Self-play: the rival is the solution of the generation, simple ones become fewer."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metaevo.errors import ConfigError
from metaevo.types import Space
from strategies.open_es import open_es
from strategies.self_play import self_play
from strategies.shared_seed_es import shared_seed_es

START = {"own": jnp.zeros(3), "rival": jnp.ones(3), "share": jnp.ones(())}
SPACE = Space(
    lambda key: START,
    lambda params, meta: meta,
    spec={x: {"op": "number"} for x in START},
)
NAMES = "own", "rival", "share"


def made(evolve=open_es, space=SPACE, num_annealed=4):
    es = partial(evolve, population_size=8, sigma=0.1, optimizer=optax.adam(0.1))
    return self_play(space, es, *NAMES, num_annealed=num_annealed)


def test_members_meet_the_solution_and_fewer_simple_ones():
    strategy = made()
    state = strategy.init(jax.random.key(0))
    for generation in range(6):
        key = jax.random.fold_in(jax.random.key(0), generation)
        solution = strategy.solution(state)
        proposal, state = strategy.ask(key, state)
        share = max(0, 1 - generation / 4)
        np.testing.assert_allclose(proposal.params["share"], np.full(8, share))
        for rival in proposal.params["rival"]:
            np.testing.assert_array_equal(rival, solution["own"])
        np.testing.assert_array_equal(solution["rival"], solution["own"])
        assert float(strategy.metrics(state)["share"]) == share
        fitness = proposal.params["own"].sum(1)
        state = strategy.tell(key, state, proposal, fitness)
    assert (strategy.solution(state)["own"] > 0.2).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"slots \['own'\], expected"):
        made(space=SPACE._replace(spec={"own": {"op": "number"}}))
    with pytest.raises(ConfigError, match="num_annealed=0"):
        made(num_annealed=0)
    rule = made(shared_seed_es)
    with pytest.raises(ConfigError, match="as arrays"):
        rule.ask(jax.random.key(0), rule.init(jax.random.key(0)))
