"""Source code of an evolved optimizer around the program of one step.

The program takes one array, flat, with what is kept of it. Here is what goes over the
arrays of an agent: a `torch.optim.Optimizer`, or two functions of trees for JAX and
numpy.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from metaevo.export.dialects import NUMPY, TORCH, Dialect, number, tuple_of
from metaevo.export.equations import EvolvedProgram
from metaevo.learned import optimizers
from metaevo.portable import numpy_functions

__all__ = ["PUBLIC", "helpers", "parts"]

PUBLIC: Mapping[str, tuple[str, ...]] = {
    "torch": ("Evolved",),
    "jax": ("optimizer_init", "optimizer_update"),
    "numpy": ("optimizer_init", "optimizer_update"),
}
"""Names that a file defines for an optimizer, by dialect."""


IMPORTS: Mapping[str, str] = {
    "torch": "from collections.abc import Callable\n",
    "jax": "from typing import Any\n",
    "numpy": "from typing import Any\n",
}
"""Lines that the annotations need, by dialect."""


def helpers(dialect: Dialect, one: EvolvedProgram) -> dict[str, str]:
    """Functions that the parts use, by name."""
    found = {"_start": _start(dialect, one)}
    if dialect is TORCH:
        if "layer" in one.value.inputs:
            found["_layers"] = _LAYERS
    elif dialect is NUMPY:
        for name in ("_arrays", "_tree", "_layers"):
            found[name] = inspect.getsource(getattr(numpy_functions, name))
    elif "layer" in one.value.inputs:
        source = inspect.getsource(optimizers.depths)
        found["_layers"] = source.replace("def depths(", "def _layers(", 1)
    return found


def _start(dialect: Dialect, one: EvolvedProgram) -> str:
    """Source of what is kept of an array before the first step."""
    m, size = dialect.module, "x.numel()" if dialect is TORCH else "x.size"
    device = ", device=x.device" * (dialect is TORCH)
    lines = ["def _start(x):", '    """Return what is kept of an array at first."""']
    shapes = [tuple(kept["shape"]) for kept in one.state.values()]
    if any("n" in shape for shape in shapes):
        lines.append(f"    n = {size}")
    lines.append("    return {")
    for name, kept in one.state.items():
        whole = "int" in kept["type"]
        integer = "torch.int64" if dialect is TORCH else "int"
        dtype = integer if whole else "x.dtype"
        value = int(kept["start"]) if whole else number(kept["start"])
        shape = tuple_of(kept["shape"])
        text = f"{m}.full({shape}, {value}, dtype={dtype}{device})"
        lines.append(f'        "{name}": {text},')
    return "\n".join([*lines, "    }"]) + "\n"


def parts(dialect: Dialect, one: EvolvedProgram) -> list[str]:
    """Source of the class, or of the two functions."""
    extra = [name for name in one.value.inputs if name not in one.given]
    noise = "noise" if dialect is TORCH else "drawn"
    values = {
        "extra": "".join(f", {noise if x == 'noise' else x}" for x in extra),
        "keywords": "".join(x for name, x in _KEYWORDS.items() if name in extra),
        "module": dialect.module,
        "documented": "".join(x for name, x in _DOCUMENTED.items() if name in extra),
    }
    template = {"torch": _TORCH, "jax": _FUNCTIONS, "numpy": _FUNCTIONS}[dialect.name]
    for key, text in {
        **_TREES.get(dialect.name, {}),
        **values,
        **_flags(extra),
    }.items():
        template = template.replace(f"<{key}>", text)
    lines = [x for x in template.strip("\n").splitlines() if not x.endswith("<drop>")]
    return ["\n".join(lines) + "\n"]


def _flags(extra: list[str]) -> dict[str, str]:
    """Markers of lines that only some optimizers need."""
    names = ("layer", "noise", "progress")
    found = {f"if {x}": "" if x in extra else "<drop>" for x in names}
    found["if attributes"] = found["if progress"] if "noise" not in extra else ""
    return found | {f"unless {x}": "<drop>" if x in extra else "" for x in names}


_KEYWORDS = {
    "progress": "\n    progress: float,",
    "noise": "\n    noise: Any = None,",
}
_DOCUMENTED = {
    "progress": "        progress: share of the training that is done, 0 to 1.\n",
    "noise": "        noise: standard normal numbers like `params`; None: no noise.\n",
}

_LAYERS = '''\
def _layers(params):
    """Return the depth of each parameter's layer in its network, from 0 to 1.

    A parameter of two or more dimensions begins a layer, such as a weight before its
    bias.
    """
    found, layer = [], -1
    for p in params:
        layer += p.ndim > 1
        found.append(max(layer, 0))
    return [x / max(found[-1], 1) for x in found]
'''

_TORCH = '''
class Evolved(torch.optim.Optimizer):
    """An evolved optimizer: a step is params -= lr * direction.

    Args:
        params: as for any optimizer of PyTorch: parameters, or groups of them.
        lr: size of the steps.

    Attributes:<if attributes>
        progress: share of the training that is done, 0 to 1; set it.<if progress>
        noise: parameter -> standard normal numbers of its shape.<if noise>
    """

    def __init__(self, params: torch.optim.optimizer.ParamsT, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.progress = 0.0<if progress>
        self.noise = torch.randn_like<if noise>

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Do one step; return the loss of `closure`, if it is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            layers = _layers(group["params"])<if layer>
            for p, layer in zip(group["params"], layers):<if layer>
            for p in group["params"]:<unless layer>
                if p.grad is None:
                    continue
                kept = self.state[p] or _start(_wide(p))
                kept = {name: _wide(x) for name, x in kept.items()}
                flat = _wide(p.grad).reshape(-1), _wide(p).reshape(-1)
                layer = flat[1].new_tensor(layer)<if layer>
                noise = _wide(self.noise(p)).reshape(-1)<if noise>
                progress = flat[1].new_tensor(self.progress)<if progress>
                direction, *after = _step(*flat, *kept.values()<extra>)
                self.state[p] = dict(zip(kept, after))
                p.sub_(group["lr"] * direction.reshape(p.shape).to(p.dtype))
        return loss
'''

_FUNCTIONS = '''
def optimizer_init(params: Any) -> list[dict[str, Any]]:
    """Return the state of the optimizer.

    Args:
        params: <trees>.
    """
    return [_start(_wide(x)) for x in <leaves>(params)<values>]


def optimizer_update(
    gradient: Any,
    state: list[dict[str, Any]],
    params: Any,<keywords>
) -> tuple[Any, list[dict[str, Any]]]:
    """Return a direction like `params`, and the state after it.

    A step is params - lr * direction.

    Args:
        gradient: like `params`.
        state: of `optimizer_init`, or of the step before.
        params: <trees>.
