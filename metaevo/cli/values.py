"""Keys and values of the command line: as people type them, and what was expected."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

NOTHING = ("null", "None", "none", "Null", "NULL")
_NUMBER = re.compile(r"[+-]?[\d_]*\.?[\d_]*([eE][+-]?\d+)?")
_EXACT = 1 << 53  # integers that a float holds
_THOUSANDS = re.compile(
    r"\d{1,3}(?:,\d{3})+|\d{1,3}(?:\.\d{3}){2,}|\d{1,3}(?:[ ']\d{3})+"
)
_UNITS = {"": 1.0, "%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def typed(kind: Any, text: str) -> str:
    """Return a value as YAML reads it, of one that a person typed.

    Args:
        kind: Type of the key.
        text: Value on the command line.

    >>> typed(int, "1e6"), typed(int, "1.5"), typed(int | None, "None")
    ('1000000', '1.5', 'null')
    >>> typed(tuple[int, ...], "64,64"), typed(tuple[int, ...], "(1e2,)")
    ('[64,64]', '[100]')
    """
    text = text.strip()
    if text in NOTHING and _may_be_none(kind):
        return "null"
    base = _base(kind)
    if base is int:
        return _integer(text)
    if base is tuple and text:
        inside = text
        for pair in ("[]", "()", "{}"):
            if text.startswith(pair[0]) and text.endswith(pair[1]):
                inside = text[1:-1]
        if inside == text and text[:1] in ("[", "(", "{"):
            return text
        element = element_of(kind)
        parts = [typed(element, part) for part in inside.split(",")]
        return f"[{','.join(part for part in parts if part)}]"
    return text


def expected(kind: Any) -> str:
    """Return what a key takes, in words.

    >>> expected(int), expected(float | None), expected(Literal["a", "b"])
    ('an integer', 'a number or null', 'one of a, b')
    >>> expected(tuple[int, ...])
    'a list of integers, such as [64,64]'
    >>> expected(tuple[float, ...])
    'a list of numbers, such as [0.5,1]'
    """
    base = _base(kind)
    if typing.get_origin(base) is Literal:
        words = f"one of {', '.join(map(str, typing.get_args(base)))}"
    elif base is tuple:
        lists = {int: "integers, such as [64,64]", float: "numbers, such as [0.5,1]"}
        words = f"a list of {lists.get(element_of(kind), 'texts, [A,B]')}"
    else:
        named = {
            int: "an integer",
            float: "a number",
            bool: "true or false",
            str: "a text",
        }
        words = named.get(base, "another value")
    return f"{words} or null" if _may_be_none(kind) else words


def has_choices(kind: Any) -> bool:
    """Return True if a key takes one of several names.

    >>> has_choices(Literal["a", "b"] | None), has_choices(str)
    (True, False)
    """
    return typing.get_origin(_base(kind)) is Literal


def meant(key: str, kind: Any, text: str) -> str:
    """Return the number that a text in another notation may mean; empty if none.

    >>> meant("inner.total_timesteps", int, "1,000,000"), meant("size", int, "10k")
    ('1000000', '10000')
    >>> meant("sigma", float, "0,5"), meant("run.max_seconds", float | None, "1h")
    ('0.5', '3600')
    >>> meant("size", int, "1.5"), meant("size", int, "many")
    ('', '')
    """
    base, text = _base(kind), text.strip().lstrip("=").strip()
    if base not in (int, float):
        return ""
    number = None
    if _THOUSANDS.fullmatch(text):
        number = float(re.sub(r"\D", "", text))
    elif base is float and re.fullmatch(r"[+-]?\d+,\d+", text):
        number = float(text.replace(",", "."))
    elif power := re.fullmatch(r"(\d{1,3})(?:\*\*|\^)(\d{1,2})", text):
        number = float(int(power[1]) ** int(power[2]))
    elif ratio := re.fullmatch(r"(\d{1,15})/(\d{1,15})", text):
        number = float(ratio[1]) / (float(ratio[2]) or float("nan"))
    elif found := re.fullmatch(
        r"([+-]?\d+\.?\d*(?:e[+-]?\d+)?) ?(%|[a-z]*)", text, re.I
    ):
        units = _SECONDS if "seconds" in key or "watchdog" in key else _UNITS
        number = float(found[1]) * units.get(found[2].lower(), float("nan"))
    if number is None or not abs(number) <= _EXACT:
        return ""
    if number.is_integer():
        return str(int(number))
    return "" if base is int else f"{number:.12g}"


def element_of(kind: Any) -> Any:
    """Return `int` for `tuple[int, ...]`.

    >>> element_of(tuple[int, ...])
    <class 'int'>
    """
    arguments = [a for a in typing.get_args(kind) if a is not Ellipsis]
    return arguments[0] if arguments else Any


def is_text(kind: Any) -> bool:
    """Return True if the values of a key are texts, which are taken as they are.

    >>> is_text(str | None), is_text(int)
    (True, False)
    """
    return _base(kind) is str


def near(key: str, keys: Iterable[str]) -> list[str]:
    """Return the keys that a wrong one may have been meant for, best first, at most 3.

    A key of the same last name is meant before one that is spelt alike, so `seed` is
    `run.seed` and not `num_seeds`. Initials count as a name: `lr` is a learning rate.

    >>> near("seed", ["num_seeds", "run.seed", "sigma"])
    ['run.seed']
    >>> near("lr", ["learning_rate", "meta.lr", "sigma"])
    ['meta.lr', 'learning_rate']
    >>> near("--Num-Seeds", ["num_seeds", "run.seeds"])
    ['num_seeds']
    """
    keys = list(keys)
    plain = key.lstrip("-").strip().lower().replace("-", "_")
    name = _last(plain)
    if plain in keys:
        return [plain]
    same = [k for k in keys if _last(k) == name]
    same += [k for k in keys if _initials(_last(k)) == name and "_" in _last(k)]
    if not same:
        group = plain.rpartition(".")[0]
        close = difflib.get_close_matches(plain, keys, 3)
        names = {_last(k): k for k in reversed(keys)}
        inside = {_last(k): k for k in keys if k.rpartition(".")[0] == group}
        close += [inside[n] for n in difflib.get_close_matches(name, inside, 1)]
        close += [names[n] for n in difflib.get_close_matches(name, names, 1)]
        close += [k for k in keys if len(_last(k)) > 2 and name.startswith(_last(k))]
        # The closest of all comes first, whichever way it was found.
        same = sorted(
            dict.fromkeys(close),
            key=lambda k: -max(_alike(plain, k), _alike(name, _last(k))),
        )[:1]
    return same[:3]


def did_you_mean(words: Iterable[str]) -> str:
    """Return a hint with a leading space; empty if there are no words.

    >>> did_you_mean(["a"]), did_you_mean(["a", "b"])
    (" Did you mean 'a'?", " Did you mean 'a' or 'b'?")
    """
    quoted = [repr(word) for word in words]
    return f" Did you mean {' or '.join(quoted)}?" if quoted else ""


def unknown(key: str, keys: Iterable[str], where: str = "--help lists the keys") -> str:
    """Return the message about a key that does not exist.

    Args:
        key: The key.
        keys: Those that exist.
        where: The place where they are listed.
    """
    return f"unknown key {key!r}.{did_you_mean(near(key, keys))} {where}"


def refused(key: str, value: str, kinds: Mapping[str, Any]) -> str:
    """Return the message about a value that is not of its key's type."""
    kind = kinds[key]
    hint = ""
    others = re.findall(r"[,;]\s*([\w.]+)=", value)
    if any(other in kinds for other in others):
        hint = "; give each key=value as an argument of its own"
    elif not value.strip():
        hint = "; key=value has no spaces"
    elif number := meant(key, kind, value):
        hint = "." + did_you_mean([f"{key}={number}"])
    words = expected(kind)
    if _base(kind) is float and value.strip().lower().lstrip("+-.") == "nan":
        words = words.replace("a number", "a finite number")
    return f"{key}={value}: expected {words}{hint}"


