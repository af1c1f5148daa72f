"""Wrong inputs, as people type them: one line that names the remedy, and soon."""

import importlib.util
import os
import resource
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import messages
import optax
import pytest

import metaevo
from inner_loops import a2c, apex, dqn, ppo
from metaevo import envs, fitness, losses, slots, spaces
from metaevo.cli import config, program
from metaevo.engine import checks, elements
from metaevo.errors import ConfigError
from searches import ppo_value_loss
from strategies.open_es import open_es

SECTIONS = messages.sections(messages.FILE.read_text())


@pytest.mark.parametrize("heading", SECTIONS)
def test_messages_are_those_that_are_written_down(heading):
    """`python tests/helpers/golden.py` writes them; read what the diff shows."""
    shown = messages.answered(SECTIONS[heading])
    assert shown == SECTIONS[heading]
    lines = shown.splitlines()[2:]
    asked, printed = lines[::2], lines[1::2]
    assert asked == messages.inputs(shown)  # one line each
    for line, said in zip(asked, printed, strict=True):
        error = "error: " if line.startswith("$") else ""
        assert said.startswith((f"[2] {error}", f"[4] {error}"))


UNFIT = (
    "run td3_cem_rl run.evaluator=ray",
    "run ppo_value_loss run.stop=rturn>=1",
    "run ppo_value_loss run.start_from=nowhere",
    "run ppo_value_loss run.devices=99",
    "run ppo_value_loss run.held_out_tasks=gymnax/CartPole-v1",
    "run ppo_value_loss sigma=-1",
    "run ppo_value_loss inner.total_timesteps=100",
    "train ppo run.seeds=2",
    "train ppo meta.gamma=1.5",
)


