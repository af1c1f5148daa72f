"""Trains the PPO of `examples/torch_ppo.py` twice: exported loss, and loss by JAX.

    python torch_against_jax.py EXPORTED.py ARTIFACT NUM_UPDATES FOLDER ...

Runs where PyTorch is; JAX and metaevo are found in the folders. Prints the largest
difference of the agents' weights, that of the weights from an agent trained with the
squared error, and how far the weights moved.
"""

import sys
from pathlib import Path

import torch

torch.set_num_threads(1)
exported, artifact, num_updates, *folders = sys.argv[1:]
sys.path += folders
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import jax  # noqa: E402
import torch_ppo  # noqa: E402

import metaevo  # noqa: E402

LOSS = metaevo.load(artifact).value_loss


@jax.jit
def value_and_gradient(value, target, old_value, std):
    context = metaevo.Context(return_std=std)

    def total(value):
        return LOSS(value, target, old_value, context).sum()

    return LOSS(value, target, old_value, context), jax.grad(total)(value)


class ByJax(torch.autograd.Function):
    """The loss and its gradient with respect to the values, by JAX."""

    @staticmethod
    def forward(ctx, value, target, old_value):
        arrays = [x.detach().numpy() for x in (value, target, old_value, target.std())]
        found = jax.device_get(value_and_gradient(*arrays))
        loss, gradient = map(torch.tensor, found)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx, along):
        return ctx.saved_tensors[0] * along, None, None


def weights(loss, updates=int(num_updates)):
    agent, _ = torch_ppo.train(loss, updates, seed=0)
    return torch.nn.utils.parameters_to_vector(agent.parameters()).detach()


mine, theirs = weights(torch_ppo.evolved(exported)), weights(ByJax.apply)
plain, first = weights(torch_ppo.squared_error), weights(torch_ppo.squared_error, 0)
print(*(float((x - mine).abs().max()) for x in (theirs, plain, first)))
