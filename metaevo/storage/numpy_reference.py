"""Evolved functions in numpy alone: a second opinion, and for programs without JAX.

    from metaevo import reference  # an alias of this module
    loss = reference.load("runs/.../solution").value_loss
    loss(value, target, old_value)             # float64
    loss.gradient(value, target, old_value)    # a tuple, one array per input

Numbers that change over a lifetime are functions of `progress`, optimizers have `init`
and `update`.

An artifact's manifest holds each function as a list of elementary operations on arrays,
written when it was saved (`metaevo.portable`). Here they are carried out, those of a
closed list; nothing is compiled, imported or executed. Needs numpy and safetensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metaevo.errors import MetaevoError
from metaevo.portable.numpy_functions import Function, NumpyOptimizer
from metaevo.portable.running import check_program, check_sizes
from metaevo.storage import verified

__all__ = ["Function", "NumpyOptimizer", "Reference", "load"]


class Reference:
    """Evolved slots by name: functions, and numbers as floats."""

    def __init__(self, slots: Mapping[str, Any]):
        self.slots = dict(slots)

    def __getattr__(self, name: str) -> Any:
        slots = self.__dict__.get("slots", {})
        if name not in slots:
            known = ", ".join(sorted(slots))
            raise AttributeError(f"no slot {name!r} with a reference, but {known}")
        return slots[name]


def load(path: str | Path) -> Reference:
    """Load the functions of an artifact; it is verified as by `metaevo.load`.

    Args:
        path: as of `metaevo.load`.

    Raises:
        ValueError: it is not one, was altered, or holds a program that numpy could not
            carry out in reasonable time and memory.
    """
    try:
        path = verified.artifact_folder(path)
        arrays, manifest = verified.read(path, verified.MAX_ARTIFACT)
        for name in [*manifest["slots"], *manifest.get("reference", {})]:
            verified.check_slot(name)
        slots: dict[str, Any] = {
            name: float(op["value"])
            for name, op in manifest["slots"].items()
            if op["op"] == "number"
        }
        for name, described in manifest.get("reference", {}).items():
            for part in ("value", "gradient", "step"):
                if described.get(part) is not None:
                    check_program(described[part])
            for kept in described.get("state", {}).values():
                check_sizes("state", kept)
            params = [arrays[array] for array in described["params"]]
            kind = NumpyOptimizer if "step" in described else Function
            slots[name] = kind(described, params)
    except (
        MetaevoError,
        OSError,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
    ) as error:
        raise ValueError(f"{path}: no artifact with a reference: {error}") from None
    return Reference(slots)
