"""Trains the PPO of `examples/torch_ppo.py` twice: exported loss, and loss by JAX.

    python torch_against_jax.py EXPORTED.py ARTIFACT NUM_UPDATES FOLDER ...

Prints the largest difference of the agents' weights, that of the weights from an agent
trained with the squared error, how far the weights moved, and the largest difference of
the two losses and of their gradients, as a share of the largest of a minibatch.
"""

import sys

import torch
import torch_by_jax

exported, artifact, num_updates, *folders = sys.argv[1:]
torch_ppo = torch_by_jax.examples(folders)


evolved = torch_ppo.evolved(exported)


def weights(loss, updates=int(num_updates)):
    agent, _ = torch_ppo.train(loss, updates, seed=0)
    return torch.nn.utils.parameters_to_vector(agent.parameters()).detach()


differences = []


def both(value, target, old_value):
    """The exported loss; notes how far that by JAX is."""
    found = []
    for loss in (evolved, by_jax):
        x = value.detach().requires_grad_()
        losses = loss(x, target, old_value)
        (slope,) = torch.autograd.grad(losses.sum(), x)
        found.append((losses.detach(), slope))
    for one, other in zip(*found, strict=True):
        differences.append((one - other).abs().max() / other.abs().max())
    return evolved(value, target, old_value)


by_jax = torch_by_jax.loss(artifact)
mine, theirs = weights(both), weights(by_jax)
plain, first = weights(torch_ppo.squared_error), weights(torch_ppo.squared_error, 0)
apart = [float((x - mine).abs().max()) for x in (theirs, plain, first)]
print(*apart, float(max(differences)))
