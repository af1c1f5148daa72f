"""Lists of tasks: what a function evolves over, and what it is judged on.

    loops = [dqn.make(envs.make(name)) for name in suites.TRAINING]

All are cheap and have discrete actions. `UNTOUCHED` is what no search of this
repository evolves on, and none should: what is found on `TRAINING` is judged there.
"""

__all__ = ["TRAINING", "UNTOUCHED"]

TRAINING = (
    "gymnax/CartPole-v1",  # each step is paid
    "gymnax/Acrobot-v1",  # each step costs
    "gymnax/MountainCar-v0",  # each step costs, and no chance move ends it
    "gymnax/Catch-bsuite",  # a win or a loss at the end
    "gymnax/DeepSea-bsuite",  # a small cost on the way to the only reward
    "gymnax/DiscountingChain-bsuite",  # a delayed reward beside earlier ones
    "grid/maze",  # one reward, at a goal that is drawn for each lifetime
    "grid/key_door",  # one reward, after a detour
    "grid/random_mdp",  # rewards of both signs, drawn for each lifetime
    "sparse/gymnax/CartPole-v1",  # paid at the end of an episode
)
"""Ten tasks to evolve over, with rewards of both signs, sparse and delayed ones."""

UNTOUCHED = (
    "gymnax/FourRooms-misc",
    "gymnax/MetaMaze-misc",
    "gymnax/UmbrellaChain-bsuite",
    "gymnax/Asterix-MinAtar",
    "gymnax/SpaceInvaders-MinAtar",
    "gymnax/Freeway-MinAtar",
)
"""Six tasks to judge on."""
