"""Uses exported files as their users do, in an environment of their framework alone.

    python exported_use.py FOLDER

Cases are those of `exported.py`; `case.json` also has `axes`: name of an input ->
number of its axes behind the leading ones, or null for a scalar. What fails is written
beside it, as `wrong.json`: check -> what happened. Checks that a case has no use for
are left out.
"""

import contextlib
import doctest
import inspect
import io
import json
import sys
import warnings
from pathlib import Path

import numpy as np
from exported import load, tree

# Types are promoted alike in jax, where each check is compiled.
HALVES = {"torch": ("float16", "bfloat16"), "jax": ("float16",), "numpy": ("float16",)}
# Values are hundreds, as CartPole's; half the square of 400 is more than float16 holds.
OF_RETURNS = {"value", "target", "old_value", "q", "next_value", "td_error"}
OF_RETURNS |= {"return_std"}


class Torch:
    def __init__(self):
        import torch

        self.torch = torch

    def array(self, x, dtype="float32"):
        return self.torch.tensor(x).to(getattr(self.torch, dtype))

    def plain(self, x):
        return x.detach().double().numpy()

    def gradient(self, module, slot, given):
        given = [x.clone().requires_grad_(x.ndim > 0) for x in given]
        value = getattr(module, slot)(*given)
        if not value.is_floating_point():
            return value, []
        if value.requires_grad:
            value.sum().backward()
        return value, [x.grad for x in given if x.grad is not None]

    def name(self, x):
        return str(x.dtype).removeprefix("torch.")


class Jax:
    def __init__(self):
        import jax

        self.jax = jax

    def array(self, x, dtype="float32"):
        return self.jax.numpy.asarray(x, dtype)

    def plain(self, x):
        return np.float64(x)

    def gradient(self, module, slot, given):
        # One program is compiled in less time than each operation by itself.
        function = self.jax.jit(getattr(module, slot))
        dtype = self.jax.eval_shape(function, *given).dtype
        arrays = tuple(i for i, x in enumerate(given) if x.ndim)
        if not (arrays and self.jax.numpy.issubdtype(dtype, self.jax.numpy.floating)):
            return function(*given), []

        def total(*given):
            value = function(*given)
            return value.astype("float32").sum(), value

        both = self.jax.value_and_grad(total, arrays, has_aux=True)
        (_, value), slopes = self.jax.jit(both)(*given)
        return value, slopes

    def name(self, x):
        return str(x.dtype)


class Numpy:
    def array(self, x, dtype="float32"):
        return np.asarray(x, dtype)

    def plain(self, x):
        return np.float64(x)

    def gradient(self, module, slot, given):
        value = getattr(module, slot)(*given)
        gradient = getattr(module, f"{slot}_gradient", None)
        slopes = [] if gradient is None else gradient(*given)
        return value, [x for x, of in zip(slopes, given, strict=False) if of.ndim]

    def name(self, x):
        return str(x.dtype)


FRAMEWORKS = {"torch": Torch, "jax": Jax, "numpy": Numpy}


# --- functions ------------------------------------------------------------------------


def column_is_refused(it, module, case, inputs):
    """[n, 1] beside [n]: one line with both names and shapes, in both orders."""
    axes = case["axes"]
    several = [
        name for name, rank in axes.items() if rank is not None and name != "action"
    ]
    if len(several) < 2:
        return None
    first, second = several[:2]
    for wrong in (first, second):
        given = {name: it.array(x) for name, x in inputs.items()}
        x = np.expand_dims(inputs[wrong], inputs[wrong].ndim - axes[wrong])
        given[wrong] = it.array(x)
        try:
            found = getattr(module, case["slot"])(*given.values())
        except (ValueError, TypeError) as error:
            said = str(error)
        except Exception as error:
            return f"{wrong}: {type(error).__name__}: {error}"
        else:
            return f"{wrong} as a column gave {tuple(found.shape)}"
        parts = [wrong, str(x.shape), case["slot"]]
        other = first if wrong == second else None
        parts += [other, str(inputs[other].shape)] if other else []
        if "\n" in said or not all(part in said for part in parts):
            return said
    return ""


def scalar_broadcasts(it, module, case, inputs):
    """One number for all elements is an array of it."""
    found = []
    names = [name for name, rank in case["axes"].items() if rank == 0]
    for name in names if len(names) > 1 else []:
        number = inputs[name].ravel()[0]
        full = inputs | {name: np.full_like(inputs[name], number)}
        expected, value = (
            getattr(module, case["slot"])(*given)
            for given in (
                [it.array(x) for x in full.values()],
                [float(number) if n == name else it.array(x) for n, x in full.items()],
            )
        )
        same = expected.shape == value.shape
        if not same or not np.allclose(it.plain(expected), it.plain(value), 1e-5, 1e-6):
            found.append(name)
    return ", ".join(found)


def type_is_kept(it, module, case, inputs):
    if isinstance(it, Jax):
        return None
    given = [it.array(np.float64(x), "float64") for x in inputs.values()]
    value, slopes = it.gradient(module, case["slot"], given)
    found = {it.name(x) for x in (value, *slopes)} - {"int32", "int64"}
    return "" if found <= {"float64"} else str(found)


