"""The surroundings in which wandb runs: environment, settings, and what it is given.

A run directory may come from a stranger, and wandb obeys files, environment variables
and even values of the configuration. So wandb gets plain values, looks at no git
repository and no code, and reads the settings of the user alone.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage import folders, obeyed
from metaevo.storage._files import read_bytes

DATA, CACHE = "WANDB_DATA_DIR", "WANDB_CACHE_DIR"
"""Variables that name wandb's folders."""
CONFIG = "WANDB_CONFIG_DIR"
"""That of the configuration, which stays the user's: it names the server."""
DEFAULTS = {"base_url": "https://api.wandb.ai"}
"""wandb's own settings where nobody names others."""
HARMLESS = ("entity", "project", "mode")
"""Settings of a working directory that name no host, key or file: those that wandb's
own commands write there."""
MAX_SETTINGS = 1 << 20  # bytes
QUIET = {
    "WANDB_DISABLE_CODE": "true",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_ERROR_REPORTING": "false",
}
"""Variables that are set whatever the user's are: wandb runs git in the working
directory, whose configuration may name programs, and reports errors to its maker."""


class Environment:
    """Environment variables for wandb, and its folders, until `restore`."""

    def __init__(self):
        self._ours: set[str] = set()
        self._undo = contextlib.ExitStack()

    def set(self, directory: Path, mode: str) -> None:
        """Set the variables for the run in `directory`.

        wandb copies the files of an artifact to its data folder. `wandb sync` needs
        them there, so offline that is below the run. Online it is a temporary folder:
        its path is sent.

        Args:
            directory: the run directory.
            mode: `offline` or `online`.
        """
        folder = directory.absolute() / "wandb"
        self._default("WANDB_SILENT", "true")
        self._default(CACHE, str(folder / "cache"))
        if mode == "offline" or DATA in os.environ:
            self._default(DATA, str(folder / "data"))
        else:
            temporary = tempfile.mkdtemp(prefix="metaevo-wandb-")
            self._undo.callback(shutil.rmtree, temporary, ignore_errors=True)
            self._default(DATA, temporary)
        for key, value in QUIET.items():
            self._set(key, value)

    def _default(self, key: str, value: str) -> None:
        """Set a variable unless the user has."""
        if key in self._ours or key not in os.environ:
            self._ours.add(key)
            self._set(key, value)

    def _set(self, key: str, value: str) -> None:
        before = {key: os.environ[key]} if key in os.environ else {}
        self._undo.callback(os.environ.update, before)
        self._undo.callback(os.environ.pop, key, None)
        os.environ[key] = value

    def restore(self) -> None:
        """Set the variables to what they were, and remove the temporary folder."""
        self._undo.close()
        self._ours.clear()


def check_here() -> None:
    """Check that wandb obeys only the user in the working directory.

    wandb prefers settings of that directory to the user's own, and they may be a
    stranger's, as what was unpacked beside a run is. So a host, a key and whatever else
    is not harmless must be the user's: of the environment, which wandb prefers to
    files, or of the user's settings.

    Raises:
        CheckpointError: it lies in a run directory, and wandb would obey a file there;
            or its settings cannot be read.
        ConfigError: its settings are others than the user's.
    """
    found = obeyed.planted(*obeyed.WANDB_SETTINGS, obeyed.WANDB_DEFAULTS)
    if found is not None:
        raise CheckpointError(
            f"{found} would steer wandb; remove it, or work in another directory"
        )
    folder = Path(os.environ.get(CONFIG, "~/.config/wandb")).expanduser()
    for path in map(Path, obeyed.WANDB_SETTINGS):
        for key, value in _read(path).items():
            name = f"WANDB_{key.upper()}"
            if key in HARMLESS or os.environ.get(name):
                continue
            if value != _read(folder / "settings").get(key, DEFAULTS.get(key)):
                raise ConfigError(
                    f"{path.absolute()} would steer wandb: it sets {key[:80]}, not as "
                    "your own settings do, and may be a stranger's; set "
                    f"{name[:80]}, or remove that line"
                )


def _read(path: Path) -> dict[str, str]:
    """Return a file of wandb's settings, as wandb reads it; empty if there is none.

    Raises:
        CheckpointError: it cannot be read.
    """
    parser = configparser.ConfigParser()
    try:
        data = read_bytes(os.path.realpath(path), MAX_SETTINGS)  # a user may link it
        parser.read_string(data.decode())
        return dict(parser.items("default"))
    except (FileNotFoundError, NotADirectoryError, configparser.NoSectionError):
        return {}
    except (OSError, ValueError, configparser.Error) as error:
        raise CheckpointError(
            f"{path} would steer wandb, and cannot be read ({type(error).__name__}); "
            "remove it"
        ) from None


def settings(wandb: Any, init_timeout: float, finish_timeout: float) -> Any:
    """Return wandb's settings for one run.

    Args:
        wandb: the package.
        init_timeout: seconds to wait for the server at the start.
        finish_timeout: seconds to wait for the server at the end, after which
            `finish` raises a TimeoutError.
    """
    return wandb.Settings(
        silent=True,
        console="off",
        init_timeout=init_timeout,
        finish_timeout=finish_timeout,
        finish_timeout_raises=True,
        use_dot_wandb=False,
        allow_media_symlink=False,  # a run with a link in it is refused
        reinit="create_new",  # beside a run that the user's program has open
        save_code=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        # Paths of this machine: of the program, its arguments and its folder.
        program="metaevo",
        program_abspath="metaevo",
        x_executable="python",
        x_disable_meta=True,
        x_save_requirements=False,
        x_disable_stats=True,
    )


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration that wandb takes as it is.

    wandb resolves `wandb-artifact://HOST/...`, for which it sends the user's key to
    HOST. Such text is quoted. Keys that wandb uses itself are left out. Absolute paths,
    which name the user's folders, are cut to their last names.

    >>> plain({"_wandb": 1, "start": "/home/me/loss", "x": [1, "wandb-artifact://a/b"]})
    {'start': '.../loss', 'x': [1, '"wandb-artifact://a/b"']}
    """
    return {
        folders.without(key): _plain(x)
        for key, x in config.items()
        if not key.strip("-").startswith("_")
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    if not isinstance(value, str):
        # As text: a nested dictionary could be a reference that wandb resolves.
        return folders.without(json.dumps(value, default=str, ensure_ascii=False))
    foreign = "wandb" in value.casefold() and "://" in value
    return json.dumps(value) if foreign else folders.without(value)
