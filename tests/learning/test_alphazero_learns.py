"""Gumbel AlphaZero learns tic-tac-toe: three agents against random and perfect play.

    pytest tests/learning/test_alphazero_learns.py -m slow -s

Its target on CartPole with rewards at the end is in test_learning.py.
"""

import jax
import pytest

from inner_loops import gumbel_alphazero
from metaevo import envs
from metaevo.rl import matches

pytestmark = pytest.mark.slow


def trained(env, seed):
    """The loop, and its state after 200,000 moves of self-play."""
    config = gumbel_alphazero.Config(200_000, num_simulations=32)
    meta = gumbel_alphazero.Meta(q_scale=0.03, gumbel_scale=2.0)
    loop = gumbel_alphazero.make(env, config, meta)
    state = jax.jit(loop.init)(jax.random.key(seed), loop.meta)
    train = jax.jit(loop.train)
    for _ in range(loop.num_segments):
        state, _ = train(jax.random.key(100 + seed), loop.meta, state)
    return loop, state


def match(loop, state, env, opponent, seed):
    """Shares of wins, draws and losses of 1000 games."""
    other = matches.player(env, opponent)

    @jax.jit
    def played(key, state):
        def agent(key, obs, env_state, mask):
            return loop.act(key, loop.meta, state.agent, (), obs, env_state, mask)[0]

        return matches.play(key, env, agent, other, 1000)

    results = played(jax.random.key(200 + seed), state)
    return {k: round(float(x), 4) for k, x in matches.metrics(results).items()}


def test_tic_tac_toe_is_learned():
    env = envs.make("pgx/tic_tac_toe")
    for seed in range(3):
        loop, state = trained(env, seed)
        random, perfect = (
            match(loop, state, env, opponent, seed)
            for opponent in ("random", "minimax")
        )
        print(f"seed {seed}: random {random}, minimax {perfect}")
        assert random["losses"] <= 0.01
        assert random["wins"] >= 0.9
        assert perfect["draws"] >= 0.95
