"""Programs that evolve, from a start to formulas in an artifact; hurdles; the judge."""

import functools
import itertools
import json
import re
import shutil

import jax
import numpy as np
import pytest
import runs as files
import toys
import wandb_reader

import metaevo
from metaevo import fitness, formulas, spaces
from metaevo.cli import config
from metaevo.engine import candidates, foreign, judging, rerun
from metaevo.errors import ConfigError
from metaevo.evaluators.local import LocalEvaluator
from metaevo.storage import artifacts
from metaevo.types import Evaluated
from strategies.regularized_evolution import regularized_evolution
from strategies.snes import snes


@functools.cache
def evolution(**options):
    """A space and its strategy, the same objects each time: JAX traces them once."""
    space = spaces.replace(td_loss=formulas.expression("td_loss", length=6))
    options = {"ring": 64, "tournament": 4, "least_looks": 3, "memory": 256} | options
    return space, regularized_evolution(space, 16, **options)


def search(aim=0.5, num_generations=6, tasks=1, hurdles=(), **options):
    space, strategy = evolution(**options)
    return metaevo.Search(
        [toys.values(aim=aim)] * tasks if tasks > 1 else toys.values(aim=aim),
        space,
        strategy,
        num_generations,
        fitness.final_return,
        num_seeds=2,
        chunk_size=4,
        hurdles=hurdles,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 18 generations on the task where slow values are better."""
    directory = tmp_path_factory.mktemp("programs") / "run"
    run = metaevo.RunConfig(
        directory=str(directory), held_out_seeds=4, wandb="disabled", devices=1
    )
    return metaevo.run(search(num_generations=18), run, "programs")


def test_a_planted_effect_is_found(finished):
    """Values should come half of the way: a weight below 1 of what leads away from 0
    does it, and no step size for all."""
    runs = finished.held_out
    better = runs["solution"].fitness[0] - runs["hand-made"].fitness[0]
    assert better.mean() > 0.03
    assert (better > 0).all()


def test_the_solution_is_kept_as_its_formula(finished):
    op = finished.artifact.manifest["slots"]["td_loss"]
    assert op["op"] == "td_formula"
    assert set(op) == {"op", "text", "family"}
    (space, params) = artifacts.as_space(finished.directory)
    again = formulas.fixed("td_loss", f"{op['family']}:{op['text']}")
    given = np.float32([1.0, -2.0]), np.float32([0.5, 1.0]), np.float32([1.5, -1.0])
    now = metaevo.Context(progress=0.5, return_std=1.5)
    loss = space.bind(params, toys.LossMeta()).td_loss
    np.testing.assert_allclose(loss(*given, now), again(*given, now), rtol=1e-6)
    page = finished.report.read_text()
    (text, _) = finished.artifact.properties["td_loss"].formula
    assert text in page.replace("&gt;", ">")
    assert "Size against score" in page
    assert "Ancestors of the solution" in page


def test_the_ancestors_of_a_solution_lead_back_to_the_start():
    """And each new member behaves as none before it."""
    space, made = evolution()
    programs = space.programs
    ask, tell = jax.jit(made.ask), jax.jit(made.tell)
    # Longer is better, so that the solution has ancestors.
    told = jax.jit(
        jax.vmap(lambda x: (programs.behaviour(x), programs.length(x) * 1.0))
    )
    state = jax.jit(made.init)(jax.random.key(0))
    start = jax.tree.map(lambda x: x[0], state.params)
    seen = {np.asarray(told(state.params)[0][0]).tobytes()}
    for i in range(6):
        proposal, state = ask(jax.random.key(i), state)
        behaviour, scores = told(proposal.params)
        mine = [x.tobytes() for x in np.asarray(behaviour)]
        new = [x for x, at in zip(mine, state.asked, strict=True) if at == -1]
        assert new
        assert len({*new}) == len(new)
        assert not seen & {*new}
        assert np.zeros(64, np.float32).tobytes() not in new
        seen |= {*new}
        state = tell(jax.random.key(i), state, proposal, scores)
    front, solution = jax.jit(made.front)(state), jax.jit(made.solution)(state)
    there = np.asarray(front.born) >= 0
    count = there.sum()
    assert count > 2
    assert there[:count].all()
    assert (np.diff(front.born[:count]) <= 0).all()
    assert front.born[count - 1] == 0
    line = [jax.tree.map(lambda x, i=i: x[i], front.ancestors) for i in range(count)]
    jax.tree.map(np.testing.assert_array_equal, line[0], solution)
    jax.tree.map(np.testing.assert_array_equal, line[-1], start)
    # One or two mutations at a time, and more where a child was seen before.
    for child, parent in itertools.pairwise(line):
        assert any(
            (child["td_loss"][x] != parent["td_loss"][x]).any()
            for x in child["td_loss"]
        )


def test_formulas_of_others_enter_a_run(tmp_path, monkeypatch):
    """Once each; with the scores of their members; and resumed to the bit."""
    files.write_short_reports(monkeypatch)
    ideas = tmp_path / "ideas"
    ideas.mkdir()
    (ideas / "good.txt").write_text("gate(d*y, -0.3)")
    (ideas / "bad.txt").write_text("d/q")
    (ideas / "same.txt").write_text("0")

    def run(name, num_generations, **options):
        config = metaevo.RunConfig(
            directory=str(tmp_path / name),
            held_out_seeds=0,
            wandb="disabled",
            devices=1,
            **options,
        )
        metaevo.run(search(num_generations=num_generations), config, "programs")
        return files.records(tmp_path / name)

    records = run("run", 1, propose=str(ideas))
    tried = {x["name"]: x for x in map(json.loads, (ideas / "tried.jsonl").open())}
    assert "ratio(x, y)" in tried["bad.txt"]["error"]
    assert tried["same.txt"]["score"] == tried["same.txt"]["start"]
    # The start, eight looks, and then the files in the order of their names.
    assert tried["good.txt"]["score"] == records[0]["population"][9]
    assert tried["good.txt"]["score"] > tried["good.txt"]["start"]
    (ideas / "late.txt").write_text("tanh(d)")
    records = run("run", 3, propose=str(ideas))
    lines = list(map(json.loads, (ideas / "tried.jsonl").open()))
    assert [(x["name"], x["generation"]) for x in lines[3:]] == [("late.txt", 1)]
    # Another start of the run, before its first checkpoint, takes them as noted.
    (tmp_path / "again").mkdir()
    for part in ("manifest.json", "proposed.jsonl"):
        shutil.copy(tmp_path / "run" / part, tmp_path / "again" / part)
    assert run("again", 3) == records
    with pytest.raises(ConfigError, match="took formulas that others wrote"):
        rerun.rerun(search(), tmp_path / "run", 0, 1)
    with pytest.raises(ConfigError, match="no such folder"):
        run("no", 1, propose=str(tmp_path / "nowhere"))


def test_programs_take_a_strategy_that_mutates(tmp_path):
    made = search()
    made = made._replace(strategy=snes(made.space, 8, 0.3))
    with pytest.raises(ConfigError, match=r"snes moves numbers.*programs \(td_loss\)"):
        metaevo.run(made, metaevo.RunConfig(directory=str(tmp_path / "run")), "x")
    with pytest.raises(ConfigError, match="needs a space of programs"):
        regularized_evolution(spaces.tune(lr=spaces.log()), 8)
    for wrong, message in (
        ({"relook": 0.0}, "relook=0.0 of population_size=16 is 0 members"),
        ({"ring": 8}, "ring=8 must be at least 24"),
        ({"least_looks": 0}, "least_looks=0 must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            search(**wrong)


def test_solutions_of_several_searches_are_one_candidate(tmp_path):
    """Their formulas differ, and are trained by one program."""
    texts = "weighted: gate(d*y, -1)", "weighted: tanh(d)"
    for i, text in enumerate(texts):
        kept = formulas.td_loss(*reversed(text.split(": ")))
        space = spaces.combine(
            spaces.replace(td_loss=kept), spaces.tune(lr=spaces.log())
        )
        params = space.init(jax.random.key(0)) | {"lr": np.float32(i)}
        numbers = {"lr": 0.3 * np.exp(np.float32(i))}
        folder = tmp_path / str(i) / "solution"
        artifacts.save(folder, params, space.spec, numbers, {})
    candidate = candidates.learned([tmp_path / "0", tmp_path / "1"])
    given = np.float32([1.0, -2.0]), np.float32([0.5, 1.0]), np.float32([1.5, -1.0])
    now = metaevo.Context(progress=0.5, return_std=1.5)
    for i, (text, number) in enumerate(zip(texts, candidate.params, strict=True)):
        meta = candidate.space.bind(number, toys.LossMeta())
        expected = formulas.fixed("td_loss", text)(*given, now)
        np.testing.assert_allclose(meta.td_loss(*given, now), expected, rtol=1e-6)
        np.testing.assert_allclose(meta.lr, 0.3 * np.exp(i), rtol=1e-6)


# --- hurdles --------------------------------------------------------------------------


def test_who_is_stopped_counts_as_the_worst():
    scores = np.array(
        [[[1.0, 5.0, np.nan, 3.0]], [[np.nan, 7.0, np.nan, 4.0]]], np.float32
    )
    healthy = np.isfinite(scores)
    made = search(tasks=2, hurdles=(2.0,))
    found = fitness.with_hurdles(made, Evaluated(scores, healthy, (), [], []))
    expected = [[[1.0, 5.0, np.nan, 3.0]], [[4.0, 7.0, 4.0, 4.0]]]
    np.testing.assert_array_equal(found.fitness, expected)
    assert found.healthy[1].all()


def test_who_is_stopped_is_not_trained():
    """The others' scores are those of a search without hurdles, to the bit."""
    made = search(tasks=2)
    state, ask = (
        jax.jit(made.strategy.init)(jax.random.key(0)),
        jax.jit(made.strategy.ask),
    )
    proposal, _ = ask(jax.random.key(0), state)
    key = jax.random.key(9)
    everyone, _ = LocalEvaluator(made)(key, proposal, ())
    middle = float(np.median(everyone.fitness[0].mean(0)))
    some, _ = LocalEvaluator(made._replace(hurdles=(middle,)))(key, proposal, ())
    over = everyone.fitness[0].mean(0) >= middle
    assert 4 < over.sum() < 12
    np.testing.assert_array_equal(some.fitness[0], everyone.fitness[0])
    np.testing.assert_array_equal(
        some.fitness[1][:, over], everyone.fitness[1][:, over]
    )
    assert np.isnan(some.fitness[1][:, ~over]).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hurdles": (1.0,)}, "1 tasks have at most 0 hurdles"),
        ({"tasks": 2, "hurdles": (np.nan,)}, "expected finite scores"),
    ],
)
def test_wrong_hurdles_are_refused(wrong, message, tmp_path):
    run = metaevo.RunConfig(directory=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=message):
        metaevo.run(search(**wrong), run, "x")


