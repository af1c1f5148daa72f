"""metaevo: meta-evolution search for reinforcement learning.

Public names are imported where they are first used, so that loading an artifact needs
nothing but jax, numpy and safetensors.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaevo.cli.main import main as main
    from metaevo.config import RunConfig as RunConfig
    from metaevo.engine.loop import Result as Result
    from metaevo.engine.loop import run as run
    from metaevo.errors import (
        ArtifactError as ArtifactError,
    )
    from metaevo.errors import (
        CheckpointError as CheckpointError,
    )
    from metaevo.errors import (
        ConfigError as ConfigError,
    )
    from metaevo.errors import (
        HostError as HostError,
    )
    from metaevo.errors import (
        InterruptedRunError as InterruptedRunError,
    )
    from metaevo.errors import (
        LockedError as LockedError,
    )
    from metaevo.errors import (
        MetaevoError as MetaevoError,
    )
    from metaevo.errors import (
        NumericalError as NumericalError,
    )
    from metaevo.evaluators.devices import configure as configure
    from metaevo.slots import Context as Context
    from metaevo.storage import numpy_reference as reference  # noqa: F401
    from metaevo.storage.artifacts import load as load
    from metaevo.types import (
        Evaluated as Evaluated,
    )
    from metaevo.types import (
        Evaluator as Evaluator,
    )
    from metaevo.types import (
        FitnessFn as FitnessFn,
    )
    from metaevo.types import (
        InnerLoop as InnerLoop,
    )
    from metaevo.types import (
        InnerState as InnerState,
    )
    from metaevo.types import (
        Proposal as Proposal,
    )
    from metaevo.types import (
        Search as Search,
    )
    from metaevo.types import (
        Space as Space,
    )
    from metaevo.types import (
        Strategy as Strategy,
    )

_HOME = {
    name: module
    for module, names in {
        "types": (
            "Evaluated Evaluator FitnessFn InnerLoop InnerState Proposal Search Space "
            "Strategy"
        ),
        "errors": (
            "ArtifactError CheckpointError ConfigError HostError InterruptedRunError "
            "LockedError MetaevoError NumericalError"
        ),
        "config": "RunConfig",
        "slots": "Context",
        "storage.artifacts": "load",
        "engine.loop": "Result run",
        "evaluators.devices": "configure",
        "cli.main": "main",
    }.items()
    for name in names.split()
}

__all__ = sorted([*_HOME, "reference"])


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
