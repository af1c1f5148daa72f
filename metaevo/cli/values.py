"""Keys and values of the command line: how they are read, and what was expected."""

from __future__ import annotations

import contextlib
import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

NOTHING = ("null", "None", "none", "Null", "NULL")
_EXACT = 1 << 53  # integers that a float holds
_CUTOFF = 0.6  # likeness of two words, as in `difflib`


def read(kind: Any, text: str) -> Any:
    """Return the value of a key, of the text that a person typed.

    Args:
        kind: Type of the key. A text is taken as it is.
        text: Value on the command line.

    Raises:
        KeyError, ValueError: The text is no value of this type.

    >>> read(int, "1e6"), read(float, "3"), read(int | None, "None"), read(bool, "on")
    (1000000, 3.0, None, True)
    >>> read(tuple[int, ...], "64,64"), read(tuple[int, ...], "(1e2,)")
    ((64, 64), (100,))
    >>> read(str | None, "")
    Traceback (most recent call last):
        ...
    ValueError
    >>> read(Any, "0.5"), read(Any, "metaevo.losses:square")
    (0.5, 'metaevo.losses:square')
    """
    base, bare = _base(kind), text.strip()
    if base is str and not bare and _may_be_none(kind):
        raise ValueError  # such as of a variable of the shell that is not set
    if bare in NOTHING and (base is Any or _may_be_none(kind)):
        return None
    if typing.get_origin(base) is Literal:
        return {str(choice): choice for choice in typing.get_args(base)}[bare]
    if base is tuple:
        return _list(_element_of(kind), bare)
    if base in (str, Any):
        readers = () if base is str else (_integer, _number, _boolean)
        for reader in readers:
            with contextlib.suppress(KeyError, ValueError):
                return reader(bare)
        return text
    return _READERS[base](bare)


def _integer(text: str) -> int:
    """Return 1000000 for `1e6` too."""
    with contextlib.suppress(ValueError):
        return int(text)
    number = _number(text)
    if not number.is_integer() or abs(number) > _EXACT:
        raise ValueError
    return int(number)


def _number(text: str) -> float:
    from omegaconf import FloatNode

    number = FloatNode().validate_and_convert(text)
    if number != number:
        raise ValueError
    return number


def _boolean(text: str) -> bool:
    from omegaconf import BooleanNode

    return BooleanNode().validate_and_convert(text)


_READERS: Mapping[Any, Callable[[str], Any]] = {
    int: _integer,
    float: _number,
    bool: _boolean,
}


def _list(element: Any, text: str) -> tuple:
    """Return the values between brackets, which may be left out around some."""
    if not text:
        raise ValueError
    if text[0] + text[-1] in ("[]", "()", "{}"):
        text = text[1:-1]
    parts = [part.strip() for part in text.split(",")]
    if not parts[-1]:
        del parts[-1]
    if not all(parts):
        raise ValueError
    if _base(element) is str:
        parts = [part.strip("'\"") for part in parts]
    return tuple(read(element, part) for part in parts)


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
        words = f"a list of {lists.get(_element_of(kind), 'texts, [A,B]')}"
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


def choices(kind: Any) -> list[str]:
    """Return the values of a key that takes one of a few, as they are typed.

    >>> choices(Literal["a", "b"] | None), choices(bool), choices(int)
    (['a', 'b', 'null'], ['true', 'false'], [])
    """
    named = typing.get_args(_base(kind)) if has_choices(kind) else ()
    found = ["true", "false"] if _base(kind) is bool else [str(x) for x in named]
    return [*found, "null"] if found and _may_be_none(kind) else found


def is_list(kind: Any) -> bool:
    """Return True if a key takes a list.

    >>> is_list(tuple[int, ...]), is_list(str)
    (True, False)
    """
    return _base(kind) is tuple


def is_number(kind: Any) -> bool:
    """Return True if the values of a key are floats.

    >>> is_number(float | None), is_number(int)
    (True, False)
    """
    return _base(kind) is float


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
    group, _, name = plain.rpartition(".")
    if plain in keys:
        return [plain]
    same = [k for k in keys if _last(k) == name]
    same += [k for k in keys if _initials(_last(k)) == name and "_" in _last(k)]
    if same:
        return same[:3]

    def likeness(k: str) -> tuple[float, bool]:
        last = _last(k)
        begins = _CUTOFF if len(last) > 2 and name.startswith(last) else 0.0
        alike = max(_alike(plain, k), _alike(name, last), begins)
        return alike, k.rpartition(".")[0] == group

    best = max(keys, key=likeness, default=None)
    return [] if best is None or likeness(best)[0] < _CUTOFF else [best]


def nearest(word: str, words: Iterable[str]) -> str:
    """Return a hint at the word that is spelt most alike; empty if none is.

    >>> nearest("searchs", ["searches", "spaces"])
    " Did you mean 'searches'?"
    """
    return did_you_mean(difflib.get_close_matches(word, words, 1))


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
        if _base(kind) is str:
            hint = "; it is empty, as is a variable of the shell that is not set"
    elif has_choices(kind):
        near = nearest(value.lower(), map(str, typing.get_args(_base(kind))))
        hint = f".{near}" if near else ""
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


def _element_of(kind: Any) -> Any:
    """Return `int` for `tuple[int, ...]`."""
    arguments = [a for a in typing.get_args(kind) if a is not Ellipsis]
    return arguments[0] if arguments else Any


def _may_be_none(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _initials(name: str) -> str:
    return "".join(word[:1] for word in name.split("_"))


def _alike(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()
