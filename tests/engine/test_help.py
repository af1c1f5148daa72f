"""The help screen of searches and inner loops."""

import collections
import importlib
import inspect
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, NamedTuple

import numpy as np
import pytest

from inner_loops import ppo
from metaevo.cli import config, docstrings, help, listing, strategies, train
from metaevo.config import RunConfig

ROOT = Path(__file__).parents[2]


class Meta(NamedTuple):
    lr: float = 1e-3
    steps: int = 3
    clip: float | None = None
    function: object = lambda x: x
    array: object = np.zeros(())


def search(
    size: int = 4,
    sigma: float = 1.0,
    kind: Literal["a", "b"] = "a",
    maybe: int | None = None,
    inner: ppo.Config = ppo.Config(1000, features=(8, 8)),
    meta: Meta = Meta(lr=1e-2),
):
    """Search.

    Args:
        size (int): of it; in meters. Another
            sentence.
        sigma: of its own.
    """


def shipped():
    for path in sorted(ROOT.glob("searches/[a-z]*.py")):
        module = importlib.import_module(f"searches.{path.stem}")
        yield strategies.in_search(module.search)
    for path in sorted(ROOT.glob("inner_loops/[a-z]*.py")):
        make = getattr(
            importlib.import_module(f"inner_loops.{path.stem}"), "make", None
        )
        if make and path.stem != "partner":  # which is around another loop
            yield train.as_search(make)


def texts(search, command="python mine.py"):
    """The help, its lines that hold keys, as key=value, and the joined words."""
    text = help.help_text(search, command)
    names = [key.name for g in help.grouped(search) for key in (*g.keys, *g.slots)]
    starts = tuple(f"  {name}=" for name in names)
    keys = [line.split()[0] for line in text.splitlines() if line.startswith(starts)]
    assert len(keys) == len(names)
    return text, keys, " ".join(text.split())