# --- text in a slot -------------------------------------------------------------------


def test_a_formula_stands_in_a_slot():
    from inner_loops import dqn

    def make(meta: dqn.Meta = dqn.Meta()):
        return meta

    def given(text):
        parsed = config.parse(make, [f"meta.td_loss={text}"])
        return config.call(make, {"meta": parsed["meta"]}).td_loss

    now = metaevo.Context(return_std=2.0)
    loss = given("formula:0.5*d**2 + 0.1*q")
    np.testing.assert_allclose(loss(3.0, 1.0, 4.0, now), 4.5 + 0.2, rtol=1e-6)
    loss = given("formula:weighted: gate(d*y, -0.5)")
    w = 8 ** np.tanh(-0.5)
    np.testing.assert_allclose(loss(3.0, 1.0, 4.0, now), w * 4.5, rtol=1e-6)
    with pytest.raises(ConfigError, match=r"meta.td_loss=formula:d/q.*ratio\(x, y\)"):
        given("formula:d/q")


# --- the judge ------------------------------------------------------------------------

CODE = "def td_loss(td_error, q, target, context=None):\n    return {}\n"
TRAPS = {
    "loop": ("while True: pass", "took longer than 2 s"),
    "writes": ("open('/tmp/x.py', 'w')", "opens a file"),
    "net": ("import socket; socket.create_connection(('h', 1))", "connection"),
    "fork": ("import os; os.system('true')", "starts a process"),
    "catches": (
        "try: open('/etc/hostname').read()\nexcept BaseException: pass",
        "opens a file",
    ),
    "ctypes": (
        "import sys, ctypes\n"
        "sys.modules['metaevo.engine.foreign']._HARMLESS = ('',)\n"
        "ctypes.CDLL(None).system(b'true')",
        "ctypes",
    ),
    "answers": (
        "import os; os.write(3, b'\\n' + b'[' * 200000); os._exit(0)",
        "ended without an answer",
    ),
    "memory": ("x = bytearray(10**11)", "of memory"),
    "raises": ("1 / 0", "ZeroDivisionError"),
}
WRONG = {
    "clock": (
        "import time\n" + CODE.format("time.time() * td_error**2"),
        "two traces of it differ",
    ),
    "shape": (CODE.format("(td_error**2).mean()"), r"gives shape \[\]"),
    "missing": ("x = 1", "defines no function td_loss"),
    "syntax": ("def td_loss(:", "invalid syntax"),
}


