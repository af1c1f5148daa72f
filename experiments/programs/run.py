"""Measure finds and false finds of regularized evolution of formulas.

    python -m experiments.programs.run copies     60 searches in which nothing is better
    python -m experiments.programs.run planted    5 searches for a formula that is +20
    python -m experiments.programs.run formulas   the winners of searches, on more tasks
    python -m experiments.programs.run strangers  the winners in an independent DQN
    python -m experiments.programs.run speed      a training, beside the square's
    python -m experiments.programs.run table      the rows of the documentation

Each writes lines to results.jsonl; `formulas` and `strangers` go on where they were
stopped.
"""

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from benchmarks.strangers import best_by_halves
from inner_loops import dqn
from metaevo import envs, fitness, formulas, spaces
from metaevo.analysis import differences, holdout, rivals
from metaevo.analysis.independent import judge
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Proposal, Search
from strategies.regularized_evolution import regularized_evolution

RESULTS = Path(__file__).parent / "results.jsonl"
NOISE = 10.0  # of a look; in the search above it is half of what `reluctant` is worth
SPACE = spaces.replace(td_loss=formulas.expression("td_loss"))
STRANGERS = Path(__file__).parents[2] / "benchmarks/results/strangers.jsonl"
WINNERS = Path(__file__).parent / "winners.json"
"""Seed of a search -> formula, from runs of `searches.dqn_td_program`."""


def note(**record):
    with RESULTS.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(record, flush=True)


def searching(score):
    """A strategy, and `(generations, seed) -> state` where members score `score`."""
    strategy = regularized_evolution(SPACE, 64)

    @jax.jit
    def generation(state, key):
        ask_key, score_key, tell_key = jax.random.split(key, 3)
        proposal, state = strategy.ask(ask_key, state)
        scores = score(proposal.params, score_key)
        return strategy.tell(tell_key, state, proposal, scores)

    def last(generations, seed):
        state = strategy.init(jax.random.key(seed))
        for i in range(generations):
            state = generation(state, jax.random.fold_in(jax.random.key(seed), i))
        return state

    return strategy, last


def copies():
    """All members are as good as the square: what is called better is noise."""

    def score(params, key):
        return NOISE * jax.random.normal(key, params["td_loss"]["op"].shape[:1])

    rng = np.random.default_rng(0)
    claimed = better = 0
    strategy, last = searching(score)
    for seed in range(60):
        state = last(20, seed)
        claims = float(strategy.metrics(state)["solution_mean"]) > 0
        mine, square = NOISE * rng.normal(size=(2, 32))
        verdict = differences.paired_difference(mine, square).verdict
        claimed += claims
        better += claims and verdict == "better"
    note(part="copies", searches=60, solutions=claimed, called_better=better)


def planted():
    """A weight that falls where values leave 0, worth 20; noise of one look is 10."""
    rng = np.random.default_rng(0)
    q, y = (jnp.asarray(1.5 * x, jnp.float32) for x in rng.normal(size=(2, 200)))
    goal = jnp.log(jnp.where((y - q) * y < 0, 1.0, 0.2))
    goal -= goal.mean()

    def worth(params):
        from metaevo import Context

        loss = SPACE.bind(params, dqn.Meta()).td_loss
        weight = loss(y - q, q, y, Context(0.5, 1.0)) / (0.5 * (y - q) ** 2 + 1e-9)
        shape = jnp.log(weight + 1e-6)
        shape -= shape.mean()  # a factor is a step size
        return 20 * (1 - ((shape - goal) ** 2).mean() / (goal**2).mean())

    def score(params, key):
        found = jax.vmap(worth)(params)
        return found + NOISE * jax.random.normal(key, found.shape)

    strategy, last = searching(score)
    for seed in range(5):
        state = last(64, seed)
        solution = strategy.solution(state)
        text = SPACE.programs.settled(solution)[0].spec["td_loss"]["text"]
        note(part="planted", seed=seed, worth=float(worth(solution)), formula=text)


TASKS = {
    "gymnax/CartPole-v1": "train",
    "gymnax/Acrobot-v1": "train",
    "grid/maze": "train",
    "grid/key_door": "unseen",
    "gymnax/Catch-bsuite": "unseen",
}
SEEDS, STEP_SIZES = 32, (5e-4, 2e-3)


def of_formulas():
    """The winners and the simple functions, in 32 worlds of each task and step size."""
    winners = json.loads(WINNERS.read_text())
    functions = {
        **{f"search {k}": formulas.fixed("td_loss", x) for k, x in winners.items()},
        **rivals.SIMPLE["td_loss"],
    }
    done: dict[tuple, set] = {}
    if RESULTS.exists():
        for line in map(json.loads, RESULTS.read_text().splitlines()):
            if line["part"] == "formulas":
                place = line["task"], line["lr"]
                done[place] = done.get(place, set()) | {*line["scores"]}
    config = dqn.Config(24_000, 1_000, num_steps=4, features=(64, 64))
    for task, kind in TASKS.items():
        kept = set.intersection(*(done.get((task, lr), set()) for lr in STEP_SIZES))
        missing = {name: x for name, x in functions.items() if name not in kept}
        if not missing:
            continue
        chosen = rivals.chosen_from(missing, "td_loss")
        space = chosen._replace(
            bind=lambda params, meta, chosen=chosen: chosen.bind(
                params[0], meta._replace(lr=params[1])
            )
        )
        search = Search(
            dqn.make(envs.make(task), config),
            space,
            holdout.NO_STRATEGY,
            1,
            fitness.area_under_curve,
            num_seeds=SEEDS,
            common_random_numbers=True,
        )
        evaluator = LocalEvaluator(search)
        for lr in STEP_SIZES:
            numbers = jnp.arange(len(missing), dtype=jnp.int32)
            members = Proposal((numbers, jnp.full(len(missing), lr)))
            found, _ = evaluator(jax.random.key(7), members, ())
            scores = np.asarray(found.fitness[0]).T
            named = zip(missing, scores.tolist(), strict=True)
            note(part="formulas", task=task, kind=kind, lr=lr, scores=dict(named))


