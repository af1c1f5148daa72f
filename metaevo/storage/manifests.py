"""The data of a run's manifest: which fields it has, and how two runs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from metaevo.config import RunConfig
from metaevo.errors import printable
from metaevo.storage import folders

if TYPE_CHECKING:  # it imports JAX, which commands that read runs need not
    from metaevo.types import Search

SCHEMA = 2
"""Schema of `manifest.json`."""

MAX_NAME = 200  # characters
MAX_CHANGES, MAX_CHANGE = 1000, 20_000  # and characters of one

MAY_CHANGE = "num_generations"  # a larger value extends a run


def sized(search: Search, manifest: Mapping[str, Any]) -> Search:
    """Return a search with the members and the seeds in one vmap of a run of it."""
    seeds = manifest.get("seeds_at_once", search.num_seeds)
    return search._replace(chunk_size=manifest["chunk_size"], seeds_at_once=seeds)


def check(manifest: Any) -> None:
    """Check the fields of a manifest that are used.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: one is not as expected.
    """

    def require(sound, problem):
        if not sound:
            raise ValueError(problem)

    def is_int(x):
        return isinstance(x, int) and not isinstance(x, bool)

    identity = manifest["identity"]
    changes, schema = manifest["changes"], manifest["schema"]
    name = identity["search"]
    require(
        isinstance(name, str) and len(name) <= MAX_NAME,
        f"the name of the search is not a text of at most {MAX_NAME} characters",
    )
    for key in ("settings", "defaults"):
        require(isinstance(identity.get(key, {}), dict), f"the {key} are not an object")
    require(is_int(identity["seed"]), "the seed is not a whole number")
    for key, unit in (("chunk_size", "members"), ("seeds_at_once", "seeds")):
        value = manifest.get(key)
        sound = value is None or (is_int(value) and value > 0)
        require(sound, f"{key} is not a number of {unit}")
    require(
        isinstance(changes, list) and all(isinstance(x, str) for x in changes),
        "the changes are not a list of texts",
    )
    require(
        len(changes) <= MAX_CHANGES and all(len(x) <= MAX_CHANGE for x in changes),
        f"more than {MAX_CHANGES:,} changes, or one of more than {MAX_CHANGE:,} "
        "characters",
    )
    for key in ("sources", "versions", "jax_settings", "run"):
        require(isinstance(manifest[key], dict), f"{key} is not an object")
    require(is_int(schema), "the schema is not a whole number")
    require(
        schema <= SCHEMA,
        f"schema {schema} is newer than this metaevo's {SCHEMA}; update metaevo",
    )


class Settings(NamedTuple):
    """Settings of a run, which distinguish it from other runs.

    Attributes:
        values: all settings as nested plain data.
        defaults: the same tree, of the settings that have a default.
    """

    values: Mapping[str, Any]
    defaults: Mapping[str, Any] = {}


def identity(name: str, config: RunConfig, settings: Settings) -> dict[str, Any]:
    """Return what a manifest holds of the run that it is."""
    values, defaults = (json.loads(json.dumps(x, default=str)) for x in settings)
    found = {"search": name, "seed": config.seed, "settings": values}
    return found | {"defaults": defaults}


def not_default(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from their defaults.

    >>> inner = {"num_envs": 4, "torso": "mlp"}
    >>> not_default(Settings({"inner": inner, "size": 8}, {"inner": {"torso": "mlp"}}))
    {'inner': {'num_envs': 4}, 'size': 8}
    """
    found = {}
    for key, x in settings.values.items():
        if key not in settings.defaults or x != settings.defaults[key]:
            known = _below(key, settings.defaults)
            nested = isinstance(x, Mapping) and known
            found[key] = not_default(Settings(x, known)) if nested else x
    return found


def alike(a: Mapping, b: Mapping) -> bool:
    """Return True if two identities differ in the seed at most."""
    horizons = [x["settings"].get(MAY_CHANGE) for x in (a, b)]
    same = a["search"] == b["search"] and horizons[0] == horizons[1]
    return same and not differences(_settings(a), _settings(b))


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


MAX_DESCRIBED, MAX_LENGTH = 6, 120  # differences, and characters of one


def describe_changes(old: Mapping, new: Mapping) -> list[str]:
    """Return what a person changed between two identities, short enough to read.

    Of another search this is its name. Else it is the keys that were given; what
    follows from them in the search that is made counts where no key differs.

    >>> sigma = {"sigma": 0.5, "search": {"strategy": {"sigma": 0.5}}}
    >>> old = {"search": "a", "seed": 0, "settings": sigma}
    >>> describe_changes(old, old | {"settings": {"sigma": 1, "search": {}}})
    ['sigma: 0.5 -> 1']
    >>> describe_changes(old, old | {"search": "b", "settings": {}})
    ['search: a -> b']
    """
    if old["search"] != new["search"]:
        return [printable(f"search: {old['search']} -> {new['search']}")]
    seeds = Settings({"seed": old["seed"]}), Settings({"seed": new["seed"]})
    found = differences(*seeds) + differences(_settings(old), _settings(new))
    found = [printable(x) for x in found]
    given = [x for x in found if not x.startswith(("search.", "search: "))] or found
    cut = [x[:MAX_LENGTH] + "..." * (len(x) > MAX_LENGTH) for x in given]
    more = [f"and {len(cut) - MAX_DESCRIBED} more"] if len(cut) > MAX_DESCRIBED else []
    return [*cut[:MAX_DESCRIBED], *more]


def _settings(identity: Mapping) -> Settings:
    return Settings(identity["settings"], identity.get("defaults", {}))


def differences(old: Settings, new: Settings, prefix: str = "") -> list[str]:
    """`key: old -> new` for each key that differs, `num_generations` aside.

    A setting that one side does not have stands at the default of the other: a version
    that lacks a setting does what its default says.

    >>> differences(Settings({"sigma": 1}), Settings({"sigma": 2}))
    ['sigma: 1 -> 2']
    >>> three, one = (Settings({"n_step": n}, {"n_step": 1}) for n in (3, 1))
    >>> differences(Settings({}), one), differences(Settings({}), three)
    ([], ['n_step: 1 -> 3'])
    """
    found = []
    for key in sorted(old.values.keys() | new.values.keys()):
        a, b = (_value(key, x, other) for x, other in ((old, new), (new, old)))
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            known = (_below(key, x.defaults) for x in (old, new))
            one, other = map(Settings, (a, b), known)
            found += differences(one, other, f"{prefix}{key}.")
        elif a != b and key != MAY_CHANGE:
            found.append(f"{prefix}{key}: {a} -> {b}")
    return found


def _value(key: str, side: Settings, other: Settings) -> Any:
    """The value of a setting on one side, or the default of the other."""
    if key in side.values:
        return side.values[key]
    default = other.defaults.get(key)
    # A structure that has no default as a whole is not there.
    whole = not isinstance(default, Mapping) or default == other.values[key]
    return default if whole else None


def _below(key: str, defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """The defaults of a setting that is a structure."""
    found = defaults.get(key)
    return found if isinstance(found, Mapping) else {}