def test_every_key_of_what_is_shipped_is_described(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    without, wide, again = [], [], []
    for search in shipped():
        text, _, words = texts(search)
        groups = list(help.grouped(search))
        every = [key for group in groups for key in (*group.keys, *group.slots)]
        name = search.__module__
        without += [f"{name}: {key.name}" for key in every if not key.description]
        # Lines of a module's docstring that have a layout stay as they are.
        doc = inspect.getmodule(search).__doc__
        lines = [x for x in text.splitlines() if x not in doc]
        wide += [f"{name}: {x}" for x in lines if len(x) >= 80]
        for parameter in inspect.signature(search).parameters.values():
            hint = typing.get_type_hints(search).get(parameter.name)
            if typing.get_origin(hint) is Literal:
                assert f"(one of {', '.join(typing.get_args(hint))})" in words
        told = collections.Counter(key.description for key in every)
        again += [f"{name}: {x.name}" for x in every if told[x.description] > 1]
    assert without == []
    assert wide == []
    assert again == []


def test_no_two_keys_of_a_strategy_share_a_text():
    """Nor one with a key of the search."""
    search = importlib.import_module("searches.ppo_pbt").search
    # One over another strategy is no value of the key `strategy`.
    for name in listing.modules("strategies").keys() - {"self_play"}:
        keyed = strategies.in_search(search, {"strategy": name})
        every = [
            x.description for g in help.grouped(keyed) for x in (*g.keys, *g.slots)
        ]
        again = {x for x, n in collections.Counter(every).items() if n > 1}
        assert not again, name


@pytest.mark.parametrize("name", ["ppo_drift", "dqn_td_loss"])
def test_every_line_is_an_argument_as_one_would_type_it(name):
    search = importlib.import_module(f"searches.{name}").search
    _, keys, _ = texts(search)
    given = [x for x in keys if not x.endswith("=...")]
    assert len(given) >= len(keys) - 1
    parsed = config.parse(search, given)
    functions = [x for x in given if x.startswith("meta.") and ":" in x]
    assert len(functions) >= 3
    assert config.changes(search, parsed) == functions
    # The functions named are the defaults.
    arguments = {key: x for key, x in parsed.items() if key == "meta"}
    assert config.call(lambda meta: meta, arguments) == config.defaults(search)["meta"]


def test_help_names_each_key_with_default_type_and_choices():
    text, keys, words = texts(search)
    assert text.startswith("usage: python mine.py [KEY=VALUE ...]\n\nThe help screen")
    assert keys[:5] == [
        *("size=4", "sigma=1.0", "kind=a", "maybe=null"),
        "inner.total_timesteps=1000",
    ]
    fields = len(ppo.Config.__dataclass_fields__) + len(RunConfig.__dataclass_fields__)
    assert len(keys) == 4 + fields + 5
    own = "size=4 of it; in meters (integer) sigma=1.0 of its own (number) kind=a (one"
    assert own in words
    assert "maybe=null (an integer or null)" in words
    hidden = "units of each hidden layer of policy and critic"
    assert f"inner.features=[8,8] {hidden} (a list of integers)" in words
    assert "inner.activation=tanh function of these layers (one of celu, elu" in words
    assert "meta.ent_coef=0.01 weight of the entropy bonus (number)" in "".join(
        texts(train.as_search(ppo.make))[2]
    )
    assert "(one of mlp, cnn, nature)" in words
    assert "(one of normal, tanh_normal)" in words
    assert "meta.lr=0.01 (number) meta.steps=3 (number) meta.SLOT=PATH" in words
    assert "meta.clip=null (a number, a function or null) meta.function=... " in words
    assert "meta.array=... run.*" in words
    assert "\nrun.*  Options of a run" in text
    last = text.splitlines()[-1]
    given = last.removeprefix("example: python mine.py ").split()
    assert config.parse(search, given)["inner"].total_timesteps == 2000


def test_a_search_without_docstrings_has_a_help(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "without_docs.py").write_text(
        "import dataclasses\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Config:\n"
        "    size: int = 3\n"
        "    names: tuple[str, ...] = ('a',)\n"
        "def search(width=3, text='', flag: bool = False, inner: Config = Config()):\n"
        "    return width\n"
    )
    made = importlib.import_module("without_docs").search
    text, keys, words = texts(made)
    assert text.startswith(
        "usage: python mine.py [KEY=VALUE ...]\n\nSearch\n  width=3\n"
    )
    assert "\ninner.*\n  inner.size=3 " in text
    assert "inner.* inner.size=3 (integer) inner.names=[a]" in words
    assert keys[:4] == ["width=3", "text=", "flag=false", "inner.size=3"]
    assert words.endswith("example: python mine.py run.seed=1")


def test_keys_that_searches_share_have_one_description():
    def shares(sigma: float = 1.0, population_size: int = 4):
        pass

    (own, _) = help.grouped(shares)
    assert [key.description for key in own.keys] == [
        help.COMMON["sigma"],
        help.COMMON["population_size"],
    ]


def test_a_docstring_may_describe_several_names():
    class Documented:
        """Documented.

        Attributes:
            first, second: `a: b`, of both (et al. 2022). Not
                this.

                third: nor this.
            fourth:
                on a line of its own: here.

        Raises:
            ConfigError: no name.
        """

    found = docstrings.descriptions(Documented)
    assert list(found) == ["first", "second", "fourth"]
    assert docstrings.sentence(found["first"]) == "`a: b`, of both (et al. 2022)"
    assert found["fourth"] == "on a line of its own: here."
    assert docstrings.prose(Documented) == "Documented."

    class Derived(Documented):
        pass

    assert docstrings.descriptions(Derived) == found


@pytest.mark.parametrize(
    ("module", "argv", "words"),
    [
        (
            "metaevo.__main__",
            ["metaevo/__main__.py", "run", "searches/pbt_toy.py", "--help"],
            "python -m metaevo run searches/pbt_toy.py",
        ),
        (None, ["/bin/metaevo", "train", "ppo", "--help"], "metaevo train ppo"),
        (None, ["some/mine.py", "--help"], "python some/mine.py"),
    ],
)
def test_usage_names_the_words_that_were_typed(module, argv, words, monkeypatch):
    monkeypatch.setattr(sys, "argv", argv)
    spec = SimpleNamespace(name=module) if module else None
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    assert help.started_as() == words
