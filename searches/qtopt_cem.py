"""Evolve how QT-Opt's cross-entropy method fits its candidates, at equal cost.

Four numbers move: how many candidates are fitted, how much more the better ones weigh,
and the deviations at the start and at least. The start is the published method. Each
action costs `num_samples` x `num_iterations` values, whatever they are. OpenAI-ES
(Salimans et al., 2017) raises the final return.
"""

import metaevo
from inner_loops import qtopt
from metaevo import spaces
from searches import _one_slot


@_one_slot.search(
    qtopt,
    qtopt.Config(
        4_000, batch_size=32, num_samples=8, features=(32, 32), num_segments=4
    ),
    qtopt.Meta(lr=2e-3, num_elites=2.0),
    env="gymnax/Pendulum-v1",
    num_generations=10,
    sigma=0.3,
    learning_rate=0.2,
)
def search() -> metaevo.Space:
    return spaces.tune(
        num_elites=spaces.log(),
        elite_sharpness=spaces.linear(),
        start_std=spaces.log(),
        least_std=spaces.log(),
    )


if __name__ == "__main__":
    metaevo.main(search)
