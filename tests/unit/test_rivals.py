"""Simple functions beside which an evolved one is judged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loops import SMALL

from metaevo import critic_losses, fitness, losses, slots, spaces
from metaevo.analysis import holdout, rivals
from metaevo.analysis.steps import Steps
from metaevo.evaluators.local import LocalEvaluator
from metaevo.slots import Context
from metaevo.types import Search

TD = critic_losses.td_weighted_square(features=(4,))


def search_of(space, loop="dqn", num_tasks=1):
    made = SMALL[loop].make()
    score = fitness.final_return
    return Search((made,) * num_tasks, space, None, 1, score, chunk_size=2)


def test_simple_losses_are_what_their_names_say():
    """By hand at errors of both signs on both sides of zero; the targets' s is 2."""
    context = Context(return_std=jnp.float32(2.0))
    # target, Q: below and above a positive target, above and below a negative one.
    for target, q, expected in (
        (3.0, 1.0, {"up": 0.1, "down": 1.0, "reluctant": 0.1}),
        (3.0, 5.0, {"up": 1.0, "down": 0.1, "reluctant": 1.0}),
        (-3.0, -1.0, {"up": 1.0, "down": 0.1, "reluctant": 0.1}),
        (-3.0, -5.0, {"up": 0.1, "down": 1.0, "reluctant": 1.0}),
    ):
        weights = {
            "square": 1.0,
            "slow to rise": expected["up"],
            "slow to fall": expected["down"],
            "reluctant": expected["reluctant"],
        }
        known = {name: w * 0.5 * 2.0**2 for name, w in weights.items()}
        known |= {"Huber": 1.5, "shifted": 0.5 * (q - target + 1.3) ** 2}
        of_td = known | {"DQNReg": 2.0 + 0.05 * q, "untrained": 0.0}
        for name, loss in rivals.SIMPLE["td_loss"].items():
            found = loss(target - q, q, target, context)
            assert found == pytest.approx(of_td[name], rel=1e-6), name
        # Clipped: the old value was at the target, and 0.2 is as far as it may go.
        of_value = known | {"clipped square": 2.0, "untrained critic": 0.0}
        for name, loss in rivals.SIMPLE["value_loss"].items():
            found = loss(q, target, target, context)
            assert found == pytest.approx(of_value[name], rel=1e-6), name


def test_what_a_slot_holds_by_itself_is_no_rival():
    found = rivals.of(search_of(spaces.replace(td_loss=TD)))
    assert set(found["td_loss"]) == {*rivals.SIMPLE["td_loss"]} - {"square"}
    assert rivals.of(search_of(spaces.tune(lr=spaces.log()))) == {}
    assert rivals.num_tried(search_of(spaces.replace(td_loss=TD))) == 7


def test_the_best_is_chosen_on_other_seeds_and_trained_on_these(tmp_path):
    """It is what the same function does when it stands in the slot by itself."""
    search = search_of(spaces.replace(td_loss=TD))
    key = jax.random.key(5)
    steps = Steps(tmp_path, "digest", lambda: None)

    def make(search, **options):
        return LocalEvaluator(search, jax.devices()[:1], **options)

    best = rivals.best(steps, search, search, key, 4, make)
    tried = {name: x[0] for name, x in best.facts["tried"].items()}
    assert best.facts["num_seeds"] == 2
    assert best.facts["name"] == max(tried, key=tried.get)
    assert len(set(tried.values())) > 1
    simple = rivals.SIMPLE["td_loss"][best.facts["name"].removeprefix("td_loss ")]
    by_itself, _ = holdout.train(
        search, holdout.fixed({"td_loss": simple}), {"": holdout.NOTHING}, key, 4, make
    )
    np.testing.assert_allclose(
        best.runs.final_return, by_itself[""].final_return, rtol=1e-3
    )


def test_ppo_takes_the_simple_functions_of_its_slots():
    """Traced, not trained. All loops call a slot with the same inputs."""
    slots_of_ppo = {*rivals.SIMPLE} - {"td_loss"}
    loop = SMALL["ppo"].make()
    meta = loop.meta
    for slot in slots_of_ppo:
        space = rivals.chosen_from(rivals.SIMPLE[slot], slot)
        meta = space.bind(jnp.int32(1), meta)
    key = jax.random.key(0)
    state = jax.eval_shape(loop.init, key, meta)
    _, metrics = jax.eval_shape(loop.train, key, meta, state)
    assert metrics["return"].shape == ()


def test_a_search_without_simple_functions_has_none(tmp_path):
    search = search_of(spaces.tune(lr=spaces.log()))
    steps = Steps(tmp_path, "digest", lambda: None)
    assert rivals.best(steps, search, search, jax.random.key(0), 4, None) is None


def test_reluctance_has_a_gradient_towards_the_target():
    def at(q):
        return losses.td_reluctant(3.0 - q, q, 3.0)

    slopes = jax.vmap(jax.grad(at))(jnp.array([1.0, 3.0, 5.0]))
    np.testing.assert_allclose(slopes, [-0.2, 0.0, 2.0], rtol=1e-6)
    assert slots.is_number(losses.td_reluctant) is False
