"""metaevo: meta-evolution search for reinforcement learning.

Attributes are imported where first used, so that loading an artefact needs nothing
but jax, numpy and safetensors.
"""

import importlib

_HOME = {
    name: module
    for module, names in {
        "metaevo.types": (
            "ConfigError Evaluated Evaluator FitnessFn InnerLoop InnerState "
            "InterruptedRunError Proposal Search Space Strategy"
        ),
        "metaevo.slots": "Context",
        "metaevo.storage.artifacts": "ArtifactError load",
        "metaevo.engine.loop": "NumericalError Result run",
        "metaevo.storage.run_directory": "LockedError RunConfig",
        "metaevo.evaluators.devices": "configure",
        "metaevo.cli.main": "main",
    }.items()
    for name in names.split()
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name):
    if name == "reference":
        # A module, under the name that exported functions are known by.
        return importlib.import_module("metaevo.storage.numpy_reference")
    if name not in _HOME:
        raise AttributeError(f"module 'metaevo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__():
    return __all__