def strangers():
    """The winners in a DQN that shares no code with ours, beside simple functions.

    Worlds and simple functions are those of `benchmarks.strangers`, which trained them.
    """
    agent, lr, seeds = "independent DQN, 0.0005", 5e-4, 16
    winners = json.loads(WINNERS.read_text())
    functions = [formulas.fixed("td_loss", text) for text in winners.values()]
    lines = [json.loads(x) for x in RESULTS.read_text().splitlines()]
    done = {(x["task"], x["search"]) for x in lines if x["part"] == "strangers"}
    for task in ("CartPole-v1", "Acrobot-v1", "Catch-bsuite"):
        for number, name in enumerate(winners):
            if (task, name) in done:
                continue

            def one(number, *given):
                return jax.lax.switch(number, functions, *given)

            given = {"td_loss": Partial(one, jnp.int32(number))}
            env, key = envs.make(f"gymnax/{task}"), jax.random.key(0)
            found = judge.scores("dqn", env, given, key, seeds, [lr])
            scores = {x: np.round(y[0], 3).tolist() for x, y in found._asdict().items()}
            place = {"task": task, "agent": agent, "search": name}
            note(part="strangers", **place, **scores)


def among_strangers():
    """Print the differences of `strangers` from the square and the best simple one."""
    theirs: dict[str, dict] = {}
    for x in map(json.loads, STRANGERS.read_text().splitlines()):
        if x["agent"] == "independent DQN, 0.0005" and x["artifact"] is None:
            theirs.setdefault(x["task"], {})[x["function"]] = np.array(x["lifetime"])
    for x in map(json.loads, RESULTS.read_text().splitlines()):
        if x["part"] == "strangers":
            mine, simple = np.array(x["lifetime"]), theirs[x["task"]]
            cells = [x["task"], f"search {x['search']}", f"{mine.mean():.2f}"]
            even, odd = best_by_halves(simple)
            best = np.where(np.arange(len(mine)) % 2 == 0, simple[even], simple[odd])
            for rival in (simple["square"], simple["reluctant"], best):
                cells.append(differences.paired_difference(mine, rival).text)
            print(f"| {' | '.join(cells)} |")


def speed():
    """Process time of a whole training, interleaved, 6 times each."""
    config = dqn.Config(24_000, 1_000, num_steps=4)
    loop = dqn.make(envs.make("gymnax/CartPole-v1"), config, dqn.Meta(lr=1e-3))
    for size in (8, 32, 64):
        kinds = {"square": spaces.tune(lr=spaces.log()), "programs": SPACE}
        made = {}
        for name, space in kinds.items():
            search = Search(
                loop, space, holdout.NO_STRATEGY, 1, fitness.area_under_curve
            )
            params = jax.vmap(space.init)(jax.random.split(jax.random.key(0), size))
            made[name] = LocalEvaluator(search, jax.devices()[:1]), Proposal(params)
        times = {name: [] for name in made}
        for i in range(7):
            for name, (evaluator, proposal) in made.items():
                began = time.process_time()
                evaluator(jax.random.key(i), proposal, ())
                times[name].append(time.process_time() - began)
        ratios = np.divide(times["programs"][1:], times["square"][1:])
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        note(part="speed", members=size, ratio=middle, quartiles=[low, high])


def table():
    """Print differences from the square over the lifetime, with 95 % intervals."""
    scores: dict[tuple, dict] = {}
    for line in map(json.loads, RESULTS.read_text().splitlines()):
        if line["part"] == "formulas":
            place = line["task"], line["kind"], line["lr"]
            scores.setdefault(place, {}).update(line["scores"])
    for (task, kind, lr), found in scores.items():
        found = {name: np.array(x) for name, x in found.items()}
        square = found.pop("square")
        mine = {name: x for name, x in found.items() if name.startswith("search")}
        simple = {name: x for name, x in found.items() if name not in mine}
        best = max(simple, key=lambda name: simple[name].mean())
        shown = {**mine, "reluctant": simple["reluctant"], best: simple[best]}
        cells = [f"{task}, {kind}, {lr:g}", f"{square.mean():.2f}"]
        for name, x in shown.items():
            paired = differences.paired_difference(x, square)
            cells.append(f"{name} {paired.text}")
        print(f"| {' | '.join(cells)} |")


PARTS = {
    "table": table,
    "copies": copies,
    "planted": planted,
    "formulas": of_formulas,
    "strangers": strangers,
    "among_strangers": among_strangers,
    "speed": speed,
}

if __name__ == "__main__":
    for part in sys.argv[1:]:
        PARTS[part]()
