"""One trial of `metaevo.optimize`, and the process that it runs in.

The process may have another interpreter, with the user's libraries and without JAX. So
this module imports nothing but Python's own library, and numpy where a function
evolves.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["BOOT", "MARK", "Trial", "serve"]

MARK = "METAEVO_TRIAL"
"""Environment variable that is set in the process of a trial."""

BOOT = """
import importlib.util, sys
folder, *arguments = sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "metaevo", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["metaevo"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from metaevo.engine.trials.trial import serve
serve(*arguments)
"""
"""Program of the process. Its interpreter need not have metaevo: that of the driver is
imported from its folder, and nothing else from beside it."""


class Trial(NamedTuple):
    """The argument of `score`: one member, to be trained with one seed.

    Attributes:
        params: slot name -> value. A number is a float. An evolved function is one of
            numpy arrays, with `gradient`: see `metaevo.portable.numpy_functions`; or
            of tensors, by `torch`. A slot that stands at a default of None is None.
        seed: in [0, 2³¹), of all random numbers of the trial. All members of a
            generation that are newborn have the same seeds.
        budget: as given to `metaevo.optimize`.
        folder: an empty folder of its own, to write to. A trial that continues this
            one reads it.
        parent: folder of the trial that this one continues; None: it is newborn.
    """

    params: Mapping[str, Any]
    seed: int
    budget: float | None
    folder: Path
    parent: Path | None = None

    def torch(self, slot: str) -> Callable[..., Any]:
        """Return an evolved function as one of PyTorch's tensors.

        It is computed by numpy, so on the CPU, and has a first derivative.

        Args:
            slot: a slot that holds a function.
        """
        import torch  # pyright: ignore[reportMissingImports]

        function = self.params[slot]

        def arrays(tensors):
            return [x.detach().cpu().numpy() for x in tensors]

        class Evolved(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *inputs):
                ctx.save_for_backward(*inputs)
                return torch.as_tensor(function(*arrays(inputs))).to(inputs[0])

            @staticmethod
            def backward(ctx, *along):
                inputs = ctx.saved_tensors
                found = function.gradient(*arrays(inputs), along=arrays(along)[0])
                return tuple(
                    torch.as_tensor(x).to(y) for x, y in zip(found, inputs, strict=True)
                )

        return Evolved.apply


def serve(job: str, result: str) -> None:
    """Run the trial that a file describes, in this process.

    Args:
        job: number of a file descriptor to read JSON from: `path`, folders to import
            from first; `function`; and `trial`, or None to import the function alone.
        result: number of the file descriptor that takes the result, a line of JSON:
            the `score`, or the `problem`.
    """
    own, descriptor = os.getpid(), int(result)
    os.set_inheritable(descriptor, False)
    _end_with_driver()
    told: dict[str, Any]
    try:
        with open(int(job), encoding="utf-8") as file:
            described = json.load(file)
        first = described["path"]
        sys.path[:] = [*first, *(x for x in sys.path if x not in first)]
        function = _function(*described["function"])
        trial = described["trial"]
        told = {"score": None if trial is None else _score(function, _trial(trial))}
    except BaseException as error:  # `sys.exit` in a trial is its failure
        if os.getpid() == own:
            traceback.print_exc()
        told = {"problem": f"{type(error).__name__}: {error}"[:500]}
    if os.getpid() != own:
        os._exit(0)  # a child that the function forked and let return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os.write(descriptor, json.dumps(told).encode() + b"\n")
    os.close(descriptor)


def _end_with_driver() -> None:
    """End this process and all that it started when the driver is gone.

    The driver holds the other end of the standard input. The function finds an empty
    one in its place.
    """
    alive = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait():
        while os.read(alive, 1):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    if os.getpgrp() == os.getpid():
        threading.Thread(target=wait, daemon=True).start()


def _function(module: str, name: str) -> Callable[[Trial], Any]:
    """The function of a name in a module, or in a file `*.py`.

    A file is imported under the name by which `multiprocessing` imports a program.
    """
    if module.endswith(".py"):
        spec: Any = importlib.util.spec_from_file_location("__mp_main__", module)
        found: Any = importlib.util.module_from_spec(spec)
        sys.modules["__main__"] = sys.modules["__mp_main__"] = found
        spec.loader.exec_module(found)
    else:
        found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}, not a function")
    return found


def _trial(described: Mapping[str, Any]) -> Trial:
    parent = described["parent"]
    return Trial(
        {name: _value(x) for name, x in described["params"].items()},
        described["seed"],
        described["budget"],
        Path(described["folder"]),
        None if parent is None else Path(parent),
    )


def _value(described: Any) -> Any:
    """A number, None, or an evolved function in numpy."""
    if not isinstance(described, Mapping):
        return described
    import numpy as np

    from metaevo.portable.numpy_functions import Function

    arrays = [np.asarray(x, np.float32) for x in described["arrays"]]
    return Function(described["function"], arrays)


def _score(function: Callable[[Trial], Any], trial: Trial) -> float:
    value = function(trial)
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError(f"score returned {value!r}; expected a finite number")
    return score