def no_assignment(
    arg: str, kinds: Mapping[str, Any], following: Sequence[str] = ()
) -> str:
    """Return the message about an argument that is not `key=value`.

    Args:
        arg: The argument.
        kinds: Type of each key.
        following: The arguments after it, of which one may be its value.

    >>> no_assignment("--seed", {"run.seed": int}, ["3"]).partition("; ")[0]
    "'--seed': expected key=value without spaces, here run.seed=3"
    """
    name, *given = re.split(r"[=:]", arg, maxsplit=1)
    if not any(given):
        given = [x for x in (word.lstrip("=") for word in following[:2]) if x][:1]
        given = [] if given and ("=" in given[0] or given[0][:2] == "--") else given
    close = near(name, kinds) if len(name.lstrip("-")) > 1 else []
    hint = f", here {close[0]}={given[0] if given else 'VALUE'}" if close else ""
    return f"{arg!r}: expected key=value without spaces{hint}; --help lists the keys"


def _base(kind: Any) -> Any:
    """Return the type without `| None`, and `tuple` for any tuple."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        rest = [a for a in typing.get_args(kind) if a is not type(None)]
        kind = rest[0] if len(rest) == 1 else kind
    return tuple if typing.get_origin(kind) is tuple else kind


def _may_be_none(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _integer(text: str) -> str:
    """Return `1000000` for `1e6`; a text that is no whole number stays as it is."""
    if text and not text.strip("+-").isdigit() and _NUMBER.fullmatch(text):
        try:
            number = float(text)
        except ValueError:
            return text
        if number.is_integer() and abs(number) <= _EXACT:
            return str(int(number))
    return text


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _initials(name: str) -> str:
    return "".join(word[:1] for word in name.split("_"))


def _alike(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()
