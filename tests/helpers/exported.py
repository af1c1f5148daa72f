"""Evaluates exported files, in an environment that has their framework alone.

    python exported.py FOLDER

A case is a folder with `case.json`, `inputs.npz` and an exported file, named after its
format. What the file gives is written beside it, as `found.npz`: `value`, and
`gradient_NAME` where the format has gradients. An optimizer's values are all its
directions, one array after the other.
"""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np

STEP_SIZE = 0.01


def load(path):
    """Import a file as a module of no package."""
    spec = importlib.util.spec_from_file_location(f"exported_{path.parent.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- functions ------------------------------------------------------------------------


def of_numpy(path, case, inputs):
    module = load(path)
    found = {"value": getattr(module, case["slot"])(*inputs.values())}
    gradient = getattr(module, f"{case['slot']}_gradient", None)
    if gradient is not None:
        slopes = gradient(*inputs.values())
        found |= {f"gradient_{x}": g for x, g in zip(inputs, slopes, strict=True)}
    return found


def of_jax(path, case, inputs):
    return _differentiated(getattr(load(path), case["slot"]), inputs)


def of_stablehlo(path, case, inputs):
    import jax

    return _differentiated(jax.export.deserialize(path.read_bytes()).call, inputs)


def _differentiated(function, inputs):
    import jax

    @jax.jit
    def both(*inputs):
        if jax.numpy.issubdtype(jax.eval_shape(function, *inputs).dtype, int):
            return function(*inputs), ()
        value, pull = jax.vjp(function, *inputs)
        return value, pull(jax.numpy.ones_like(value))

    value, slopes = both(*inputs.values())
    found = {f"gradient_{x}": g for x, g in zip(inputs, slopes, strict=False)}
    return found | {"value": value}


def of_torch(path, case, inputs):
    import torch

    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in inputs.items()}
    value = getattr(load(path), case["slot"])(*tensors.values())
    found = {"value": value.detach().numpy()}
    if not value.is_floating_point():
        return found
    if value.requires_grad:
        value.sum().backward()
    for name, x in tensors.items():
        slope = torch.zeros_like(x) if x.grad is None else x.grad
        found[f"gradient_{name}"] = slope.numpy()
    return found


