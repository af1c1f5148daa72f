"""Evolve messages that keep PPO from learning, though they are all that they change.

Adversarial Cheap Talk (Lu et al., 2023): each victim is a whole PPO run from scratch
that sees, beside its observation, two numbers that are a function of it. OpenAI-ES
(Salimans et al., 2017) lowers the return that victims end with.
"""

import metaevo
from inner_loops import ppo
from metaevo import fitness, messages, rewards, spaces
from metaevo.envs import Env
from searches import _one_slot


@_one_slot.search(
    ppo,
    ppo.Config(32_768, 4, 256, num_segments=8, features=(32,), message_size=2),
    ppo.Meta(lr=2.5e-3),
    population_size=64,
    num_generations=30,
    num_seeds=1,
    sigma=0.3,
    learning_rate=0.1,
    fitness=fitness.minus(fitness.final_return),
)
def search(
    env: Env, inner: ppo.Config, hidden: tuple[int, ...] = (32, 32), scale: float = 1.0
) -> metaevo.Space:
    """
    Args:
        scale: bound of each number of a message.
    """
    units = rewards.units(env)
    message = messages.network(units, inner.message_size, hidden, scale)
    return spaces.replace(message=message)


if __name__ == "__main__":
    metaevo.main(search)
