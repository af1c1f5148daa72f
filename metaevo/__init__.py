"""metaevo: meta-evolution search for reinforcement learning.

Public names are imported where they are first used, so that loading an artifact needs
nothing but jax, numpy and safetensors.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaevo.cli.api import result, run, tune
    from metaevo.cli.program import main, train_main
    from metaevo.config import RunConfig
    from metaevo.engine.result import Result
    from metaevo.engine.train import Training, train
    from metaevo.engine.trials.ask_tell import AskTell
    from metaevo.engine.trials.own_loop import train_trial
    from metaevo.engine.trials.search import optimize
    from metaevo.engine.trials.trial import Trial
    from metaevo.errors import (
        ArtifactError,
        CheckpointError,
        ConfigError,
        HostError,
        InterruptedRunError,
        LockedError,
        MetaevoError,
        NotImportedError,
        NumericalError,
    )
    from metaevo.evaluators.devices import configure
    from metaevo.fitness import Halving
    from metaevo.slots import Context
    from metaevo.storage import numpy_reference as reference
    from metaevo.storage.artifacts import load
    from metaevo.types import (
        Evaluated,
        Evaluator,
        FitnessFn,
        InnerLoop,
        InnerState,
        Proposal,
        Search,
        Space,
        Strategy,
    )

    __version__: str

__all__ = [
    "ArtifactError",
    "AskTell",
    "CheckpointError",
    "ConfigError",
    "Context",
    "Evaluated",
    "Evaluator",
    "FitnessFn",
    "Halving",
    "HostError",
    "InnerLoop",
    "InnerState",
    "InterruptedRunError",
    "LockedError",
    "MetaevoError",
    "NotImportedError",
    "NumericalError",
    "Proposal",
    "Result",
    "RunConfig",
    "Search",
    "Space",
    "Strategy",
    "Training",
    "Trial",
    "configure",
    "load",
    "main",
    "optimize",
    "reference",
    "result",
    "run",
    "train",
    "train_main",
    "train_trial",
    "tune",
]

_MODULES = {
    "config": ["RunConfig"],
    "cli.program": ["main", "train_main"],
    "cli.api": ["result", "run", "tune"],
    "engine.result": ["Result"],
    "engine.train": ["Training", "train"],
    "engine.trials.ask_tell": ["AskTell"],
    "engine.trials.own_loop": ["train_trial"],
    "engine.trials.search": ["optimize"],
    "engine.trials.trial": ["Trial"],
    "errors": [
        "ArtifactError",
        "CheckpointError",
        "ConfigError",
        "HostError",
        "InterruptedRunError",
        "LockedError",
        "MetaevoError",
        "NotImportedError",
        "NumericalError",
    ],
    "evaluators.devices": ["configure"],
    "fitness": ["Halving"],
    "slots": ["Context"],
    "storage.artifacts": ["load"],
    "types": [
        "Evaluated",
        "Evaluator",
        "FitnessFn",
        "InnerLoop",
        "InnerState",
        "Proposal",
        "Search",
        "Space",
        "Strategy",
    ],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("metaevo")
    if name == "reference":
        # A module, under the name by which exported functions are known.
        return importlib.import_module("metaevo.storage.numpy_reference")
    if name not in _HOME:
        raise AttributeError(f"module 'metaevo' has no attribute {name!r}")
    return getattr(importlib.import_module(f"metaevo.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
