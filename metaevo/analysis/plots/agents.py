"""Portraits of rewards, of exploration, of policies and of messages.

Observations are drawn in units, evenly within ±1 unless noted: an artifact does not
hold the observations of an agent.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import exploration, schedules
from metaevo.analysis.plots import figures
from metaevo.analysis.plots.portraits import (
    OURS,
    STYLES,
    THEIRS,
    Evolved,
    Portrait,
    heading,
    lines,
    table,
)
from metaevo.slots import Context

__all__ = ["free", "graded", "impact", "message", "policy", "potential", "shaper"]

SAMPLES = 512


def _observations(units: np.ndarray) -> np.ndarray:
    """[SAMPLES, components], the same for all."""
    rng = np.random.default_rng(0)
    return (units * rng.uniform(-1, 1, (SAMPLES, len(units)))).astype(np.float32)


def _bars(panel: Any, names: list[str], values: Any, label: str) -> None:
    panel.bar(np.arange(len(names)), values, color=OURS, width=0.7)
    panel.set_xticks(np.arange(len(names)), names)
    if len(names) > 8:
        panel.tick_params(axis="x", rotation=90)
    panel.set(ylabel=label)


# --- rewards --------------------------------------------------------------------------


def potential(evolved: Evolved) -> Portrait:
    """Φ over the two components that move it most, and how much each does."""
    op, reward = evolved.op, evolved.function
    units = np.asarray(op["units"])
    size = len(units)

    @jax.jit
    @jax.vmap
    def phi(obs):
        return jax.value_and_grad(
            # The rest of a step into the end of an episode.
            lambda o: -reward(o, jnp.zeros(()), 0.0, o, jnp.bool(True), Context())
        )(obs)

    _, slope = phi(_observations(units))
    sensitivity = np.abs(np.asarray(slope) * units).mean(0)
    first, second = (*np.argsort(-sensitivity), 0)[:2]
    ticks = np.linspace(-1, 1, 41)
    across, up = np.meshgrid(ticks, ticks if size > 1 else [0.0])
    grid = np.zeros((across.size, size), np.float32)
    grid[:, second] = up.ravel() * units[second]
    grid[:, first] = across.ravel() * units[first]
    height = np.asarray(phi(grid)[0]).reshape(across.shape)

    def draw(*panels):
        panel = panels[0]
        if size == 1:
            lines(panel, ticks, {"evolved": height[0]}, ("start", 0 * ticks))
            panel.set(xlabel="component 0 (units)", ylabel="potential Φ")
        else:
            if np.ptp(height) > 0:
                drawn = panel.contour(across, up, height, 9, colors=OURS)
                panel.clabel(drawn, fmt="%.2g", fontsize=7.5)
            panel.set(
                xlabel=f"component {first} (units)",
                ylabel=f"component {second} (units)",
            )
            panel.set_title("potential Φ, others 0")
        _bars(
            panels[1], [str(i) for i in range(size)], sensitivity, "mean |slope| of Φ"
        )
        panels[1].set_xlabel("component")

    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(
            **{f"component {first}": across, f"component {second} (other)": up},
            potential=height,
        ),
        "An agent is paid for climbing the potential, and pays when it falls. At the "
        "start it is 0 everywhere. Right: how much each component moves it, per unit.",
        2,
    )


def free(evolved: Evolved) -> Portrait:
    """Sensitivity to each input, and the pay beside the environment's reward."""
    op, reward = evolved.op, evolved.function
    units, ((kind, width),) = np.asarray(op["units"]), op["action"].items()
    obs = _observations(units)
    after, rng = obs[::-1], np.random.default_rng(1)
    size, now = len(units), Context(progress=0.5)
    if kind == "num":
        action = rng.integers(0, width, SAMPLES).astype(np.int32)
    else:
        action = rng.uniform(-1, 1, (SAMPLES, width)).astype(np.float32)

    def paid(obs, action, after):
        return reward(obs, action, 0.0, after, jnp.bool(False), now)

    @jax.jit
    @jax.vmap
    def slopes(obs, action, after):
        return jax.grad(paid, (0, 2))(obs, action, after)

    before, then = (np.abs(np.asarray(x) * units).mean(0) for x in
                    slopes(obs, action, after))  # fmt: skip
    names = [f"o{i}" for i in range(size)] + [f"o'{i}" for i in range(size)]
    sensitivity = np.concatenate([before, then])
    # What the choice of an action is worth: spread over actions, at one place.
    added = jax.jit(jax.vmap(paid))
    if kind == "num":
        each = np.stack(
            [
                added(obs, jnp.full(SAMPLES, a, jnp.int32), after)
                for a in range(min(width, 32))
            ]
        )
        names, sensitivity = [*names, "a"], np.append(sensitivity, each.std(0).mean())
    else:
        by_action = jax.jit(jax.vmap(jax.grad(paid, 1)))(obs, action, after)
        names += [f"a{i}" for i in range(width)]
        sensitivity = np.concatenate(
            [sensitivity, np.abs(np.asarray(by_action)).mean(0)]
        )
    own = float(
        reward(obs[0], action[0], 1.0, after[0], jnp.bool(False), now)
        - paid(obs[0], action[0], after[0])
    )
    values = np.sort(np.asarray(added(obs, action, after)))
    share = np.linspace(0, 1, SAMPLES)

    def draw(*panels):
        _bars(panels[0], names, sensitivity, "mean |slope| of the reward")
        panels[0].set_xlabel("input")
        lines(panels[1], share, {"evolved": values}, ("start", 0 * share))
        panels[1].set(xlabel="share of transitions", ylabel="paid in addition")

    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        (["input", "mean slope"], list(zip(names, sensitivity.tolist(), strict=True))),
        "Left: how much each component of the observation before (o), after (o') and "
        "the action (a) moves the reward, per unit. Right: what random transitions "
        "are paid beside the environment's reward, sorted, which itself counts "
        f"{own:.2f} times. In the middle of a lifetime. It may change the optimum.",
        2,
    )


