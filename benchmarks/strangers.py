"""Evolved functions of the zoo in agents that others wrote, beside simple functions.

    python -m benchmarks.strangers                  trains what is missing, prints
    python -m benchmarks.strangers of=zoo:td_loss only=independent
    python -m benchmarks.strangers table            writes docs/log/strangers.md

A row is an artifact, an agent and a task. `of` takes rows of one artifact, `only` those
whose agent has these words. Agents are the independent ones of metaevo, which share no
code with its inner loops, and those of Stable-Baselines3, with settings of RL
Baselines3 Zoo, in `.venv-torch` (`make .venv-torch/.installed`). Each trains with what
it has by itself, with the function of the artifact, and with simple functions, on the
same seeds. Lines of `results/strangers.jsonl` hold scores by seed: the mean return over
the lifetime and the final return, both of the task's own reward. A line that is in the
results is not made again; one of an artifact that was replaced since does not count.

The artifact is compared with what the agent has by itself, and with the best simple
function. Which is the best is not known beforehand, and the best of several on the
judged seeds would be a lucky one. So the seeds are halved: even ones and odd ones. Each
half chooses the function of the highest mean over the lifetime, and the other half is
judged against that. All seeds are judged so, each against a function that was chosen
without it. What the agent has by itself may be chosen, too. Intervals are those of
`metaevo.analysis.differences.paired_difference`.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import metaevo
from benchmarks.measure import RESULTS, Results, switches
from benchmarks.potentials import height, in_units, of_units
from metaevo import envs, rewards, slots
from metaevo.analysis import differences, rivals
from metaevo.analysis.differences import Paired
from metaevo.analysis.independent import judge
from metaevo.export import files, programs, source
from metaevo.learned.functions import Learned
from metaevo.learned.operations import operation
from metaevo.slots import Slot

ROOT = Path(__file__).parents[1]
TORCH = ROOT / ".venv-torch" / "bin" / "python"
DOCS = ROOT / "docs" / "log" / "strangers.md"
BEGIN, END = "<!-- table of benchmarks/strangers.py -->\n", "<!-- end of table -->\n"
MEASURES = ("lifetime", "final_return")
LEAST_SEEDS = 4  # two to choose on, and two to judge


@slots.function
def energy(obs, action, reward, next_obs, terminated, context=None):
    """The reward with 30 times the car's energy as a potential, in units of height.

    The height is sin 3x, and gravity 0.0025 a step², along the slope: v²/2 of speed is
    as much as 600 v² of height.
    """
    del action
    assert context is not None

    def potential(obs):
        return 30.0 * (jnp.sin(3 * obs[0]) + 600.0 * obs[1] ** 2)

    after = jnp.where(terminated, 0.0, potential(next_obs))
    return reward + context.stats["gamma"] * after - potential(obs)


@slots.function
def _reluctant(td_error, q, target, context=None):
    """`losses.td_reluctant` of which three tenths count where it counts a tenth."""
    del q, context
    return 0.5 * jnp.where(td_error * target < 0, 1.0, 0.3) * td_error**2


TD, VALUE, REWARD = "td_loss", "value_loss", "reward"
SIMPLE: Mapping[str, Mapping[str, Slot]] = {
    TD: {**rivals.SIMPLE[TD], "reluctant, 0.3": _reluctant},
    VALUE: rivals.SIMPLE[VALUE],
    REWARD: {
        "none": rewards.identity,
        "height": slots.function(height),
        "energy": energy,
    },
}
"""Slot -> its simple functions by name."""


class Agent(NamedTuple):
    """An agent that others wrote.

    Attributes:
        kind: of an independent agent, `dqn` or `ppo`; of Stable-Baselines3, the name of
            `benchmarks.strangers_sb3`.
        lr: step size of an independent agent; None: Stable-Baselines3's.
        own: what it has by itself, by slot: a name of `SIMPLE`.
    """

    kind: str
    lr: float | None
    own: Mapping[str, str]


def _independent(kind: str, lr: float) -> dict[str, Agent]:
    own = {TD: "square", VALUE: "square", REWARD: "none"}
    return {f"independent {kind.upper()}, {lr:g}": Agent(kind, lr, own)}


AGENTS: Mapping[str, Agent] = {
    **_independent("dqn", 5e-4),
    **_independent("dqn", 1e-3),
    **_independent("ppo", 1e-3),
    **_independent("ppo", 2.5e-3),
    "Stable-Baselines3's DQN": Agent("DQN", None, {TD: "Huber"}),
    "Stable-Baselines3's PPO": Agent("PPO", None, {VALUE: "square"}),
    "Stable-Baselines3's PPO, observations normalized": Agent(
        "PPO, observations normalized", None, {REWARD: "none"}
    ),
}


class Row(NamedTuple):
    """An artifact in an agent on a task.

    Attributes:
        of: the artifact, as `metaevo.load` takes it.
        slot: the slot of its function.
        agent: a key of `AGENTS`.
        task: a name of Gymnasium, or one that `world` takes.
        simple: names of the simple functions that are trained beside it.
        seeds: number of seeds.
    """

    of: str
    slot: str
    agent: str
    task: str
    simple: tuple[str, ...]
    seeds: int

    @property
    def own(self) -> str:
        """Name of the function that the agent has by itself."""
        return AGENTS[self.agent].own[self.slot]

    @property
    def functions(self) -> tuple[str, ...]:
        """All that is trained: the artifact, and simple ones."""
        return self.of, *self.simple


CARTPOLE, ACROBOT, CAR = "CartPole-v1", "Acrobot-v1", "MountainCar-v0"
CATCH, KEY_DOOR = "Catch-bsuite", "grid/key_door"
SCALED = ", scaled observations"
LONG = ", 1000 steps"
OF_TD = "zoo:td_loss", TD
OF_SIGNED = "zoo:td_signed", TD
OF_VALUE = "zoo:value_loss", VALUE
OF_REWARD = "zoo:potential", REWARD
ERRORS = ("square", "Huber", "slow to rise", "slow to fall", "reluctant")
SIGNED = (*ERRORS, "reluctant, 0.3")
VALUES = ("square", "clipped square", "Huber", "shifted", "reluctant")
SHAPED = ("none", "height", "energy")
DQN, FAST_DQN, PPO, FAST_PPO, SB3_DQN, SB3_PPO, SB3_REWARD = AGENTS

# The rows, what matters most first. Stable-Baselines3's agents are slow, so fewer
# simple functions are trained there. Its PPO does not tell what a value was before:
# clipped, the square is the plain one there.
ROWS = (
    Row(*OF_SIGNED, DQN, CARTPOLE, SIGNED, 16),
    Row(*OF_SIGNED, DQN, ACROBOT, SIGNED, 16),
    Row(*OF_SIGNED, DQN, CATCH, SIGNED, 16),
    Row(*OF_SIGNED, DQN, KEY_DOOR, SIGNED, 16),
    Row(*OF_SIGNED, FAST_DQN, CARTPOLE, SIGNED, 16),
    Row(*OF_SIGNED, FAST_DQN, ACROBOT, SIGNED, 16),
    Row(*OF_SIGNED, SB3_DQN, CARTPOLE, ("Huber", "reluctant", "slow to rise"), 8),
    Row(*OF_TD, DQN, CARTPOLE, ERRORS, 16),
    Row(*OF_TD, DQN, ACROBOT, ERRORS, 16),
    Row(*OF_VALUE, PPO, CARTPOLE, VALUES, 16),
    Row(*OF_VALUE, PPO, ACROBOT, VALUES, 16),
    Row(*OF_TD, DQN, CATCH, ERRORS, 16),
    Row(*OF_VALUE, PPO, CATCH, VALUES, 16),
    Row(*OF_REWARD, PPO, CAR + SCALED, SHAPED, 16),
    Row(*OF_REWARD, FAST_DQN, CAR + SCALED, SHAPED, 16),
    Row(*OF_VALUE, SB3_PPO, CARTPOLE, ("square", "shifted", "reluctant"), 8),
    Row(*OF_REWARD, SB3_REWARD, CAR, SHAPED, 8),
    Row(*OF_TD, SB3_DQN, CARTPOLE, ("Huber", "reluctant", "slow to rise"), 8),
    Row(*OF_TD, DQN, KEY_DOOR, ERRORS, 16),
    Row(*OF_VALUE, PPO, KEY_DOOR, VALUES, 16),
    Row(*OF_REWARD, PPO, CAR + SCALED + LONG, SHAPED, 16),
    Row(*OF_REWARD, FAST_DQN, CAR + SCALED + LONG, SHAPED, 16),
    Row(*OF_TD, SB3_DQN, ACROBOT, ("Huber", "reluctant", "slow to rise"), 8),
    Row(*OF_TD, FAST_DQN, CARTPOLE, ERRORS, 16),
    Row(*OF_TD, FAST_DQN, ACROBOT, ERRORS, 16),
    Row(*OF_VALUE, FAST_PPO, CARTPOLE, VALUES, 16),
    Row(*OF_VALUE, FAST_PPO, ACROBOT, VALUES, 16),
    Row(*OF_VALUE, SB3_PPO, ACROBOT, ("square", "shifted", "reluctant"), 8),
)


# --- results --------------------------------------------------------------------------

Known = dict[str, dict[int, dict[str, float]]]  # function -> seed -> scores by measure


@functools.cache
def digest(of: str) -> str:
    """A short name of an artifact's arrays, another one if they are replaced."""
    return metaevo.load(of).manifest["sha256"][:12]