def test_dry_run_and_cfg_refuse_what_the_run_refuses():
    with messages.folder():
        for line in UNFIT:
            (refused,) = messages.answer(f"$ metaevo {line}")
            assert refused.startswith("[2] error: ")
            for flag in ("--dry-run", "--cfg"):
                assert messages.answer(f"$ metaevo {line} {flag}") == [refused]
        assert messages.answer(f"$ metaevo {line} --cfg-diff") == [refused]


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("run ppo_value_loss popultion_size=3", 3),
        ("train ppo run.stop=retrun>=475", 12),
    ],
)
def test_a_wrong_command_line_ends_soon(line, seconds, tmp_path):
    """CPU seconds of a whole process, which leaves nothing behind."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "metaevo", *line.split()]
    environment = {**os.environ, "PYTHONPATH": str(messages.ROOT)}
    out = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert out.returncode == 2
    assert out.stderr.startswith("error: ")
    assert len(out.stderr.splitlines()) == 1
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used <= seconds
    assert not any(tmp_path.iterdir())


def test_a_package_file_that_hides_the_installed_searches_is_named(
    tmp_path, monkeypatch
):
    file = tmp_path / "searches" / "__init__.py"
    file.parent.mkdir()
    file.touch()
    spec = importlib.util.spec_from_file_location("searches", file)
    monkeypatch.setitem(sys.modules, "searches", importlib.util.module_from_spec(spec))
    code, shown = messages.command("run ppo_value_loss")
    assert code == 2
    remedy = f"remove it, or rename {file.parent}"
    assert f"{file} hides those that are installed: {remedy}" in shown


ACCEPTED = {
    "inner.total_timesteps=1e6": 1_000_000,
    "inner.total_timesteps=65536.0": 65_536,
    "inner.num_steps=1_000": 1000,
    "population_size=1E2": 100,
    "run.seed=4294967295": (1 << 32) - 1,
    "sigma=3": 3.0,
    "sigma=1_0.5": 10.5,
    "meta.gamma=1": 1.0,
    "inner.features=64,32": (64, 32),
    "inner.features=(64, 32)": (64, 32),
    "inner.features={64,32}": (64, 32),
    "inner.features=64": (64,),
    "inner.features=[]": (),
    "inner.anneal_lr=off": False,
    "inner.anneal_lr=True": True,
    "run.tensorboard=1": True,
    "run.directory=None": None,
    "run.devices=None": None,
    "run.devices= 2 ": 2,
    "run.held_out_tasks=a/b,c/d": ("a/b", "c/d"),
    "run.held_out_tasks=['a/b', \"c/d\"]": ("a/b", "c/d"),
    "meta.advantage=null": None,
    "start=convex": "convex",
}


def test_values_may_be_typed_as_people_type_them():
    for argument, value in ACCEPTED.items():
        found = config.parse(ppo_value_loss.search, [argument])
        for part in argument.partition("=")[0].split("."):
            found = found[part] if isinstance(found, dict) else getattr(found, part)
        assert (found, type(found)) == (value, type(value)), argument


def test_a_setting_that_wandb_adds_to_a_requeued_run_is_ignored(capsys):
    argv = ["num_generations=3", "_wandb={'sweep': {}}", "--cfg-diff"]
    program.run(ppo_value_loss.search, argv, lambda: False)
    assert capsys.readouterr().out == "num_generations=3\n"


def test_a_function_that_returns_no_search_is_refused():
    with pytest.raises(ConfigError, match=r"expected a metaevo\.Search.*got 3"):
        checks.check(config.call(lambda num_generations=3: num_generations, {}))


def test_a_function_of_another_kind_is_refused_in_a_space():
    loop = ppo.make(envs.make("gymnax/CartPole-v1"))
    space = spaces.replace(value_loss=losses.td_network())
    strategy = open_es(space, 4, 0.1, optax.adam(0.1))
    search = metaevo.Search(loop, space, strategy, 1, fitness.area_under_curve)
    with pytest.raises(ConfigError, match=r"meta\.value_loss: it is for td_loss"):
        checks.check(search)


def with_value_loss(loss):
    return ppo.make(envs.make("gymnax/CartPole-v1"), meta=ppo.Meta(value_loss=loss))


def test_a_loss_of_other_values_than_one_for_each_element_is_refused():
    for loss, message in (
        (lambda v, t, old, context: ((v - t) ** 2).mean(), "gives one number for a w"),
        (lambda v, t, old, context: (v[:, None] - t) ** 2, r"gives \[3, 3\] for"),
    ):
        with pytest.raises(ConfigError, match=f"value_loss=<lambda>: it {message}"):
            metaevo.train(with_value_loss(loss), 1)


def test_losses_of_one_value_for_each_element_are_taken():
    for loss in (
        lambda v, t, old, context: 0.0,
        lambda v, t, old, context: jnp.zeros(()),
        lambda v, t, old, context: jnp.float32(0.1) * context.stats["any"],
        lambda v, t, old, context: context.stats["any"] * (v - t) ** 2,
        lambda v, t, old, context: (v - t) ** 2 / context.return_std,
        lambda v, t, old, context: 1 / 0,  # is said where it is used
    ):
        elements.check(with_value_loss(loss).meta)


@pytest.mark.parametrize(
    ("slot", "values", "expected"),
    [
        ("reward", lambda o, a, r, n, t, c: jnp.stack([r, r]), r"\[2\] for one transi"),
        ("reward", lambda o, a, r, n, t, c: o * r, r"\[4\] for one transition"),
        ("exploration", lambda q, e, c: q.argmax(-1), r"gives \[3\] for inputs of"),
        ("exploration", lambda q, e, c: q[..., :1], r"gives \[3, 1\] for inputs"),
        ("exploration", lambda q, e, c: q, r"as a probability; expected 0 or more"),
        ("exploration", lambda q, e, c: q / 0, r"gives nan|inf as a probability"),
        ("exploration", lambda q, e, c: q * 0 + 1, "sum to 4; expected 1"),
        ("td_loss", lambda e, q, t, c: None, "it returns None; expected one for each"),
        ("td_loss", lambda e, q, t, c: (e, q), "it returns a tuple; expected one"),
    ],
)
def test_a_function_that_gives_what_its_slot_cannot_take_is_refused(
    slot, values, expected
):
    with pytest.raises(ConfigError, match=f"meta.{slot}=<lambda>: .*({expected})"):
        elements.check(dqn.Meta(**{slot: slots.function(values)}))


def test_rules_of_exploration_and_rewards_of_the_right_kind_are_taken():
    for meta in (
        dqn.Meta(exploration=lambda q, e, c: jax.nn.softmax(q / e)),
        dqn.Meta(exploration=lambda q, e, c: 1 / 0),  # is said where it is used
        dqn.Meta(reward=lambda o, a, r, n, t, c: r + 0.1 * o.sum() * a),
        dqn.Meta(reward=lambda o, a, r, n, t, c: o[0, 0] + r),
        dqn.Meta(exploration=lambda q, e, c: jnp.ones(q.shape[-1]) / q.shape[-1]),
        a2c.Meta(advantage=lambda r, v, n, x, t, d, c: 1.0),
        apex.Meta(priority=lambda e, age, visits, r, t, c: jnp.abs(e) / (1 + age)),
        Other(exploration=lambda q, e, c: q / e),
    ):
        elements.check(slots.checked(meta))


class Other(NamedTuple):
    """Slots of an algorithm that has logits where others have probabilities."""

    exploration: slots.Slot = slots.function(lambda q, epsilon, context: q)


def test_functions_are_checked_on_what_the_environment_gives():
    env = envs.make("gymnax/CartPole-v1")
    for meta in (
        dqn.Meta(exploration=lambda q, e, c: e / 2 + (1 - e) * jax.nn.one_hot(0, 2)),
        dqn.Meta(
            exploration=lambda q, e, c: e / 2 + (1 - e) * (q == q.max(-1)[:, None])
        ),
        dqn.Meta(reward=lambda o, a, r, n, t, c: r + jnp.eye(4)[a] @ o),
    ):
        elements.check(slots.checked(meta), env)
    for meta in (
        dqn.Meta(exploration=lambda q, e, c: jax.nn.one_hot(q.argmax(-1), 3)),
        dqn.Meta(reward=lambda o, a, r, n, t, c: r + o[:2]),
        apex.Meta(priority=lambda e, age, visits, r, t, c: 1.0),
    ):
        with pytest.raises(ConfigError, match=r"gives (\[3, 3\]|\[2\]|one number)"):
            elements.check(slots.checked(meta), env)


def test_a_learning_rate_may_be_0_at_first():
    space = spaces.replace(value_loss=losses.residual_network())
    loop = ppo.make(envs.make("gymnax/CartPole-v1"))
    for rate in (0.0, optax.linear_schedule(0.0, 0.1, 10)):
        strategy = open_es(space, 4, 0.1, optax.adamw(rate))
        search = metaevo.Search(loop, space, strategy, 1, fitness.area_under_curve)
        checks.check(search)
