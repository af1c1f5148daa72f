"""The lists of tasks: what is in them, and that no search touches the second."""

import importlib
import inspect
import pkgutil

import searches
from metaevo import envs
from metaevo.envs.suites import TRAINING, UNTOUCHED
from searches import dqn_td_loss_for_many

NAMES = [x.name for x in pkgutil.iter_modules(searches.__path__) if x.name[0] != "_"]


def test_there_are_ten_and_six_and_none_is_in_both():
    assert len(set(TRAINING)) == len(TRAINING) == 10
    assert len(set(UNTOUCHED)) == len(UNTOUCHED) == 6
    # Nor is one a variant of the other, as sparse/gymnax/CartPole-v1 of CartPole.
    assert not {x.rsplit("/", 1)[-1] for x in TRAINING} & {
        x.rsplit("/", 1)[-1] for x in UNTOUCHED
    }


def test_each_is_an_environment_with_discrete_actions():
    for name in (*TRAINING, *UNTOUCHED):
        assert isinstance(envs.make(name).action, envs.Discrete), name


def touched(search, tasks):
    """Those of `tasks` that the defaults of a search name."""
    parameters = inspect.signature(search).parameters.values()
    told = str([x.default for x in parameters])
    return [task for task in tasks if task in told]


def test_no_search_evolves_on_what_others_are_judged_on():
    for name in NAMES:
        search = importlib.import_module(f"searches.{name}").search
        assert not touched(search, UNTOUCHED), name


def test_a_search_that_touched_one_would_be_found():
    found = touched(dqn_td_loss_for_many.search, TRAINING)
    assert found == ["gymnax/CartPole-v1", "gymnax/Acrobot-v1"]