def place(row: Row, function: str) -> dict[str, Any]:
    """Return the fields that tell the lines of a function in a row from others."""
    artifact = digest(row.of) if function == row.of else None
    found = {"slot": row.slot, "agent": row.agent, "task": row.task}
    return found | {"function": function, "artifact": artifact}


def known(lines: Sequence[str], row: Row) -> Known:
    """The scores of a row; NaN of a run that failed."""
    places, found = {name: place(row, name) for name in row.functions}, {}
    for line in map(json.loads, lines):
        name = line["function"]
        if name in places and places[name].items() <= line.items():
            of_seeds = found.setdefault(name, {})
            for i, seed in enumerate(line["seeds"]):
                scores = {x: line[x][i] for x in MEASURES}
                of_seeds[seed] = {
                    x: np.nan if y is None else y for x, y in scores.items()
                }
    return found


# --- training -------------------------------------------------------------------------


class World(NamedTuple):
    """A task of an independent agent.

    Attributes:
        env: environment.
        raw: the one whose observations `reward` functions read; None: `env`.
    """

    env: envs.Env
    raw: envs.Env | None = None


def world(task: str) -> World:
    """The environment of a task's name: of gymnax, if no other suite is named."""
    name, *changes = task.split(", ")
    env = envs.make(name if "/" in name else f"gymnax/{name}")
    if LONG.removeprefix(", ") in changes:
        import gymnax

        from metaevo.envs.gymnax import adapt

        there, params = gymnax.make(name)
        env = adapt(there, params.replace(max_steps_in_episode=1000), task)
    if SCALED.removeprefix(", ") in changes:
        return World(in_units(env), env)
    return World(env)


