"""The data of a run's manifest: which fields it has, and how two runs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from metaevo.config import RunConfig
from metaevo.errors import printable
from metaevo.storage import folders

SCHEMA = 2
"""Schema of `manifest.json`."""

NEW_SETTINGS: Mapping[str, tuple] = {
    "advantage": (None,),
    "critic_layer_norm": (False,),
    "head": ("scalar",),
    "lr_factor": (1.0,),
    "max_weight": (8.0,),
    "message": ("silent",),
    "message_size": (0,),
    "noisy": (False,),
    "normalize_advantage": (True,),
    "num_atoms": (101,),
    "num_critics": (2,),
    "num_step_return": (1,),
    "num_target_critics": (2,),
    "number_sigma": (0.3,),
    "policy": ("normal",),
    "policy_delay": (None,),
    "reward_scale": (1.0,),
    "target_entropy": (None, -1.0),
    "target_kl": (None,),
    "torso": ("mlp",),
    "v_max": (100.0,),
    "v_min": (-100.0,),
}
"""Settings of inner loops and searches that earlier versions did not have, and the
values that mean what those versions did: a run with one of them is the same run without
the setting."""

MAX_NAME = 200  # characters
MAX_CHANGES, MAX_CHANGE = 1000, 20_000  # and characters of one

MAY_CHANGE = "num_generations"  # a larger value extends a run


def check(manifest: Any) -> None:
    """Check the fields of a manifest that are used.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: one is not as expected.
    """

    def plain(x, kind):
        return isinstance(x, kind) and not isinstance(x, bool)

    identity, chunk_size = manifest["identity"], manifest["chunk_size"]
    search = identity["search"]
    if not isinstance(search, str) or len(search) > MAX_NAME:
        raise ValueError(
            f"the name of the search is not a text of at most {MAX_NAME} characters"
        )
    if not isinstance(identity["settings"], dict):
        raise ValueError("the settings are not an object")
    if not plain(identity["seed"], int):
        raise ValueError("the seed is not a whole number")
    if chunk_size is not None and not (plain(chunk_size, int) and chunk_size > 0):
        raise ValueError("chunk_size is not a number of members")
    changes = manifest["changes"]
    if not isinstance(changes, list) or not all(isinstance(x, str) for x in changes):
        raise ValueError("the changes are not a list of texts")
    if len(changes) > MAX_CHANGES or any(len(x) > MAX_CHANGE for x in changes):
        raise ValueError(
            f"more than {MAX_CHANGES:,} changes, or one of more than {MAX_CHANGE:,} "
            "characters"
        )
    for name in ("sources", "versions", "jax_settings", "run"):
        if not isinstance(manifest[name], dict):
            raise ValueError(f"{name} is not an object")
    schema = manifest["schema"]
    if not plain(schema, int):
        raise ValueError("the schema is not a whole number")
    if schema > SCHEMA:
        raise ValueError(
            f"schema {schema} is newer than this metaevo's {SCHEMA}; update metaevo"
        )


def identity(
    name: str, config: RunConfig, settings: Mapping[str, Any]
) -> dict[str, Any]:
    plain = json.loads(json.dumps(settings, default=str))
    return {"search": name, "seed": config.seed, "settings": plain}


def as_before(settings: Any) -> Any:
    """Leave out settings that earlier versions did not have, where they change nothing.

    >>> as_before({"inner": {"torso": "mlp", "num_envs": 4}, "meta": {"torso": "cnn"}})
    {'inner': {'num_envs': 4}, 'meta': {'torso': 'cnn'}}
    """
    if isinstance(settings, Mapping):
        return {
            key: as_before(x)
            for key, x in settings.items()
            if not any(x == y for y in NEW_SETTINGS.get(key, ()))
        }
    if isinstance(settings, list | tuple):
        return [as_before(x) for x in settings]
    return settings


def published(data: Any) -> Any:
    """Return plain data of a manifest without the folders of this machine.

    An absolute path becomes its last name, and `changes` lose their `run.*`.

    >>> published({"changes": ["run.directory=/home/me/x", "file=/home/me/a.npz"]})
    {'changes': ['file=.../a.npz']}
    """
    if isinstance(data, Mapping):
        found = {folders.without(key): published(x) for key, x in data.items()}
        if isinstance(changes := found.get("changes"), list):
            found["changes"] = [x for x in changes if not str(x).startswith("run.")]
        return found
    if isinstance(data, list | tuple):
        return [published(x) for x in data]
    return folders.without(data)


MOST_TOLD, LONGEST_TOLD = 6, 120  # differences, and characters of one


def told(old: Mapping, new: Mapping) -> list[str]:
    """Return what a person changed between two identities, short enough to read.

    Of another search this is its name. Else it is the keys that were given; what
    follows from them in the search that is made counts where no key differs.

    >>> sigma = {"sigma": 0.5, "search": {"strategy": {"sigma": 0.5}}}
    >>> old = {"search": "a", "seed": 0, "settings": sigma}
    >>> told(old, old | {"settings": {"sigma": 1, "search": {}}})
    ['sigma: 0.5 -> 1']
    >>> told(old, old | {"search": "b", "settings": {}})
    ['search: a -> b']
    """
    if old["search"] != new["search"]:
        return [printable(f"search: {old['search']} -> {new['search']}")]
    found = [printable(x) for x in differences(old, new)]
    given = [x for x in found if not x.startswith(("search.", "search: "))] or found
    cut = [x if len(x) <= LONGEST_TOLD else x[:LONGEST_TOLD] + "..." for x in given]
    more = [f"and {len(cut) - MOST_TOLD} more"] if len(cut) > MOST_TOLD else []
    return [*cut[:MOST_TOLD], *more]


def differences(old: Mapping, new: Mapping, prefix: str = "") -> list[str]:
    """`key: old -> new` for each key that differs, `num_generations` aside.

    A setting that an earlier version did not have stands with the value that means what
    that version did.

    >>> differences({"lr_factor": 2.0, "sigma": 1}, {"lr_factor": 1.0, "sigma": 1})
    ['lr_factor: 2.0 -> 1.0']
    >>> differences({}, {"num_critics": 2}), differences({}, {"num_critics": 3})
    ([], ['num_critics: 2 -> 3'])
    """
    found = []
    for key in sorted(old.keys() | new.keys()):
        implied = NEW_SETTINGS.get(key, (None,))[0]
        a, b = old.get(key, implied), new.get(key, implied)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif as_before({key: a}) != as_before({key: b}) and key != MAY_CHANGE:
            found.append(f"{prefix}{key}: {a} -> {b}".removeprefix("settings."))
    return found
