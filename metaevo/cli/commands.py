"""What the larger words of the `metaevo` command do."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from metaevo.cli import main as cli
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage.run_directory import read_manifest, require_finished
from metaevo.types import Search


def verify(path: str) -> None:
    """Prints what is whole, and what is not."""
    from metaevo.cli import verify as verification

    found = verification.verify(path)
    print(verification.text(found))
    if any(finding.matters and not finding.good for finding in found):
        raise CheckpointError(f"{path} is not whole")


def doctor(directory: str = ".") -> None:
    """Prints what this machine can do, and what is wrong with it."""
    from metaevo.cli import doctor as doctors

    found = list(doctors.examine(directory))
    print(doctors.text(found))
    if not all(finding.good for finding in found):
        raise ConfigError("searches may fail here, or be lost; see above")


def play(directory: str, argv: Sequence[str]) -> None:
    def options(
        agent: Literal["solution", "hand-made", "best"] = "solution",
        seed: int = 0,
        out: str | None = None,
    ): ...

    chosen = _chosen(options, argv)
    require_finished(directory)
    cli.known(read_manifest(directory)["identity"]["search"])
    from metaevo.cli import play
    from metaevo.evaluators.devices import configure

    configure()
    path, steps, total = play.play(lambda: remade(directory), directory, **chosen)
    print(f"{path}: {steps} steps, return {total:g}")


def remade(directory: str | Path, changes: Sequence[str] = ()) -> Search:
    """The search of a run, with further changes."""
    manifest = read_manifest(directory)
    name = cli.known(manifest["identity"]["search"])
    search = getattr(importlib.import_module(f"searches.{name}"), "search", None)
    if search is None:
        raise ConfigError(f"searches/{name}.py has no function `search` to make it by")
    config = cli.parse(search, [*manifest["changes"], *changes])
    del config["run"]
    return search(**config)


def compare(argv: Sequence[str]) -> None:
    def options(
        seeds: int = 32,
        tuned: bool = True,
        controls: int = 20,
        control_seeds: int = 8,
        seed: int = 0,
        optimum: float | None = None,
        out: str | None = None,
    ): ...

    directories = [x for x in argv if "=" not in x]
    on = tuple(x.removeprefix("on=") for x in argv if x.startswith("on="))
    rest = [x for x in argv if "=" in x and not x.startswith("on=")]
    chosen = _chosen(options, rest)
    for key, least in (("seeds", 3), ("controls", 0), ("control_seeds", 1)):
        if chosen[key] < least:
            raise ConfigError(f"{key}={chosen[key]} must be at least {least}")
    groups: dict[str, list[Path]] = {}
    settings: list[Any] = []
    for directory in directories:
        require_finished(directory)
        identity = read_manifest(directory)["identity"]
        alike = [identity["search"], identity["settings"]]
        if alike not in settings:
            settings.append(alike)
        others = [s for s in settings[: settings.index(alike)] if s[0] == alike[0]]
        name = alike[0] + f" {len(others) + 1}" * bool(others)
        groups.setdefault(name, []).append(Path(directory))
    from metaevo.cli import compare
    from metaevo.evaluators.devices import configure
    from metaevo.storage.run_directory import check_writable

    out = Path(chosen.pop("out") or Path(directories[0]) / "compare")
    check_writable("out", out)
    stop = cli.on_signals()
    configure()
    import jax

    lines = compare.compare(
        groups,
        remade,
        out,
        compare.Settings(on=on, **chosen),
        jax.devices(),
        stop.is_set,
    )
    print("\n".join([*lines, f"comparison: {out / 'index.html'}"]))


def distill(directory: str, argv: Sequence[str]) -> None:
    def options(seeds: int = 32, seed: int = 0): ...

    chosen = _chosen(options, argv)
    if chosen["seeds"] < 3:
        raise ConfigError(f"seeds={chosen['seeds']} must be at least 3")
    require_finished(directory)
    cli.known(read_manifest(directory)["identity"]["search"])
    from metaevo.analysis import distill, report
    from metaevo.evaluators.devices import configure

    stop = cli.on_signals()
    configure()
    import jax

    lines = distill.distill(
        remade(directory),
        Path(directory),
        chosen["seeds"],
        chosen["seed"],
        jax.devices(),
        print,
        stop.is_set,
    )
    print("\n".join([*lines, f"report: {report.write(directory)}"]))


def _chosen(options: Callable, argv: Sequence[str]) -> dict[str, Any]:
    """`argv` against a function's parameters."""
    parameters = inspect.signature(options).parameters
    defaults = {name: p.default for name, p in parameters.items()}
    return cli.parse_into(options, defaults, argv)
