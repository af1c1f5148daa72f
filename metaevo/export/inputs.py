"""The inputs of exported functions: tensors that a user's own agent has.

A slot of metaevo may take a difference, such as `td_error`, whose sign a caller can get
wrong. An exported function takes the two tensors and subtracts them itself. The
discount of a potential is an input: it has to be the agent's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from metaevo.learned import operations
from metaevo.portable import signatures
from metaevo.portable.signatures import Signature

__all__ = ["DIFFERENCES", "signature"]


def _td_error(q, target):
    return target - q


def _log_ratio(log_prob, old_log_prob):
    return log_prob - old_log_prob


DIFFERENCES: Mapping[str, tuple[tuple[str, str], Callable]] = {
    "td_error": (("q", "target"), _td_error),
    "log_ratio": (("log_prob", "old_log_prob"), _log_ratio),
}
"""Input of a slot -> the inputs that it is a function of, and that function."""


def signature(op: Mapping[str, Any]) -> Signature:
    """The inputs of an exported function, as `signatures.signature` has those of slots.

    Raises:
        ArtifactError: there is no such operation.
    """
    usual = signatures.signature(op)
    given: dict[str, tuple] = {}
    for name, shape in usual.given.items():
        names, _ = DIFFERENCES.get(name, ((name,), None))
        given |= {x: given.get(x, shape) for x in names}
    seen = usual.seen
    if operations.get(op["op"]).slot == "reward" and "gamma" in op:
        seen = (*seen, "gamma")

    def call(apply, params, arrays, context):
        known = dict(zip(given, arrays, strict=True))
        inputs = []
        for name in usual.given:
            if name in DIFFERENCES:
                names, difference = DIFFERENCES[name]
                inputs.append(difference(*(known[x] for x in names)))
            else:
                inputs.append(known[name])
        return usual.call(apply, params, tuple(inputs), context)

    return Signature(given, seen, call)