def evolved(row: Row) -> Slot:
    """The function of the artifact."""
    return slots.unchecked(metaevo.load(row.of).slots[row.slot])


def one_of(functions: Mapping[str, Slot], name: str) -> Slot:
    """The function of a name, by its number: one program trains with any of them."""
    several = list(functions.values())

    def one(number, *given):
        return jax.lax.switch(number, several, *given)

    return Partial(one, jnp.int32(list(functions).index(name)))


def in_independent(row: Row, missing: set[tuple[int, str]]) -> Iterator[dict]:
    """Lines of an independent agent, all seeds of a function in each."""
    agent, (env, raw) = AGENTS[row.agent], world(row.task)
    functions = {row.of: evolved(row)} | {x: SIMPLE[row.slot][x] for x in row.simple}
    if raw is not None and row.slot == REWARD:
        functions = {name: of_units(raw, x) for name, x in functions.items()}
    assert agent.lr is not None
    for name in functions:
        if name in {x for _, x in missing}:
            given = {row.slot: one_of(functions, name)}
            key = jax.random.key(0)
            found = judge.scores(agent.kind, env, given, key, row.seeds, [agent.lr])
            scores = {
                x: [round(y, 3) if np.isfinite(y) else None for y in of_seeds[0]]
                for x, of_seeds in found._asdict().items()
            }
            yield place(row, name) | {"seeds": list(range(row.seeds)), **scores}