<documented>    """
    <flatten>
    slopes = <leaves>(gradient)<values>
    layers = <layers><if layer>
    layers = [0.0] * len(leaves)<unless layer>
    if noise is None:<if noise>
        noise = <zeros><if noise>
    noises = <leaves>(noise)<values><if noise>
    noises = leaves<unless noise>
    directions, states = [], []
    for x, slope, kept, layer, drawn in zip(leaves, slopes, state, layers, noises):
        flat = _wide(slope).reshape(-1), _wide(x).reshape(-1)
        layer = <module>.asarray(layer, flat[1].dtype)<if layer>
        drawn = _wide(drawn).reshape(-1)<if noise>
        direction, *after = _step(*flat, *kept.values()<extra>)
        directions.append(_cast(direction.reshape(x.shape), slope))
        states.append(dict(zip(kept, after)))
    return <unflatten>, states
'''

_TREES: Mapping[str, Mapping[str, str]] = {
    "jax": {
        "trees": "a pytree of arrays",
        "leaves": "jax.tree.leaves",
        "values": "",
        "flatten": "leaves, tree = jax.tree.flatten(params)",
        "layers": "jax.tree.leaves(_layers(params))",
        "zeros": "jax.tree.map(jnp.zeros_like, params)",
        "unflatten": "jax.tree.unflatten(tree, directions)",
    },
    "numpy": {
        "trees": "nested dicts of arrays, or one array",
        "leaves": "_arrays",
        "values": ".values()",
        "flatten": "leaves = _arrays(params).values()",
        "layers": "_layers(list(_arrays(params))).values()",
        "zeros": "_tree({at: 0 * x for at, x in _arrays(params).items()})",
        "unflatten": "_tree(dict(zip(_arrays(params), directions)))",
    },
}