def impact(evolved: Evolved) -> Portrait:
    """β over the lifetime, and the weights of components."""
    op, params = evolved.op, evolved.params
    progress = np.linspace(0, 1, 101, dtype=np.float32)
    at = jax.vmap(lambda t: schedules.basis(t, op["num_knots"], 1))(progress)
    beta = np.asarray(at) @ np.asarray(params["strength"]) * op["scale"]
    weights = np.exp(np.clip(params["log_weights"], -10, 10))

    def draw(*panels):
        lines(panels[0], progress, {"evolved": beta}, ("start", 0 * beta))
        panels[0].set(xlabel="share of the lifetime", ylabel="pay for a change, β")
        _bars(panels[1], [str(i) for i in range(len(weights))], weights, "weight")
        panels[1].axhline(1, color=THEIRS, label="start")
        panels[1].set_xlabel("component of the observation")
        figures.legend_above(panels[1], 1)

    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(progress=progress, beta=beta),
        "What an agent is paid for changing what it observes, in units, beside the "
        "environment's reward; β = 0 hands the task back unchanged.",
        2,
    )


# --- exploration and policies ---------------------------------------------------------


def graded(evolved: Evolved) -> Portrait:
    """The share of steps that explore, and the actions that they try."""
    op, explore, params = evolved.op, evolved.function, evolved.params
    progress = np.linspace(0, 1, 101, dtype=np.float32)
    shares = (0.05, 0.2, 0.5)
    ranks = jnp.linspace(1.0, 0.0, 6)

    def at(q, epsilon, t):
        return explore(q, epsilon, Context(progress=t))

    usual = exploration.epsilon_greedy(ranks, 0.2, Context())
    tried = {
        f"τ = {t}": np.asarray(jax.jit(at)(ranks, 0.2, t)) for t in (0.0, 0.5, 1.0)
    }
    basis = jax.vmap(lambda t: schedules.basis(t, op["num_knots"], 1))(progress)
    moved = np.asarray(basis) @ np.asarray(params["share"])
    odds = {e: e / (e + (1 - e) * np.exp(-moved)) for e in shares}

    def draw(*panels):
        for (epsilon, y), style in zip(odds.items(), STYLES, strict=True):
            panels[0].plot(progress, y, color=OURS, ls=style, label=f"ε = {epsilon}")
            panels[0].axhline(epsilon, color=THEIRS, ls=style, lw=0.8)
        panels[0].set(xlabel="share of the lifetime", ylabel="share that explores, ε'")
        figures.legend_above(panels[0], 3)
        place = np.arange(len(ranks))
        panels[1].plot(place, usual, "o-", color=THEIRS, label="ε-greedy", ms=4)
        for (label, p), style in zip(tried.items(), STYLES, strict=True):
            panels[1].plot(place, p, "o", ls=style, color=OURS, label=label, ms=4)
        panels[1].set(
            xlabel="action, from the best to the worst",
            ylabel="probability at ε = 0.2",
            yscale="log",
        )
        figures.legend_above(panels[1], 2)

    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(progress=progress, **{f"epsilon {e}": y for e, y in odds.items()}),
        "Left: how often it explores where ε-greedy does so with probability ε (thin "
        "lines). Right: what it does then, for six actions whose values are evenly "
        "spaced.",
        2,
    )


