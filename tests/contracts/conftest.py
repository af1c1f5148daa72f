"""Strict promotion for the contracts: no dtype and no rank changes unasked."""

import functools

import jax
import optax
import pytest

STRICT = {
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
}


def usual(function):
    """The function under JAX's usual promotion."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return run


@pytest.fixture(scope="module")
def strict_promotion():
    """Operations on different dtypes or ranks are errors; Python numbers are not.

    It is set for the whole process, since evaluators start threads. evosax and optax
    promote, and run as they are used to.
    """
    from evosax.algorithms.base import EvolutionaryAlgorithm

    with pytest.MonkeyPatch.context() as patch:
        for name in ("init", "ask", "tell"):
            for kind in (EvolutionaryAlgorithm, *subclasses(EvolutionaryAlgorithm)):
                if name in vars(kind):
                    patch.setattr(kind, name, usual(vars(kind)[name]))
        params = EvolutionaryAlgorithm.default_params
        patch.setattr(
            EvolutionaryAlgorithm, "default_params", property(usual(params.fget))
        )
        correct = usual(optax.tree.bias_correction)
        patch.setattr(optax.tree, "bias_correction", correct)
        before = {name: getattr(jax.config, name) for name in STRICT}
        for name, value in STRICT.items():
            jax.config.update(name, value)
        yield
        for name, value in before.items():
            jax.config.update(name, value)


def subclasses(kind):
    """All classes below this one."""
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)