@functools.cache
def operation_of(slot: str):
    """The simple functions of a slot as an operation, which can be exported."""

    def reads(op):
        of_slot = {TD: (), VALUE: (), REWARD: ("gamma",)}[slot]
        return ("return_std",) if op["name"] == "shifted" else of_slot

    def shapes(op):
        del op
        vectors = {"obs": ("n", 2), "next_obs": ("n", 2)}
        return vectors if slot == REWARD else {}

    @operation(f"benchmarks.strangers.{slot}", slot=slot, reads=reads, shapes=shapes)
    def simple(name: str) -> Learned:
        function = SIMPLE[slot][name]
        return Learned(lambda key: {}, lambda params, *given: function(*given))

    return simple


def export(slot: str, function: str, out: Path, to: str = "torch") -> Path:
    """Write a simple function as `metaevo export` writes evolved ones."""
    spec = operation_of(slot)(function).spec
    program = programs.evolved(slot, spec, {})
    dialect = source.DIALECTS[to]
    out.write_text(source.module(dialect, [program], {}, [function], out.stem))
    return out


def in_sb3(row: Row, missing: set[tuple[int, str]]) -> Iterator[dict]:
    """Lines of an agent of Stable-Baselines3, seed by seed."""
    if not TORCH.exists():
        print(f"{row.agent}: left out, make .venv-torch/.installed", file=sys.stderr)
        return
    script = [str(TORCH), "-m", "benchmarks.strangers_sb3", AGENTS[row.agent].kind]
    with tempfile.TemporaryDirectory() as folder:
        paths = {row.own: "own"}
        for i, name in enumerate(row.functions):
            out = Path(folder) / f"function_{i}.py"
            if name == row.of:
                paths[name] = str(files.write(name, "torch", out, row.slot))
            elif name != row.own:
                paths[name] = str(export(row.slot, name, out))
        for seed, name in sorted(missing):
            words = [*script, row.task, paths[name], str(seed)]
            done = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE)
            found = json.loads(done.stdout.splitlines()[-1])
            scores = {x: [found[x]] for x in MEASURES}
            more = {"seeds": [seed], "packages": found["packages"]}
            yield place(row, name) | scores | more


def train(row: Row, results: Results) -> None:
    """Add what a row lacks."""
    there = known(results.lines, row)
    everything = {(i, name) for i in range(row.seeds) for name in row.functions}
    missing = {x for x in everything if x[0] not in there.get(x[1], {})}
    run = in_sb3 if AGENTS[row.agent].lr is None else in_independent
    for line in run(row, missing) if missing else ():
        results.add(**line)


# --- verdicts and the table -----------------------------------------------------------


class Judged(NamedTuple):
    """Comparisons of an artifact in a row.

    Attributes:
        row: the row.
        seeds: number of seeds of which all functions have scores.
        means: mean return over the lifetime by function, of the runs that trained.
        chosen: the best simple function by the odd seeds, and by the even ones.
        beyond_own: artifact less what the agent has by itself, by measure.
        beyond_simple: artifact less the best simple function, by measure.
    """

    row: Row
    seeds: int
    means: Mapping[str, float]
    chosen: tuple[str, str]
    beyond_own: Mapping[str, Paired]
    beyond_simple: Mapping[str, Paired]


def best_by_halves(simple: Mapping[str, np.ndarray]) -> tuple[str, str]:
    """The functions that even seeds, and odd seeds, are judged against.

    Args:
        simple: name -> [N] scores, NaN where a run failed, which is the worst.

    Returns:
        the best on odd seeds, and the best on even seeds.

    >>> best_by_halves({"a": np.array([1.0, 5, 1, 5]), "b": np.array([2.0, 2, 2, 2])})
    ('a', 'b')
    """

    def best(half):
        scores = {k: np.nan_to_num(x, nan=-np.inf)[half] for k, x in simple.items()}
        return max(scores, key=lambda name: scores[name].mean())

    return best(slice(1, None, 2)), best(slice(0, None, 2))


