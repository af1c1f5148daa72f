"""The value loss of an artifact for PyTorch, its values and gradients by JAX.

Runs where PyTorch is; JAX and metaevo are found in folders that the script names.
"""

import sys
from pathlib import Path

import torch

torch.set_num_threads(1)


def examples(folders):
    """Find JAX, metaevo and the examples; return `examples/torch_ppo.py`."""
    sys.path += folders
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    import torch_ppo

    return torch_ppo


def loss(artifact):
    """`value_loss(value, target, old_value)` of tensors."""
    import jax

    import metaevo

    evolved = metaevo.load(artifact).value_loss

    @jax.jit
    def value_and_gradient(value, target, old_value, std):
        context = metaevo.Context(return_std=std)

        def total(value):
            return evolved(value, target, old_value, context).sum()

        return evolved(value, target, old_value, context), jax.grad(total)(value)

    class ByJax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, target, old_value):
            tensors = (value, target, old_value, target.std())
            arrays = [x.detach().numpy() for x in tensors]
            found = jax.device_get(value_and_gradient(*arrays))
            loss, gradient = map(torch.tensor, found)
            ctx.save_for_backward(gradient)
            return loss

        @staticmethod
        def backward(ctx, along):
            return ctx.saved_tensors[0] * along, None, None

    return ByJax.apply
