"""Matrix games, players that learn, and shapers against values from the literature."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inner_loops import opponents
from metaevo import policies, slots
from metaevo.analysis import holdout
from metaevo.envs import matrix
from metaevo.errors import ConfigError
from metaevo.rl import game_players

DILEMMA = matrix.make("prisoners_dilemma")
PENNIES = matrix.make("matching_pennies")
CHICKEN = matrix.make("chicken")
KNOWN = {name: matrix.logits(p) for name, p in DILEMMA.fixed.items()}


def drawn(game, num=32):
    return jax.random.normal(jax.random.key(1), (2, num, game.num_situations))


# --- values ---------------------------------------------------------------------------


def test_values_are_those_of_a_linear_system_in_float64():
    """By numpy, of 512 pairs of policies, some of them nearly certain."""
    own, other = np.asarray(4 * drawn(DILEMMA, 512), np.float64)
    p, q = 1 / (1 + np.exp(-own)), 1 / (1 + np.exp(-other))
    q = q[:, [0, 1, 3, 2, 4]]  # the other's CD is the own DC
    outcome = np.stack([p * q, p * (1 - q), (1 - p) * q, (1 - p) * (1 - q)], -1)
    system = np.eye(4) - 0.96 * outcome[:, 1:]
    paid = np.array([[-1.0, -1], [-3, 0], [0, -3], [-2, -2]])
    expected = outcome[:, :1] @ np.linalg.solve(system, paid)
    found = jax.jit(jax.vmap(DILEMMA.values))(np.float32(own), np.float32(other))
    np.testing.assert_allclose(found, expected[:, 0], rtol=1e-5, atol=1e-4)


def test_fixed_policies_have_their_payoffs():
    payoffs = jax.jit(DILEMMA.payoffs)
    for first, second, expected in (
        ("always cooperate", "always cooperate", (-1, -1)),
        ("always defect", "always defect", (-2, -2)),
        ("always defect", "always cooperate", (0, -3)),
        ("tit-for-tat", "tit-for-tat", (-1, -1)),
        ("tit-for-tat", "always defect", (-2.04, -1.92)),
        ("extortion", "always cooperate", (-0.716, -1.569)),
    ):
        found = payoffs(KNOWN[first], KNOWN[second])
        np.testing.assert_allclose(found, expected, atol=1e-2)


def test_extortion_earns_three_times_the_surplus_of_any_other():
    payoffs = jax.jit(jax.vmap(DILEMMA.payoffs, (None, 0)))
    others = np.vstack([2 * drawn(DILEMMA)[0], KNOWN["always cooperate"]])
    own, its = np.asarray(payoffs(KNOWN["extortion"], others)).T + 2
    # The start moves it, since later rounds are discounted.
    assert np.abs(own - 3 * its).max() < 0.25
    assert np.abs(own - its).max() > 0.5
    np.testing.assert_allclose(own[-1], 3 * its[-1], atol=0.02)


@pytest.mark.parametrize("game", [DILEMMA, CHICKEN], ids=lambda x: x.name)
def test_payoffs_swap_with_the_players(game):
    first, second = drawn(game)
    values = jax.jit(jax.vmap(game.values))
    swapped = jax.jit(jax.vmap(matrix.swapped(game).values))
    found = np.asarray(values(first, second))
    np.testing.assert_allclose(values(second, first)[:, ::-1], found, rtol=1e-4)
    np.testing.assert_allclose(swapped(first, second), found, rtol=1e-4)
    # Had the other not seen its own move first, they would not.
    assert np.abs(found[:, 0] - found[:, 1]).max() > 0.5 * game.unit


def test_pennies_are_won_from_each_other_and_by_the_first_where_they_differ():
    first, second = drawn(PENNIES)
    heads, tails = matrix.logits((1,) * 5), matrix.logits((0,) * 5)
    first, second = np.vstack([first, heads]), np.vstack([second, tails])
    found = jax.jit(jax.vmap(PENNIES.payoffs))(first, second)
    np.testing.assert_allclose(found[:, 0], -found[:, 1], atol=1e-4)
    np.testing.assert_allclose(found[-1], (1, -1), atol=1e-2)
    seen = jax.jit(matrix.swapped(PENNIES).payoffs)(tails, heads)
    np.testing.assert_allclose(seen, (-1, 1), atol=1e-2)


def test_chicken_is_one_round():
    dare, swerve = matrix.logits((0,)), matrix.logits((1,))
    payoffs = jax.jit(CHICKEN.payoffs)
    np.testing.assert_allclose(payoffs(dare, swerve), (1, -1), atol=2e-2)
    np.testing.assert_allclose(payoffs(dare, dare), (-100, -100), atol=0.1)


def test_first_and_second_derivatives_of_values_are_those_of_small_changes():
    with jax.enable_x64(True):
        own, other = np.float64(drawn(DILEMMA, 1)[:, 0])
        value_and_slope = jax.value_and_grad(lambda x: DILEMMA.values(x, other)[0])

        @jax.jit
        def derivatives(step):
            slope = jax.jacfwd(lambda x: value_and_slope(x)[1])
            each = jax.vmap(value_and_slope)
            return (
                value_and_slope(own)[1],
                slope(own),
                each(own + step),
                each(own - step),
            )

        step = 1e-4 * np.eye(5)
        first, second, up, down = derivatives(step)
        for found, a, b in zip((first, second), up, down, strict=True):
            np.testing.assert_allclose(found, (a - b) / 2e-4, rtol=1e-2, atol=1e-4)


def test_an_unknown_game_is_refused_by_name():
    with pytest.raises(ConfigError, match="Did you mean 'chicken'"):
        matrix.make("chiken")


# --- players that learn ---------------------------------------------------------------


def lived(loop, key=0):
    """The last state, and mean payoffs of both by step."""
    return jax.jit(functools.partial(life, loop))(loop.meta, jax.random.key(key))


def life(loop, meta, key):
    step = functools.partial(loop.train, key, meta)
    state = loop.init(key, meta)
    return jax.lax.scan(lambda s, _: step(s), state, None, loop.num_segments)


FIXED = {name: game_players.static(p) for name, p in DILEMMA.fixed.items()}
PLAYERS = ("NL", "LOLA", *FIXED)


def test_fixed_learners_reach_their_payoffs():
    """Means over the meta-episode, of Lu et al. (2022) and as measured elsewhere."""
    loop = opponents.make(DILEMMA, opponents.Config(num_envs=128))

    def chosen(index):
        policy = jnp.stack([*KNOWN.values()])[index - 2]
        players = game_players.naive(DILEMMA), game_players.lola(DILEMMA)
        players += (lambda own, other, context: policy,)
        kind = jnp.minimum(index, 2)
        return slots.function(lambda *args: jax.lax.switch(kind, players, *args))

    @jax.jit
    def means(shaper, opponent):
        """One program for all pairs."""
        meta = opponents.Meta(chosen(shaper), chosen(opponent))
        _, metrics = life(loop, meta, jax.random.key(0))
        return metrics["return"].mean(), metrics["opponent_return"].mean()

    for shaper, opponent, payoffs in (
        ("NL", "NL", (-1.98, -1.98)),
        ("NL", "LOLA", (-1.52, -1.30)),
        ("LOLA", "LOLA", (-1.10, -1.10)),
        ("tit-for-tat", "NL", (-1.04, -1.04)),
        ("always defect", "NL", (-1.98, -2.00)),
        ("always cooperate", "NL", (-2.97, -0.02)),
        ("extortion", "NL", (-0.82, -1.60)),
    ):
        found = means(*map(PLAYERS.index, (shaper, opponent)))
        np.testing.assert_allclose(
            found, payoffs, atol=0.03, err_msg=f"{shaper} and {opponent}"
        )


@pytest.mark.parametrize(
    ("name", "least"),
    [("prisoners_dilemma", -0.6), ("matching_pennies", 0.15), ("chicken", 0.95)],
)
def test_a_meta_learned_start_beats_the_naive_learner(name, least):
    """By much more than another naive learner does, -1.98, 0 and 0."""
    game = matrix.make(name)
    meta = opponents.Meta(**game_players.opponent("meta_learned", game))
    loop = opponents.make(game, opponents.Config(num_envs=128), meta)
    _, metrics = lived(loop)
    assert metrics["opponent_return"].mean() >= least


def test_a_start_is_meta_learned_for_known_games_alone():
    unknown = DILEMMA._replace(name="stag_hunt")
    with pytest.raises(ConfigError, match="nothing was learned for 'stag_hunt'"):
        game_players.opponent("meta_learned", unknown)


def test_a_naive_step_ascends_the_own_value_and_a_best_response_its_top():
    """And LOLA without lookahead is naive."""
    own, other = (np.asarray(x[0]) for x in drawn(DILEMMA))
    tit_for_tat, payoffs = KNOWN["tit-for-tat"], jax.jit(DILEMMA.payoffs)

    @jax.jit
    def played(own, other):
        naive = game_players.naive(DILEMMA)(own, other, None)
        lola = game_players.lola(DILEMMA, other_lr=0.0)(own, other, None)
        return (
            naive,
            lola,
            game_players.best_response(DILEMMA, 200)(own, tit_for_tat, None),
        )

    naive, lola, best = played(own, other)
    assert payoffs(naive, other)[0] > payoffs(own, other)[0]
    np.testing.assert_allclose(lola, naive, rtol=1e-4)
    np.testing.assert_allclose(payoffs(best, tit_for_tat), -1, atol=0.05)


def test_an_opponent_is_named():
    assert set(game_players.opponent("lola", DILEMMA)) == {"opponent"}
    same = game_players.opponent("tit-for-tat", DILEMMA)["opponent"]
    found = same(KNOWN["extortion"], KNOWN["extortion"], None)
    np.testing.assert_array_equal(found, KNOWN["tit-for-tat"])
    with pytest.raises(ConfigError, match="expected one of naive, lola"):
        game_players.opponent("lolla", DILEMMA)


# --- the inner loop -------------------------------------------------------------------


def played(meta, num_envs=4, **config):
    sizes = {"num_steps": 6, "num_segments": 3} | config
    loop = opponents.make(DILEMMA, opponents.Config(num_envs, **sizes), meta)
    return lived(loop, 3)


def test_games_of_a_batch_do_not_couple():
    """The policies of a game stay the same when its neighbours start elsewhere."""
    loop = opponents.make(DILEMMA, opponents.Config(4, 1, 1))
    state = loop.init(jax.random.key(3), loop.meta)
    moved = jax.tree.map(lambda x: x.at[1:].add(1.0), state.agent.params)
    other = state._replace(agent=state.agent._replace(params=moved))
    train = jax.jit(loop.train)
    a, b = (
        train(jax.random.key(0), loop.meta, x)[0].agent.params for x in (state, other)
    )
    for name in a:
        np.testing.assert_allclose(a[name][0], b[name][0], rtol=1e-5)
        assert np.abs(a[name][1:] - b[name][1:]).max() > 0.1


def test_the_shaper_sees_policies_that_were_played_and_no_update_of_them():
    def answer(own, other, context):
        return other

    start = opponents.make(DILEMMA, opponents.Config(4, 1, 1))
    first = start.init(jax.random.key(3), start.meta).agent.params
    meta = opponents.Meta(shaper=slots.function(answer))
    state, _ = played(meta, num_steps=1, num_segments=1)
    np.testing.assert_allclose(state.agent.params["own"], first["other"], rtol=1e-6)


def test_a_best_response_answers_the_policy_of_the_same_step():
    defect = FIXED["always defect"]
    one = {"num_steps": 1, "num_segments": 1}
    meta = game_players.opponent("best_response", DILEMMA)
    state, metrics = played(opponents.Meta(shaper=defect, **meta), **one)
    np.testing.assert_allclose(metrics["shaper/start"], 0, atol=1e-3)
    assert {f"opponent/{x}" for x in DILEMMA.situations} <= set(metrics)
    best = jax.jit(meta["opponent"])(KNOWN["extortion"], KNOWN["always defect"], None)
    other = state.agent.params["other"]
    np.testing.assert_allclose(other, np.tile(best, (4, 1)), atol=1e-3)
    state, _ = played(opponents.Meta(shaper=defect, opponent=meta["opponent"]), **one)
    assert np.abs(state.agent.params["other"] - best).max() > 0.1


def test_the_naive_share_of_opponents_is_naive():
    defect = FIXED["always defect"]
    meta = opponents.Meta(opponent=defect, naive_share=0.3)
    state, _ = played(meta, num_envs=200)
    fixed = np.isclose(state.agent.params["other"], KNOWN["always defect"]).all(1)
    assert 0.6 < fixed.mean() < 0.8
    np.testing.assert_array_equal(fixed, state.experience.draw >= 0.3)


def test_starts_are_drawn_around_their_means():
    start = np.float32([3, 1, -1, 0, 2])
    meta = opponents.Meta(opponent_start=start, opponent_start_std=0.0, start=5.0)
    loop = opponents.make(DILEMMA, opponents.Config(64), meta)
    params = loop.init(jax.random.key(0), loop.meta).agent.params
    np.testing.assert_array_equal(params["other"], np.tile(start, (64, 1)))
    assert abs(params["own"].mean() - 5) < 0.3


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"num_steps=10 .*num_segments=4"):
        opponents.make(DILEMMA, opponents.Config(num_steps=10, num_segments=4))


# --- the shaper -----------------------------------------------------------------------


def test_the_shaper_starts_at_even_odds_and_sees_probabilities():
    made = policies.shaper()
    params = made.init(jax.random.key(0))
    assert params["w0"].shape == (10, 16)
    assert params["w1"].shape == (16, 5)
    own, other = np.asarray(drawn(DILEMMA))
    apply = jax.jit(made.apply)
    np.testing.assert_array_equal(apply(params, own, other), 0 * own)
    moved = params | {"w1": np.asarray(params["w1"]) + 1.0}
    probabilities = 1 / (1 + np.exp(-np.concatenate([own, other], -1)))
    hidden = np.tanh((2 * probabilities - 1) @ params["w0"] + params["b0"])
    expected = 4 * hidden @ moved["w1"]
    np.testing.assert_allclose(apply(moved, own, other), expected, rtol=1e-4)


def test_the_comparison_has_the_hand_made_players_of_the_game():
    loop = opponents.make(DILEMMA)
    assert set(loop.baselines) == {"LOLA", *DILEMMA.fixed}
    space = holdout.fixed(loop.baselines["tit-for-tat"])
    meta = space.bind(holdout.NOTHING, loop.meta)
    np.testing.assert_array_equal(
        meta.shaper(jnp.zeros(5), jnp.zeros(5), None), KNOWN["tit-for-tat"]
    )
