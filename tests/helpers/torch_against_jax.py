"""Trains the PPO of `examples/torch_ppo.py` twice: exported loss, and loss by JAX.

    python torch_against_jax.py EXPORTED.py ARTIFACT NUM_UPDATES FOLDER ...

Prints the largest difference of the agents' weights, that of the weights from an agent
trained with the squared error, and how far the weights moved.
"""

import sys

import torch
import torch_by_jax

exported, artifact, num_updates, *folders = sys.argv[1:]
torch_ppo = torch_by_jax.examples(folders)


def weights(loss, updates=int(num_updates)):
    agent, _ = torch_ppo.train(loss, updates, seed=0)
    return torch.nn.utils.parameters_to_vector(agent.parameters()).detach()


mine = weights(torch_ppo.evolved(exported))
theirs = weights(torch_by_jax.loss(artifact))
plain, first = weights(torch_ppo.squared_error), weights(torch_ppo.squared_error, 0)
print(*(float((x - mine).abs().max()) for x in (theirs, plain, first)))