def half_is_finite(dtype):
    def check(it, module, case, inputs):
        given = [
            it.array(x * (50 if name in OF_RETURNS else 1), dtype)
            for name, x in inputs.items()
        ]
        return _not_finite(it, module, case, given)

    check.__name__ = f"{dtype}_is_finite"
    return check


def _not_finite(it, module, case, given):
    value, slopes = it.gradient(module, case["slot"], given)
    if not np.isfinite(it.plain(value)).all():
        return "the value is not finite"
    wrong = [i for i, x in enumerate(slopes) if not np.isfinite(it.plain(x)).all()]
    return f"gradients of inputs {wrong} are not finite" if wrong else ""


def batch_of_one_is_finite(it, module, case, inputs):
    """Its deviation is not a number where n - 1 divides."""
    given = {
        name: x if case["axes"][name] is None else x[:1] for name, x in inputs.items()
    }
    for std in (np.nan,) if isinstance(it, Jax) else (0.0, np.nan):
        given |= {"return_std": np.float32(std)} if "return_std" in given else {}
        arrays = [it.array(x) for x in given.values()]
        if wrong := _not_finite(it, module, case, arrays):
            return f"return_std {std}: {wrong}"
    return ""


def half_has_the_type_of_its_input(it, module, case, inputs):
    if case["slot"] != "activation":
        return None
    value = module.activation(it.array(inputs["x"], "float16"))
    return "" if it.name(value) == "float16" else it.name(value)


def other_device(it, module, case, inputs):
    """A tensor without data, of float64: constants follow it."""
    if not isinstance(it, Torch):
        return None
    given = [it.array(np.float64(x), "float64").to("meta") for x in inputs.values()]
    value = getattr(module, case["slot"])(*given)
    return "" if value.device.type == "meta" else str(value.device)


# --- optimizers -----------------------------------------------------------------------


def direction_has_the_type_of_its_parameter(dtype):
    def check(it, module, case, inputs):
        given = {
            name.removeprefix("first params "): x
            for name, x in inputs.items()
            if name.startswith("first params ")
        }
        if isinstance(it, Torch):
            return _torch_steps(it, module, given, dtype)
        params = tree({name: it.array(x, dtype) for name, x in given.items()})
        gradient = tree({name: it.array(0.1 * x, dtype) for name, x in given.items()})
        more = {"progress": 0.5} if case["temporal"] else {}
        state, name = module.optimizer_init(params), next(iter(given))
        for _ in range(2):
            move, state = module.optimizer_update(gradient, state, params, **more)
        for part in name.split("/"):
            move = move[part]
        finite = np.isfinite(it.plain(move)).all()
        return "" if finite and it.name(move) == dtype else f"{it.name(move)} {finite}"

    check.__name__ = f"direction_of_{dtype}"
    return check


def _torch_steps(it, module, given, dtype):
    params = [it.torch.nn.Parameter(it.array(x, dtype)) for x in given.values()]
    optimizer = module.Evolved(params, lr=0.01)
    for _ in range(2):
        for p in params:
            p.grad = 0.1 * p.detach()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    finite = all(np.isfinite(it.plain(p)).all() for p in params)
    return "" if finite and it.name(params[0]) == dtype else "a step is not finite"


# --- both -----------------------------------------------------------------------------


def example_runs(it, module, case, inputs):
    found = doctest.DocTestFinder(recurse=False).find(module)
    examples = [x for one in found for x in one.examples]
    if not examples:
        return "no example"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        failed, _ = doctest.testmod(module)
    return out.getvalue() if failed else ""


def is_annotated(it, module, case, inputs):
    found = []
    for name in module.__all__:
        function = getattr(module, name)
        function = function.step if inspect.isclass(function) else function
        signature = inspect.signature(function)
        annotations = [
            x.annotation for k, x in signature.parameters.items() if k != "self"
        ]
        if inspect.Signature.empty in (*annotations, signature.return_annotation):
            found.append(name)
    return ", ".join(found)


def checks_of(case, to):
    if "steps" in case:
        return [
            *(direction_has_the_type_of_its_parameter(x) for x in HALVES[to]),
            *(example_runs, is_annotated),
        ]
    return [
        *(column_is_refused, scalar_broadcasts, type_is_kept),
        *(half_is_finite(x) for x in HALVES[to]),
        *(half_has_the_type_of_its_input, batch_of_one_is_finite, other_device),
        *(example_runs, is_annotated),
    ]


def main(folder):
    for path in sorted(Path(folder).glob("*/case.json")):
        case, found = json.loads(path.read_text()), {}
        to = case["format"]
        module = load(path.with_name(f"{to}.py"))
        sys.modules[module.__name__] = module
        inputs = dict(np.load(path.with_name("inputs.npz")))
        for check in checks_of(case, to):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    wrong = check(FRAMEWORKS[to](), module, case, inputs)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong is not None:
                found[check.__name__] = wrong
        path.with_name("wrong.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
