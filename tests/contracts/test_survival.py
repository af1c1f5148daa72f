"""No search selects against members whose episodes outlast a generation."""

import dataclasses
import importlib
import inspect

import pytest
from test_searches import NAMES

from metaevo.engine import checks
from metaevo.errors import ConfigError

CONTINUOUS = "probes:fall_or_live"
DISCRETE = "probes:fall_or_live_discrete"
SIZES = {"num_envs": 2, "num_steps": 8, "features": (4,), "batch_size": 8}
SIZES |= {"learning_starts": 16, "num_minibatches": 2, "num_gradient_steps": 2}
SIZES |= {"burn_in": 1, "sequence_length": 2, "period": 2, "num_step_return": 1}
SIZES |= {"message_size": 2, "num_learners": 2, "num_workers": 2, "max_delay": 64}
ENDS = 40  # steps of the longest episode


def tiny(name, steps_per_segment, num_segments):
    """The search on the probe, two environments per member."""
    make = importlib.import_module(f"searches.{name}").search
    known = inspect.signature(make).parameters
    config = type(known["inner"].default)
    env = CONTINUOUS if name.startswith(("td3", "sac", "qtopt", "policy")) else DISCRETE
    frames = 2 * steps_per_segment * num_segments
    fields = {field.name for field in dataclasses.fields(config)}
    if "learning_starts" in fields:
        frames += SIZES["learning_starts"]
    sizes = SIZES | {"total_timesteps": frames, "num_segments": num_segments}
    inner = config(**{k: x for k, x in sizes.items() if k in fields})
    options = {"envs": (env,)} if "envs" in known else {"env": env}
    options |= {"low": (0.0,), "high": (1.0,)} if "low" in known else {}
    return make(**options, population_size=8, inner=inner)


WITHOUT_ENV = {"pbt_toy", "mfos_ipd", "mfos_self_play", "mfos_coin"}
WITHOUT_ENV |= {"cheap_talk_control"}  # the probe has no goals
WITHOUT_ENV |= {"r2d3_demo_ratio"}  # nor a script that demonstrates it


@pytest.mark.parametrize("name", [x for x in NAMES if x not in WITHOUT_ENV])
def test_search_that_would_score_short_episodes_alone_is_refused(name):
    """A generation in which the longest episode cannot end: 32 steps of 40."""
    search = tiny(name, 8, 4)
    lives_on = search.strategy.persistent_agents
    if search.fitness.needs_evaluation or lives_on:
        checks.check(search)
        return
    with pytest.raises(ConfigError, match=r"32 steps.* 40.*inner\.total_timesteps"):
        checks.check(search)