@pytest.mark.parametrize("name", TRAPS)
def test_code_that_does_more_than_it_may_is_refused(name, tmp_path):
    source, why = TRAPS[name]
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    limits = foreign.Allowance(seconds=2.0 if name == "loop" else 60.0, megabytes=256)
    with pytest.raises(foreign.RefusedError, match=why):
        foreign.traced(path, "td_loss", ("return_std",), limits)


@pytest.mark.parametrize("name", WRONG)
def test_code_that_is_no_function_of_its_inputs_is_refused(name, monkeypatch):
    """As the child answers; the code does nothing that it may not."""
    monkeypatch.setattr(foreign, "_close", lambda megabytes, out: None)
    source, why = WRONG[name]
    task = {"source": source, "slot": "td_loss", "reads": ["return_std"]}
    try:
        said = foreign._answer(task | {"megabytes": 256}, 1)["error"]
    except (ValueError, SyntaxError) as error:
        said = str(error)
    assert re.search(why, said)


def test_candidates_are_judged_beside_their_rivals(tmp_path):
    """A sign error is worse, a half-way weight better; copies are not trained."""
    given = {
        "slow.txt": "weighted: gate(d*y, -2)",
        "sign.txt": "-0.5*d**2",
        "square.txt": "3*d**2",
        "constant.txt": "y**2",
        "huge.txt": "1000000*(1000*d)**2",
        "wrong.txt": "d/q",
        "code.py": CODE.format("0.5 * td_error**2 + 0.05 * q"),
    }
    for name, text in given.items():
        (tmp_path / name).write_text(text)
    made = search(aim=0.4)
    read = [
        judging.read(tmp_path / name, "td_loss", ("return_std",), True)
        for name in given
    ]
    evaluators = []

    def make(search):
        evaluators.append(LocalEvaluator(search))
        return evaluators[-1]

    records = list(judging.judged(made, read, 4, tmp_path / "looks", make))
    by_name = {record["name"]: record for record in records}
    assert {name: x["stage"] for name, x in by_name.items()} == {
        "slow.txt": "judged",
        "sign.txt": "judged",
        "square.txt": "known",
        "constant.txt": "refused",
        "huge.txt": "refused",
        "wrong.txt": "refused",
        "code.py": "known",
    }
    assert by_name["square.txt"]["same_as"] == "hand-made"
    assert by_name["code.py"]["same_as"] == "DQNReg"
    assert by_name["sign.txt"]["verdict"] == "worse"
    assert by_name["slow.txt"]["mean"] > by_name["square.txt"]["mean"]
    assert by_name["huge.txt"]["lower"] == judging.FAILED
    assert records[0]["name"] == "slow.txt"
    # Finished looks are read, and nothing is trained again.
    again = list(judging.judged(made, read, 4, tmp_path / "looks", make))
    assert json.dumps(again) == json.dumps(records)
    assert not evaluators[-1].programs


