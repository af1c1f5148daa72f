"""Gumbel AlphaZero learns tic-tac-toe: three agents against random and perfect play.

    pytest tests/learning/test_alphazero_learns.py -m slow -s

Its target on CartPole with rewards at the end is in test_learning.py.
"""

import pytest

from benchmarks import board_games
from metaevo import envs

pytestmark = pytest.mark.slow


def test_tic_tac_toe_is_learned():
    game, env = board_games.GAMES["tic_tac_toe"], envs.make("pgx/tic_tac_toe")
    for seed in range(game.num_agents):
        loop, state, _ = board_games.trained(game, env, seed)
        random, perfect = (
            board_games.match(loop, state, env, opponent, game.num_games, seed)
            for opponent in game.opponents
        )
        print(f"seed {seed}: random {random}, minimax {perfect}")
        assert random["losses"] <= 0.01
        assert random["wins"] >= 0.9
        assert perfect["draws"] >= 0.95
