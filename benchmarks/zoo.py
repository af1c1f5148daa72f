"""Put the solution of a finished run into the zoo, with what was measured of it since.

    python -m benchmarks.zoo value_loss runs/loss

Writes `metaevo/zoo/NAME/`: the artifact of the run, whose card also says what it is
worth in other agents and where it fails. Its sentences stand below, each beside the
command or the page that has the figures.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

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
    # docs/discoveries.md, "PPO's value loss, in a family with guarantees"
    "value_loss": Entry(
        "python -m searches.ppo_weighted_value_loss run.held_out_seeds=64 "
        "run.independent=true",
        (
            "five searches of five are better than PPO's clipped loss: mean return "
            "over the lifetime +75.0 [+61.0, +89.0], final return +67.2 [+37.4, +97.0]",
            "on Acrobot, which no search saw, in a PPO that shares no code with it and "
            "has the squared error, three step sizes, 16 seeds: +37.7 [+18.8, +56.6] "
            "over the lifetime, +48.8 [+16.0, +81.6] in the end",
        ),
        (
            "seven tuned numbers with the clipped loss are worth more: mean return "
            "over the lifetime +46.8 [+39.0, +54.6] above the five searches",
            "most of the gain is that of the plain squared error; in the independent "
            "PPO, whose own loss it is, the two are not distinguishable on CartPole "
            "over the lifetime (+8.4 [-3.5, +20.4]), and it ends lower (-9.8 [-19.3, "
            "-0.3])",
            "evolved on CartPole at one step size; on other tasks than CartPole and "
            "Acrobot not tried",
        ),
    ),
    # experiments/transfer/results.jsonl, docs/opponents.md
    "shaper": Entry(
        "python -m searches.mfos_ipd run.held_out_seeds=16",
        (
            "in 256 fresh games its mean payoff beside LOLA is -1.44 and beside a best "
            "response -1.36; a naive learner in its place has -1.51 and -2.00",
            "three searches of three shape a naive learner: -0.48, -0.46 and -0.51, "
            "the opponent -2.17, -2.21 and -2.12",
        ),
        (
            "beside an opponent with a meta-learned start it has -2.00 (a naive "
            "learner -2.06)",
            "beside tit-for-tat it has -1.47, less than a naive learner's -1.03",
            "evolved for the iterated prisoner's dilemma with exact gradients",
        ),
    ),
    # benchmarks/results/cpu/potentials.jsonl, docs/discoveries.md
    "potential": Entry(
        "python -m searches.ppo_reward_potential",
        (
            "five searches, 131,072 frames, 16 seeds, final return above no potential: "
            "PPO at step sizes of 1e-3, 3e-3 and 1e-2 +58.0 [+43.9, +72.0], +52.5 "
            "[+37.6, +67.4] and +61.7 [+49.0, +74.5]; DQN +47.2 [+35.1, +59.3]; the "
            "independent DQN +56.6 [+40.2, +73.0]",
            "the same where observations are scaled to [-1, 1]: DQN +78.5 [+68.1, "
            "+89.0], the independent PPO +70.4 [+58.4, +82.4], the independent DQN "
            "+54.6 [+38.2, +71.0]; PQN +11.1 [-5.1, +27.3], and over the lifetime +7.3 "
            "[+2.0, +12.7]",
            "in Stable-Baselines3's PPO as it is, observations normalized, 50,000 "
            "frames, 8 seeds: mean return over the lifetime +33.7 [+31.2, +36.1], "
            "final return +24.7 [-5.4, +54.7]",
            "five searches of five are better than PPO without it, each with its own "
            "interval",
        ),
        (
            "the car's height times 30, which a person would take, is not "
            "distinguishable in the final return of PPO at 3e-3 and 1e-2, and of DQN "
            "and the independent DQN with scaled observations (evolved - height: +2.9 "
            "[-3.6, +9.4], -1.3 [-6.0, +3.4], +9.9 [-5.7, +25.5], +6.7 [-10.9, +24.3])",
            "PQN and the independent PPO with raw observations do not learn "
            "MountainCar in 131,072 frames, with it or without",
            "evolved for MountainCar alone",
        ),
    ),
    # docs/discoveries.md, "A loss for DQN that tuned numbers do not match"
    "td_loss": Entry(
        "python -m searches.dqn_td_loss_and_numbers number_sigma=0.3",
        (
            "five searches of loss and numbers against five tunings of the same "
            "numbers at equal frames, from a sigma of 1, 32 seeds: mean return over "
            "the lifetime +18.0 [+12.0, +24.0], final return +36.7 [+18.0, +55.4]",
            "the five losses alone in the DQN that they evolved in, its numbers as "
            "they were, 16 seeds: +38.3 [+27.3, +49.2] over the lifetime against the "
            "squared error",
            "in a DQN that shares no code with it, four times as many frames, at step "
            "sizes of 2.5e-4, 5e-4 and 1e-3: +67.0 [+47.8, +86.2], +25.2 [-5.8, +56.1] "
            "and +20.7 [-3.2, +44.6] over the lifetime; final return +40.5 [-67.0, "
            "+148.0], -40.2 [-109.9, +29.4] and +28.0 [-7.9, +63.9]",
            "in Stable-Baselines3's DQN with settings of RL Baselines3 Zoo, 50,000 "
            "frames, 8 seeds, against its Huber loss: +109.5 [+66.0, +153.0] over the "
            "lifetime; all eight end at 500, with the Huber loss at 340.5 on average",
        ),
        (
            "on Acrobot, where each step costs, it does harm: -93.8 [-119.2, -68.5] "
            "over the lifetime",
            "an expectile of 0.1, written down after the look, is as good but at the "
            "step size of the searches (evolved - expectile: +13.5 [+4.9, +22.0]), and "
            "better in the independent DQN at 1e-3 (-27.3 [-50.1, -4.5])",
            "20 random members of the family with random numbers have 122.0 as their "
            "95th percentile over the lifetime, the searches 119.6",
            "the artifact also holds the numbers that evolved beside the loss; they "
            "were judged in the DQN of the search alone",
        ),
    ),
    # experiments/transfer/results.jsonl, docs/cheap_talk.md
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
    # experiments/transfer/results.jsonl, docs/cheap_talk.md
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


def publish(name: str, run: Path, entry: Entry) -> Path:
    """Write the artifact of a run into the zoo; returns its folder."""
    folder = verified.artifact_folder(run)
    arrays, manifest = verified.read(folder, verified.MAX_ARTIFACT)
    evidence = manifest["evidence"] | {
        "license": "Apache-2.0",
        "name": f"{verified.ZOO_PREFIX}{name}",
        "command": entry.command,
        "elsewhere": list(entry.elsewhere),
        "limits": list(entry.limits),
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
    if len(sys.argv) != 3 or sys.argv[1] not in ENTRIES:
        sys.exit(f"expected a name ({names}) and the directory of a finished run")
    name, run = sys.argv[1:]
    print(publish(name, Path(run), ENTRIES[name]))


if __name__ == "__main__":
    main()