def test_code_needs_leave(tmp_path):
    (tmp_path / "a.py").write_text(CODE.format("td_error"))
    found = judging.read(tmp_path / "a.py", "td_loss", (), False)
    assert "allow_code=true" in (found.error or "")


def test_the_scores_of_a_judge_are_rows_in_wandb(tmp_path):
    from metaevo.engine.loggers.wandb import WandbLogger

    records = [
        {"name": "a.txt", "stage": "judged", "lower": 0.5, "interval": [0.1, 0.9]},
        {"name": "b.py", "stage": "refused", "lower": -1e9},
    ]
    logger = WandbLogger(tmp_path, "offline", "judge", {"looks": 2}, ("td_loss",))
    logger.table("judge", records)
    logger.close()
    assert logger.complete
    logger.wandb.teardown()  # its service writes late
    (row,), config, _, _ = wandb_reader.read(tmp_path)
    assert config["looks"] == 2
    (kept,) = tmp_path.glob(f"wandb/offline-run-*/files/{row['judge.path']}")
    told = json.loads(kept.read_text())
    assert told["columns"] == list(records[0])
    assert [x[:3] for x in told["data"]] == [list(r.values())[:3] for r in records]


def test_a_judge_needs_a_slot_of_formulas():
    made = search()._replace(space=spaces.tune(lr=spaces.log()))
    with pytest.raises(ConfigError, match="a judge needs one slot of td_loss"):
        judging.slot_of(made)
