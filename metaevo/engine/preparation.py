"""All checks of a search and its options, for a run, `--dry-run`, `--cfg` and training.

Nothing compiles here but small programs on shapes, and nothing is written.
"""

from __future__ import annotations

from typing import NamedTuple

from metaevo.config import RunConfig, Stop
from metaevo.engine import checks, costs, identity, proposals
from metaevo.errors import ConfigError
from metaevo.evaluators import choose, surroundings
from metaevo.evaluators.devices import choose_devices
from metaevo.storage import run_directory
from metaevo.storage.manifests import Settings
from metaevo.types import Proposal, Search


class Prepared(NamedTuple):
    """A search that may start.

    Attributes:
        search: the search, with the start that `run.start_from` names.
        proposal: shapes and dtypes of a proposal of its strategy.
        stop: the condition of `run.stop`; None: there is none.
    """

    search: Search
    proposal: Proposal
    stop: Stop | None


def prepare(search: Search, config: RunConfig) -> Prepared:
    """Check that a search can run as its options say.

    Args:
        search: the search.
        config: how to run it; of several `seeds` all.

    Raises:
        ConfigError: something in the search, its options or JAX's settings does not
            fit, or JAX has no device.
    """
    surroundings.check_settings()
    surroundings.check_platform()
    if config.propose is not None and isinstance(search, Search):
        proposals.check(search, config.propose)
    if config.start_from is not None and isinstance(search, Search):
        search = checks.starting_from(search, config.start_from)
    proposal = checks.check(search)
    if config.seeds > 1 and costs.trains(search):
        raise ConfigError(
            f"run.seeds={config.seeds} is for searches; agents with other seeds are "
            f"num_seeds={config.seeds}"
        )
    costs.compared(search, config)
    stop = None if config.stop is None else Stop.parse(config.stop)
    if stop is not None:
        checks.check_stop(search, stop)
    costs.frames_judged(search, config)
    choose.check(config, search)
    if config.evaluator == "local" and not config.distributed:
        choose_devices(config)
    return Prepared(search, proposal, stop)


def settings(prepared: Prepared, config: RunConfig, given: Settings) -> Settings:
    """Return the settings by which a run is told from others.

    Args:
        prepared: the search.
        config: how to run it.
        given: the search's configuration as plain data.
    """
    values = {**given.values, "search": identity.identity(prepared.search)}
    if config.start_from is not None:
        values["start_from"] = config.start_from
    defaults = {**given.defaults, "search": identity.defaults(prepared.search)}
    return Settings(values, defaults)


def check_directory(
    prepared: Prepared, config: RunConfig, name: str, given: Settings
) -> None:
    """Check that a run's directory is free, or holds this run; nothing is written.

    Args:
        prepared: the search.
        config: how to run it, with one seed.
        name: name of the search.
        given: the search's configuration as plain data.

    Raises:
        ConfigError: the directory holds other files, or another run.
        CheckpointError: the run in it is damaged.
    """
    told = settings(prepared, config, given)
    directory = run_directory.chosen_directory(config, name, told)
    run_directory.check_free(directory)
    if run_directory.has_manifest(directory):
        manifest = run_directory.read_manifest(directory)
        run_directory.check_same_run(directory, manifest, name, config, told)
