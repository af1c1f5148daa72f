"""Put the solution of a finished run into the zoo, with what was measured of it since.

    python -m benchmarks.zoo value_loss runs/loss
    python -m benchmarks.zoo value_loss            with new rows of benchmarks.strangers

Writes `metaevo/zoo/NAME/`: the artifact of the run, or the one that is there. Its card
also says what it is worth in other agents and where it fails. Of functions that
`benchmarks.strangers` trains the sentences are made from its results. The others stand
below, each beside the page that has the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import strangers
from benchmarks.measure import RESULTS, Results
from metaevo.storage import artifacts, card, verified


class Entry(NamedTuple):
    """Facts of an artifact that its run does not know.

    Attributes:
        command: the command that found it.
        elsewhere: what it is worth in other agents and on other tasks.
        limits: where it fails.
    """

    command: str
    elsewhere: tuple[str, ...]
    limits: tuple[str, ...]


ENTRIES = {
    "value_loss": Entry(
        "python -m searches.ppo_weighted_value_loss run.held_out_seeds=64 "
        "run.independent=true",
        (),
        (
            "evolved on CartPole at one step size",
            "normalized rewards, inner.normalize_reward=true, are worth more in the "
            "agent in which it evolved: 393 over the lifetime, five losses of its "
            "search 322 (docs/log/discoveries.md)",
        ),
    ),
    # experiments/transfer/results.jsonl, docs/log/opponents.md
    "shaper": Entry(
        "python -m searches.mfos_ipd opponent=lola naive_share=0.5 strategy=simple_ga "
        "sigma=1 strategy.sigma_decay=0.9536 strategy.elite_ratio=0.0078125 "
        "features=[256] scale=1 uncentered=true population_size=1024 "
        "inner.num_envs=32 num_generations=64 run.held_out_seeds=16",
        (
            "in 256 fresh games its mean payoff beside a naive learner is -0.52, "
            "beside LOLA -1.02, beside tit-for-tat -1.01; a naive learner in its place "
            "has -1.99, -1.51 and -1.03",
            "three searches of three shape a naive learner (-0.52, -0.59 and -0.51, "
            "the opponent -2.10, -1.96 and -2.09) and cooperate with LOLA",
        ),
        (
            "against LOLA alone a search finds players with -0.55 "
            "(docs/log/opponents.md)",
            "beside an opponent with a meta-learned start it has -1.92 (a naive "
            "learner -2.06), beside a best response -1.61 (-2.00)",
            "evolved for the iterated prisoner's dilemma with exact gradients",
        ),
    ),
    "potential": Entry(
        "python -m searches.ppo_reward_potential",
        (),
        (
            "evolved for MountainCar alone",
            "PPO's tuned numbers, and four static settings with numbers tuned under "
            "them, are worth more over the lifetime in the agent in which it evolved: "
            "-155 and -156, five potentials -170 (docs/log/discoveries.md)",
            "agents that read raw positions and speeds, such as the independent PPO, "
            "do not learn the task in 131,072 frames, with it or without",
        ),
    ),
    "td_loss": Entry(
        "python -m searches.dqn_td_loss_and_numbers number_sigma=0.3",
        (),
        (
            "evolved on CartPole alone, whose rewards are positive",
            "20 random members of the family with random numbers have 122.0 as their "
            "95th percentile over the lifetime, the searches 119.6 "
            "(docs/log/discoveries.md)",
            "the artifact also holds the numbers that evolved beside the loss; they "
            "were judged in the DQN of the search alone",
        ),
    ),
    # experiments/signed/eight.jsonl
    "td_signed": Entry(
        "python -m experiments.signed.run tasks=eight members=32 worlds=12, on a GPU",
        (
            "in 64 fresh worlds of 16 tasks, 32,000 frames of DQN, mean return over "
            "the lifetime: better than the square on six (CartPole +26.2, Acrobot "
            "+48.7), worse on one (CartPole that is paid at the end, -1.35)",
            "in 128 worlds by which it was not picked, on six tasks that no search "
            "touched, beside the best of eight lines on the training tasks, the "
            "reluctant square with 0.3 times 7: better on UmbrellaChain, +0.037 "
            "[+0.021, +0.054], and SpaceInvaders, +0.107 [+0.030, +0.185], worse on "
            "none, after a correction for six (experiments/signed/again.jsonl)",
        ),
        (
            "where rewards have one sign the reluctant square with 0.1 learns faster: "
            "Acrobot +97.3, CartPole +32.0 (docs/log/discoveries.md)",
            "verdicts of 64 worlds on tasks that no search touched are of those worlds "
            "by which it was picked",
            "known for lives of 32,000 frames and small networks",
        ),
    ),
    # experiments/transfer/results.jsonl, docs/log/cheap_talk.md
    "ally": Entry(
        "python -m searches.cheap_talk_ally run.seed=1",
        (
            "beside victims in which it did not evolve, 16 seeds, mean return over the "
            "lifetime above silence: PPO with a step size of 1e-3 +287.8 [+279.2, "
            "+296.3], of 5e-3 +197.0 [+175.6, +218.4], with networks of 64 and 64 "
            "units +163.0 [+140.9, +185.0], recurrent PPO +181.8 [+165.2, +198.4]; all "
            "end at 500",
            "three searches of three help: +119 %, +121 % and +125 %",
        ),
        (
            "a random message helps, too: +24.2 [+11.9, +36.4] over the lifetime",
            "evolved for CartPole: it says which way to push a cart, and nothing else",
        ),
    ),
    # experiments/transfer/results.jsonl, docs/log/cheap_talk.md
    "adversary": Entry(
        "python -m searches.cheap_talk_adversary run.seed=1",
        (
            "beside victims in which it did not evolve, 16 seeds, final return below "
            "that of silence: PPO with a step size of 1e-3 -405.7 [-419.6, -391.9], of "
            "5e-3 -301.2 [-336.1, -266.4], with networks of 64 and 64 units -253.9 "
            "[-337.2, -170.5]",
            "three searches of three leave 31 %, 24 % and 23 % of the final return",
        ),
        (
            "it speaks during training; a trained victim was not tried",
            "evolved for CartPole; a short search on Pendulum found no adversary",
        ),
    ),
}


def sentences(several: Sequence[strangers.Judged]) -> tuple[list[str], list[str]]:
    """Say what an artifact is worth in agents that others wrote, and where it is not.

    Args:
        several: its rows of `strangers`, corrected; empty if it has none.

    Returns:
        a sentence per row, and limits, what matters most first.
    """
    rows, harm, better = [], [], 0
    for one in several:
        agent = one.row.agent
        agent = f"the {agent}" if agent[0].islower() else agent
        place = f"in {agent} on {one.row.task}, {one.seeds} seeds"
        own, simple = one.beyond_own["lifetime"], one.beyond_simple["lifetime"]
        chosen = " or ".join(dict.fromkeys(one.chosen))
        better += simple.verdict == "better"
        rows.append(
            f"{place}, over the lifetime: {own.text} beyond its own ({one.row.own}), "
            f"{simple.text} beyond the best simple function ({chosen})"
        )
        if own.verdict in ("worse", "fails"):
            harm.append(f"{place}, it does harm: {own.text} over the lifetime")
    if not several:
        return [], []
    shown = "a demonstration: in none of " if not better else f"in {better} of "
    best = (
        f"{shown}{len(several)} rows with agents that others wrote is it better over "
        "the lifetime than the best simple function"
    )
    return rows, [best, *harm]


def of_strangers(name: str) -> tuple[list[str], list[str]]:
    """Return `sentences` of the results that are there."""
    lines = Results("strangers", keep=True, folder=RESULTS).lines
    of = f"{verified.ZOO_PREFIX}{name}"
    there = (verified.ZOO / name).exists()  # a new one has no results
    rows = [x for x in strangers.ROWS if x.of == of and there]
    found = [strangers.judged(x, strangers.known(lines, x)) for x in rows]
    return sentences(strangers.corrected([x for x in found if x is not None]))


def publish(name: str, run: Path, entry: Entry) -> Path:
    """Write an artifact of a run, or of the zoo, into the zoo; return its folder."""
    elsewhere, limits = of_strangers(name)
    folder = verified.artifact_folder(run)
    arrays, manifest = verified.read(folder, verified.MAX_ARTIFACT)
    evidence = manifest["evidence"] | {
        "license": "Apache-2.0",
        "name": f"{verified.ZOO_PREFIX}{name}",
        "command": entry.command,
        "elsewhere": [*elsewhere, *entry.elsewhere],
        "limits": [*limits, *entry.limits],
    }
    # The folder of the run was on somebody's machine.
    run_facts = manifest["provenance"]["run"]
    run_facts["changes"] = [
        x for x in run_facts["changes"] if not x.startswith("run.directory=")
    ]
    run_facts["run"]["directory"] = None
    manifest |= {"evidence": evidence}
    known = artifacts.load(folder).properties
    target = verified.ZOO / name
    target.parent.mkdir(exist_ok=True)
    verified.write(target, arrays, manifest, card.markdown(manifest, known))
    return target


def main() -> None:
    names = ", ".join(ENTRIES)
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in ENTRIES:
        sys.exit(f"expected a name ({names}), and the directory of a finished run")
    name = sys.argv[1]
    run = Path(sys.argv[2]) if len(sys.argv) == 3 else verified.ZOO / name
    print(publish(name, run, ENTRIES[name]))


if __name__ == "__main__":
    main()
