"""Defaults of algorithms, strategies and learned functions are those of a golden file.

A default is a part of an algorithm: results are of it, and a run without the setting is
a run with it. `python tests/unit/test_defaults.py` writes the file again; its diff says
what changed.
"""

import importlib
import inspect
import json
from pathlib import Path

from metaevo.engine import identity
from metaevo.learned import operations

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "defaults.json"


def of_call(function):
    """Defaults of a function's parameters, as plain data."""
    parameters = inspect.signature(function).parameters.values()
    given = {p.name: p.default for p in parameters if p.default is not p.empty}
    return identity.plain(given)


def modules(folder):
    for path in sorted((ROOT / folder).glob("[a-z]*.py")):
        yield path.stem, importlib.import_module(f"{folder}.{path.stem}")


def defaults():
    """Defaults by name."""
    found = {}
    for name, module in modules("inner_loops"):
        found[f"inner_loops/{name} Config"] = of_call(module.Config)
        found[f"inner_loops/{name} Meta"] = of_call(module.Meta)
    for name, module in modules("strategies"):
        found[f"strategies/{name}"] = of_call(getattr(module, name))
    for name, operation in operations.everything().items():
        if operation.build.__module__.startswith("metaevo."):
            found[f"functions/{name}"] = of_call(operation.build)
    return found


def test_defaults_are_those_of_the_golden_file():
    golden = json.loads(GOLDEN.read_text("utf-8"))
    found = defaults()
    assert sorted(found) == sorted(golden)
    differing = [name for name in golden if found[name] != golden[name]]
    assert not differing


if __name__ == "__main__":
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in defaults().items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