def of_onnx(path, case, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    given = {x.name: inputs[x.name] for x in session.get_inputs()}
    (value,) = session.run(None, given)
    return {"value": value}


# --- optimizers -----------------------------------------------------------------------


def at(inputs, step, kind):
    """The arrays of a kind, such as gradients, of a step: name -> array."""
    prefix = f"{step} {kind} "
    return {
        k.removeprefix(prefix): x for k, x in inputs.items() if k.startswith(prefix)
    }


def tree(arrays):
    """Nested dicts of arrays by path."""
    found = {}
    for path, x in arrays.items():
        *outer, name = path.split("/")
        node = found
        for part in outer:
            node = node.setdefault(part, {})
        node[name] = x
    return found


def leaf(nested, path):
    for name in path.split("/"):
        nested = nested[name]
    return np.asarray(nested)


def steps_of_functions(path, case, inputs):
    module, found = load(path), []
    names, params = case["params"], at(inputs, "first", "params")
    state = module.optimizer_init(tree(params))
    for i in range(case["steps"]):
        more = {}
        if case["noise"]:
            more["noise"] = tree(at(inputs, i, "noise"))
        if case["temporal"]:
            more["progress"] = inputs["progress"][i]
        gradient = tree(at(inputs, i, "gradient"))
        move, state = module.optimizer_update(gradient, state, tree(params), **more)
        params = {x: params[x] - np.float32(STEP_SIZE) * leaf(move, x) for x in names}
        found += [np.ravel(leaf(move, name)) for name in names]
    return {"value": np.concatenate(found)}


def steps_of_torch(path, case, inputs):
    import torch

    first = at(inputs, "first", "params")
    params = {x: torch.nn.Parameter(torch.tensor(first[x])) for x in case["params"]}
    groups = [{"params": [params[x] for x in network]} for network in case["networks"]]
    module, found = load(path), []
    step = module._step

    def recorded(*given):
        # A difference of parameters would lose digits.
        direction, *after = step(*given)
        found.append(direction.numpy())
        return direction, *after

    module._step = recorded
    optimizer = module.Evolved(groups, lr=STEP_SIZE)
    order = [name for network in case["networks"] for name in network]
    directions = []
    for i in range(case["steps"]):
        noise = {params[x]: torch.tensor(e) for x, e in at(inputs, i, "noise").items()}
        optimizer.noise, optimizer.progress = noise.get, inputs["progress"][i]
        for name, gradient in at(inputs, i, "gradient").items():
            params[name].grad = torch.tensor(gradient)
        found.clear()
        before = params[order[0]].detach().clone()
        optimizer.step()
        moved = (before - params[order[0]].detach()).reshape(-1).numpy()
        assert np.allclose(moved, STEP_SIZE * found[0], atol=1e-6)
        of = dict(zip(order, found, strict=True))
        directions += [of[name] for name in case["params"]]
    # A checkpoint keeps it, so it loads again.
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    return {"value": np.concatenate(directions)}


def steps_of_onnx(path, case, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    types = {"tensor(float)": "float32", "tensor(int64)": "int64"}
    taken = {x.name: types[x.type] for x in session.get_inputs()}

    def step(given):
        return session.run(None, {x: np.asarray(given[x], t) for x, t in taken.items()})

    return _stepped(step, case, inputs)


def steps_of_stablehlo(path, case, inputs):
    import jax

    call = jax.export.deserialize(path.read_bytes()).call
    return _stepped(
        lambda given: call(*(given[x] for x in case["inputs"])), case, inputs
    )


def _stepped(step, case, inputs):
    """Directions, by a function that does the step of one flat array."""
    params, found = at(inputs, "first", "params"), []
    state = {}
    for name, x in params.items():
        state[name] = {
            key: np.full(
                [x.size if n == "n" else n for n in kept["shape"]],
                kept["start"],
                "int32" if "int" in kept["type"] else "float32",
            )
            for key, kept in case["state"].items()
        }
    for i in range(case["steps"]):
        for name in case["params"]:
            x = params[name]
            given = {
                "gradient": inputs[f"{i} gradient {name}"].reshape(-1),
                "params": x.reshape(-1),
                "layer": np.float32(case["layers"][name]),
                "progress": inputs["progress"][i],
                **state[name],
            }
            if case["noise"]:
                given["noise"] = inputs[f"{i} noise {name}"].reshape(-1)
            move, *after = map(np.asarray, step(given))
            state[name] = dict(zip(state[name], after, strict=True))
            params[name] = x - np.float32(STEP_SIZE) * move.reshape(x.shape)
            found.append(move)
    return {"value": np.concatenate(found)}


FUNCTIONS = {
    "torch": of_torch,
    "numpy": of_numpy,
    "jax": of_jax,
    "stablehlo": of_stablehlo,
    "onnx": of_onnx,
}
OPTIMIZERS = {
    "torch": steps_of_torch,
    "numpy": steps_of_functions,
    "jax": steps_of_functions,
    "stablehlo": steps_of_stablehlo,
    "onnx": steps_of_onnx,
}


def main(folder):
    for path in sorted(Path(folder).glob("*/case.json")):
        case = json.loads(path.read_text())
        evaluate = (OPTIMIZERS if "steps" in case else FUNCTIONS)[case["format"]]
        (file,) = path.parent.glob(f"{case['format']}.*")
        inputs = dict(np.load(path.with_name("inputs.npz")))
        np.savez(path.with_name("found.npz"), **evaluate(file, case, inputs))


if __name__ == "__main__":
    main(sys.argv[1])
