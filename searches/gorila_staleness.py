"""Evolve what GORILA does with gradients that are stale or of an outlying loss.

The step size becomes a function of the delay, and three numbers move: from which loss
on a gradient is dropped, how much the learners' exploration differs, and the rate of
the target network. OpenAI-ES (Salimans et al., 2017) raises the final return.
"""

import metaevo
from inner_loops import gorila
from metaevo import spaces
from searches import _one_slot


@_one_slot.search(
    gorila,
    gorila.Config(40_000, 1_000, max_delay=16, num_segments=5),
    gorila.Meta(lr=1e-3, target_rate=0.9),
    population_size=12,
    num_generations=12,
    sigma=0.2,
    learning_rate=0.1,
)
def search() -> metaevo.Space:
    return spaces.combine(
        spaces.feedback({"delay": 8.0}, lr=spaces.log()),
        spaces.tune(
            drop_deviation=spaces.log(),
            epsilon_spread=spaces.log(),
            target_rate=spaces.logit(),
        ),
    )


if __name__ == "__main__":
    metaevo.main(search)
