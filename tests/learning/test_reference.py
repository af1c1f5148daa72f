"""Our PPO and DQN against ones written independently in PureJaxRL's style."""

import numpy as np
import pytest

from benchmarks import reference_dqn, reference_ppo


@pytest.mark.slow
@pytest.mark.parametrize("reference", [reference_ppo, reference_dqn])
def test_cartpole_curves_agree_within_the_seeds_intervals(reference):
    """32 seeds, 1e5 frames: the 95 % intervals of every window overlap."""
    for row in reference.compare():
        print(row)
        assert row["agree"], row


def test_the_reference_learns():
    """A short run: the reference is a real algorithm, not a constant."""
    import jax

    config = reference_ppo.CONFIG | {"TOTAL_TIMESTEPS": 40_000}
    keys = jax.random.split(jax.random.key(0), 2)
    curves = reference_ppo.windows(*reference_ppo.train(keys, config), 4)
    assert curves.shape == (2, 4)
    assert np.mean(curves[:, -1]) > 3 * np.mean(curves[:, 0])