def policy(evolved: Evolved) -> Portrait:
    """Change of actions when one component of the observation is another's."""
    op, act = evolved.op, evolved.function
    shape = tuple(op["observation"])
    size = int(np.prod(shape))
    obs = _observations(np.ones(size))
    run = jax.jit(lambda obs: act(obs.reshape(SAMPLES, *shape)))
    usual = np.asarray(run(obs))
    shown = min(size, 64)
    sensitivity = []
    for i in range(shown):
        other = obs.copy()
        other[:, i] = np.roll(obs[:, i], 1)
        now = np.asarray(run(other))
        chooses = "num" in op["action"]
        sensitivity.append(
            (now != usual).mean() if chooses else np.abs(now - usual).mean()
        )
    label = "share of actions that change" if "num" in op["action"] else "mean change"

    def draw(panel):
        _bars(panel, [str(i) for i in range(shown)], sensitivity, label)
        panel.set_xlabel("component of the observation")

    return Portrait(
        evolved.slot,
        "The evolved policy",
        draw,
        table(component=np.arange(shown), change=np.asarray(sensitivity)),
        "How much its actions change when one component of the observation, drawn "
        "within ±1, is replaced by another's.",
        1,
    )


def shaper(evolved: Evolved) -> Portrait:
    """Next policies, where both players have the same probability everywhere."""
    op, play = evolved.op, evolved.function
    size = op["num_situations"]
    named = ("start", "CC", "CD", "DC", "DD") if size == 5 else range(size)
    p = np.linspace(0.01, 0.99, 41)
    logits = np.log(p / (1 - p)).astype(np.float32)
    even = np.zeros((len(p), size), np.float32)
    moved = np.repeat(logits[:, None], size, 1)
    run = jax.jit(jax.nn.sigmoid)
    answers = {
        "the other's": np.asarray(run(play(even, moved))),
        "the own": np.asarray(run(play(moved, even))),
    }

    def draw(*panels):
        for (whose, found), panel in zip(answers.items(), panels, strict=True):
            for i, name in enumerate(named):
                panel.plot(
                    p, found[:, i], color=figures.color(str(name), i), label=name
                )
            panel.set(
                xlabel=f"{whose} probability of the first move, everywhere",
                ylabel="next probability",
                ylim=(-0.02, 1.02),
            )
            figures.legend_above(panel, 5)

    columns = {
        f"{whose} {name}": found[:, i]
        for whose, found in answers.items()
        for i, name in enumerate(named)
    }
    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(probability=p, **columns),
        "The probabilities of the first move that it plays next in each situation, by "
        "one player's last policy. That player has the same probability in all "
        "situations, and the other 0.5.",
        2,
    )


# --- messages -------------------------------------------------------------------------


def message(evolved: Evolved) -> Portrait:
    """A message's first numbers over the two components that move it most."""
    op = evolved.op
    units = np.asarray(op["units"])
    size, shown = len(units), min(op["size"], 3)
    say = jax.jit(lambda obs: evolved.function(obs, Context()))
    obs = _observations(units)
    usual, sensitivity = np.asarray(say(obs)), []
    for i in range(size):
        other = obs.copy()
        other[:, i] = np.roll(obs[:, i], 1)
        sensitivity.append(np.abs(np.asarray(say(other)) - usual).mean())
    first, second = (*np.argsort(-np.asarray(sensitivity)), 0)[:2]
    ticks = np.linspace(-1, 1, 41)
    across, up = np.meshgrid(ticks, ticks if size > 1 else [0.0])
    grid = np.zeros((across.size, size), np.float32)
    grid[:, second] = up.ravel() * units[second]
    grid[:, first] = across.ravel() * units[first]
    numbers = np.asarray(say(grid)).reshape(*across.shape, op["size"])

    def draw(*panels):
        for i, panel in enumerate(panels[:-1]):
            if size == 1:
                panel.plot(ticks, numbers[0, :, i], color=OURS)
                panel.set(ylabel=f"number {i}")
            else:
                levels = np.linspace(-1, 1, 11) * op["scale"]
                filled = panel.contourf(
                    across, up, numbers[..., i], levels, cmap="RdBu_r"
                )
                panel.figure.colorbar(filled, ax=panel, shrink=0.9)
                panel.set(ylabel=f"component {second} (units)")
                panel.set_title(f"number {i}, other components 0")
            panel.set(xlabel=f"component {first} (units)")
        names = [str(i) for i in range(size)]
        _bars(panels[-1], names, sensitivity, "mean change")
        panels[-1].set_xlabel("component of what is observed")

    columns = {f"number {i}": numbers[..., i] for i in range(shown)}
    return Portrait(
        evolved.slot,
        heading(evolved.slot),
        draw,
        table(
            **{f"component {first}": across, f"component {second} (other)": up},
            **columns,
        ),
        "The message beside an observation: its numbers over the two components that "
        "move it most. Right: how much the message changes when one component, drawn "
        "within ±1 units, is replaced by another's.",
        shown + 1,
    )