def judged(row: Row, scores: Known) -> Judged | None:
    """Compare the artifact of a row; None if fewer than 4 seeds have all functions."""
    if not set(row.functions) <= scores.keys():
        return None
    seeds = sorted(set.intersection(*(set(scores[x]) for x in row.functions)))
    if len(seeds) < LEAST_SEEDS:
        return None
    table = {
        measure: {
            name: np.array([scores[name][seed][measure] for seed in seeds])
            for name in row.functions
        }
        for measure in MEASURES
    }
    simple = {name: table["lifetime"][name] for name in row.simple}
    chosen = best_by_halves(simple)
    even = np.arange(len(seeds)) % 2 == 0
    beyond_own, beyond_simple = {}, {}
    for measure, x in table.items():
        rival = np.where(even, *(x[name] for name in chosen))
        beyond_own[measure] = differences.paired_difference(x[row.of], x[row.own])
        beyond_simple[measure] = differences.paired_difference(x[row.of], rival)
    means = {
        name: float(x[np.isfinite(x)].mean()) if np.isfinite(x).any() else np.nan
        for name, x in table["lifetime"].items()
    }
    return Judged(row, len(seeds), means, chosen, beyond_own, beyond_simple)


def corrected(several: Sequence[Judged]) -> list[Judged]:
    """The same with p-values corrected for all comparisons of an artifact."""
    sides = [x for one in several for x in (one.beyond_own, one.beyond_simple)]
    family = iter(differences.holm([x for side in sides for x in side.values()]))
    return [
        one._replace(
            beyond_own={x: next(family) for x in one.beyond_own},
            beyond_simple={x: next(family) for x in one.beyond_simple},
        )
        for one in several
    ]


COLUMNS = (
    *("agent", "task", "seeds", "by itself", "evolved", "evolved - by itself"),
    *("best simple", "evolved - best simple"),
    *("final: evolved - by itself", "final: evolved - best simple"),
)


def cell(found: Paired) -> str:
    """A difference, bold where it is a verdict; failures, if they decide.

    >>> cell(Paired(1.25, 0.5, 2.0, 0.001, 8, (0, 0), (8, 8)))
    '**+1.25 [+0.5, +2]**'
    """
    text = f"{found.difference:+.4g} [{found.low:+.3g}, {found.high:+.3g}]"
    if found.verdict in ("fails", "rival fails"):
        failed = " and ".join(map(str, found.num_failed))
        return f"**{found.verdict}: {failed} of {found.num_runs[0]}**; {text}"
    return f"**{text}**" if found.verdict in ("better", "worse") else text


def table(lines: Sequence[str], rows: Sequence[Row] = ROWS) -> str:
    """The rows that can be judged, a table for each artifact, as Markdown."""
    parts = []
    for of in dict.fromkeys(row.of for row in rows):
        found = [judged(x, known(lines, x)) for x in rows if x.of == of]
        several = corrected([x for x in found if x is not None])
        if not several:
            continue
        text = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
        for one in several:
            row = one.row
            even, odd = one.chosen
            chosen = even if even == odd else f"{even}; {odd}"
            cells = [
                *(row.agent, row.task, str(one.seeds)),
                f"{row.own} {one.means[row.own]:.4g}",
                f"{one.means[row.of]:.4g}",
                cell(one.beyond_own["lifetime"]),
                chosen,
                cell(one.beyond_simple["lifetime"]),
                cell(one.beyond_own["final_return"]),
                cell(one.beyond_simple["final_return"]),
            ]
            text.append("| " + " | ".join(cells) + " |")
        parts.append(f"`{of}`:\n\n" + "\n".join(text) + "\n")
    return "\n".join(parts)


def write(text: str, page: Path = DOCS) -> None:
    """Put the table between its markers in a page."""
    before, rest = page.read_text().split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main(words: Sequence[str]) -> None:
    results = Results("strangers", keep=True, folder=RESULTS)
    if list(words) == ["table"]:
        write(table(results.lines))
    else:
        chosen = switches({"of": "", "only": ""}, [*words])
        of, only = str(chosen["of"]), str(chosen["only"])
        rows = [x for x in ROWS if of in ("", x.of) and only in x.agent]
        if not rows:
            sys.exit(
                f"of={of} only={only}: expected an artifact of "
                f"{', '.join(dict.fromkeys(x.of for x in ROWS))} and words of an agent "
                f"of {'; '.join(AGENTS)}"
            )
        metaevo.configure()
        for row in rows:
            train(row, results)
    print(table(results.lines))


if __name__ == "__main__":
    main(sys.argv[1:])
