"""The commands of `metaevo`: their help, and the functions that run them.

A function takes the words that follow its command. Its parameters say how many there
may be. What is expensive to import is imported inside the functions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.cli import config, docstrings, listing, resolve, runs
from metaevo.cli.options import (
    CompareOptions,
    DistillOptions,
    ExportOptions,
    JudgeOptions,
    PlayOptions,
    RerunOptions,
    ResumeOptions,
    RunsOptions,
    ScoresOptions,
    TrialsOptions,
    TuneOptions,
    WatchOptions,
)
from metaevo.cli.signals import STOPPING, on_signals
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage._files import replace_file
from metaevo.storage.history import generations_asked, generations_done
from metaevo.storage.run_directory import check_writable, read_manifest


class Command(NamedTuple):
    """One command of `metaevo`.

    Attributes:
        run: Runs the command; takes the words that follow it. Its docstring is the
            help of the command.
        arguments: These words, as the usage line shows them.
        example: A command line.
        options: Dataclass of its `key=value` arguments, which its docstring describes;
            None if there are none.
    """

    run: Callable[..., None]
    arguments: str
    example: str
    options: Any = None


def execute(name: str, arguments: Sequence[str]) -> None:
    """Run a command.

    Raises:
        ConfigError: The arguments are too few or too many, or one is wrong.
    """
    run, wanted, *_ = COMMANDS[name]
    try:
        inspect.signature(run).bind(*arguments)
    except TypeError:
        raise _unexpected(name, arguments) from None
    # KEY=VALUE in the place of a name that was forgotten.
    first = [] if wanted.startswith("[") else arguments[:1]
    if any("=" in x and not x.startswith("-") and not Path(x).exists() for x in first):
        raise _unexpected(name, arguments)
    run(*arguments)


def usage() -> str:
    """Return a line per command, and an example of each."""
    width = max(len(f"{name} {c.arguments}") for name, c in COMMANDS.items())
    lines = [
        f"  metaevo {name + ' ' + c.arguments:{width}}  {docstrings.summary(c.run)}"
        for name, c in COMMANDS.items()
    ]
    lines += ["", "`metaevo COMMAND --help` says more. Examples:"]
    lines += [f"  {c.example}" for c in COMMANDS.values()]
    return "\n".join(["usage:", *lines])


def command_help(name: str) -> str:
    """Return the usage of one command, its options with their defaults, an example."""
    command = COMMANDS[name]
    about = docstrings.prose(command.run)
    parts = [f"usage: metaevo {name} {command.arguments}", "", about, ""]
    if command.options is not None:
        described = docstrings.descriptions(command.options)
        defaults = {f.name: f.default for f in dataclasses.fields(command.options)}
        parts.append("options (key=value):")
        for key, assignment in zip(defaults, config.assignments(defaults), strict=True):
            parts.append(f"  {assignment:15}  {docstrings.sentence(described[key])}")
        parts.append("")
    return "\n".join([*parts, f"example: {command.example}"])


# --- searches and their runs ----------------------------------------------------------


def _list(word: str | None = None) -> None:
    """List what there is to search with, or describe one thing.

    KIND: searches, algorithms, strategies, spaces, functions (those that evolve),
    fitnesses, environments, presets or zoo, the results that are installed with
    metaevo. NAME: any of them or a slot, such as ppo, weighted_square, td_loss
    or gymnax/CartPole-v1. Files in the current folder's searches/, inner_loops/
    and strategies/ are listed beside the installed ones.
    """
    from metaevo.cli import details

    listing.import_from_here()
    if word is None:
        print(listing.overview())
    else:
        print(listing.text(word) if word in listing.KINDS else details.text(word))


def _run(name: str, *arguments: str) -> None:
    """Run a search.

    NAME: one that `metaevo list searches` lists, a file FILE.py with a function
    `search`, or package.module:FUNCTION. `metaevo run NAME --help` lists its
    keys; --cfg, --cfg-diff and --dry-run start nothing.
    """
    made = resolve.function(name, "searches")
    from metaevo.cli.program import main

    main(made, arguments)


def _new(kind: str, name: str) -> None:
    """Write a file that runs, to be changed.

    KIND: search, loss, strategy or loop, in searches/, strategies/ or
    inner_loops/ of the current folder; or env, an environment, in the folder
    itself. An existing file is never overwritten.
    """
    from metaevo.cli import new

    print("\n".join(new.write(kind, name)))


def _train(name: str, *arguments: str) -> None:
    """Train agents of an algorithm as it is.

    NAME: one that `metaevo list algorithms` lists, a file FILE.py with a
    function `make`, or package.module:FUNCTION. `metaevo train NAME --help`
    lists its keys. The learning curve, with its interval over seeds, and the
    trained agents are kept in the run's directory.
    """
    make = resolve.function(name, "inner_loops")
    from metaevo.cli.program import train_main

    train_main(make, arguments)


def _tune(name: str, *arguments: str) -> None:
    """Tune an algorithm's numbers on an environment.

    From its own numbers, with a verdict against them on seeds that the search
    did not see. NAME: as of `metaevo train`. `metaevo tune NAME --help` lists its
    other keys. Prints a preset, which metaevo train takes, and a call of
    Stable-Baselines3.
    """
    make = resolve.function(name, "inner_loops")
    from metaevo.cli import tune

    tune.main(make, arguments)


def _resume(directory: str, *arguments: str) -> None:
    """Continue a run, RUN its directory.

    With the settings it was started with, to the largest num_generations asked
    for since it last finished; a larger one extends it.
    """
    words = [word for word in arguments if word.startswith("trust=")]
    run = runs.opened(directory, config.parse_options(ResumeOptions, words).trust)
    given = runs.arguments(run)
    if "num_generations" in run.manifest["identity"]["settings"]:
        # An extension that was interrupted is not in the manifest.
        asked = generations_asked(directory) or 0
        given.append(f"num_generations={max(asked, generations_done(directory))}")
    given += [x for x in arguments if x not in words]
    with runs.importing(run), runs.as_data(run):
        from metaevo.cli.program import main

        main(runs.function(run), given)


def _report(directory: str) -> None:
    """Write the report of a run again.

    From the run's files alone, to RUN/report/index.html. The run need not have
    finished.
    """
    read_manifest(directory)
    from metaevo.analysis import report

    with runs.reading(directory):
        print(report.write(directory))


def _runs(*words: str) -> None:
    """Show the runs in folders: state, cost and verdict.

    The newest first. Two to six runs that are named are set beside each other: the
    settings in which they differ follow. Without a folder, those in runs/.
    """
    from metaevo.cli import overview

    folders, chosen = _places(RunsOptions, words)
    print(overview.overview(folders, chosen.limit, chosen.page))


def _watch(*words: str) -> None:
    """Show runs while they go on, on a page and here.

    The page renews itself: curve, functions so far, population, trials, time
    left. Ends when all runs have, or by Ctrl-C, which stops no run. Without a
    folder, those in runs/.
    """
    from metaevo.cli import watch

    folders, chosen = _places(WatchOptions, words)
    watch.watch(folders, chosen.page, chosen.every)


def _places(options: type, words: Sequence[str]) -> tuple[list[str], Any]:
    """Tell folders, by default runs/, from options."""
    given = [x for x in words if "=" in x and not Path(x).exists()]
    folders = [x for x in words if x not in given]
    return folders or ["runs"], config.parse_options(options, given)


def _trials(directory: str, *arguments: str) -> None:
    """Show which numbers a run tried, and what they scored.

    Best first. Newborn members with equal numbers are one trial, with the
    standard error over its scores; agents that live on are one each. The run
    need not have finished.
    """
    chosen = config.parse_options(TrialsOptions, arguments)
    read_manifest(directory)
    from metaevo.analysis import training_curve, trials

    with runs.reading(directory):
        records = training_curve.records(directory)
        found = trials.trials(records)
    if not found and not records:
        raise ConfigError(f"{directory}: no generation is logged yet")
    if not found:
        raise ConfigError(
            f"{directory}: a run in which no numbers evolve has no trials; "
            "see metaevo report"
        )
    write = trials.csv if chosen.to == "csv" else trials.table
    print(write(found, chosen.limit or len(found)))


def _scores(path: str, *arguments: str) -> None:
    """Show the scores of a comparison by seed.

    Of a run on held-out seeds, in an independent agent and on fresh episodes;
    of an artifact, on held-out seeds; of the folder of metaevo compare. Csv has
    a line per candidate, task, measure and seed.
    """
    chosen = config.parse_options(ScoresOptions, arguments)
    from metaevo.analysis import score_tables

    with runs.reading(path):
        rows = score_tables.read(path)
        written = score_tables.FORMATS[chosen.to](rows).rstrip("\n")
    if chosen.out is None:
        print(written)
        return
    out = Path(chosen.out)
    check_writable("out", out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, f"{written}\n".encode())
    print(out)


def _play(directory: str, *arguments: str) -> None:
    """Play a trained agent, as a GIF.

    The agents are those of a training run, or of the comparison on held-out
    seeds; best is that of a population whose agents live on.
    """
    chosen = config.parse_options(PlayOptions, arguments)
    run = runs.opened(directory, chosen.trust)
    from metaevo.engine import play
    from metaevo.evaluators.devices import configure

    configure()
    with runs.as_data(run):
        path, steps, total = play.play(
            lambda: runs.remade(run), directory, chosen.agent, chosen.seed, chosen.out
        )
    print(f"{path}: {steps} steps, return {total:g}")


def _rerun(directory: str, *arguments: str) -> None:
    """Train one member of a former generation again.

    To the bit, from the run's checkpoints and log, and compares its fitness
    with the logged one. Of a member that failed it names the segment, and the
    operation that made the first number that is not finite. segment=K trains
    segment K once more without jit, so that breakpoint() in your code stops
    with numbers.
    """
    chosen = config.parse_options(RerunOptions, arguments)
    run = runs.opened(directory, chosen.trust)
    runs.check_start(run)
    from metaevo.cli import rerun
    from metaevo.evaluators.devices import configure

    configure()
    with runs.as_data(run):
        rerun.rerun(runs.remade(run), directory, chosen)


def _compare(first: str, *rest: str) -> None:
    """Compare what runs found on fresh seeds.

    With the hand-made algorithm, the tuned one and random ones. Runs that differ
    in their seed alone count as one candidate. A directory of run.seeds=N stands
    for its runs. A comparison that was stopped continues when it is started
    again.
    """
    from metaevo.cli import several

    directories = [
        run
        for word in (first, *rest)
        if "=" not in word
        for run in several.expanded(word)
    ]
    on = [word.removeprefix("on=") for word in rest if word.startswith("on=")]
    others = [word for word in rest if "=" in word and not word.startswith("on=")]
    chosen = config.parse_options(CompareOptions, others)
    out = chosen.out or str(Path(first) / "compare")
    chosen = dataclasses.replace(chosen, on=tuple(on), out=out)
    opened = {Path(x): runs.finished(x, chosen.trust) for x in directories}
    from metaevo.engine import compare
    from metaevo.evaluators.devices import configure

    stop = on_signals(STOPPING)
    configure()
    made = {x: functools.partial(runs.remade, run) for x, run in opened.items()}
    with contextlib.ExitStack() as stack:
        for run in opened.values():
            stack.enter_context(runs.as_data(run))
        found = compare.of_runs(made, out, stop.is_set, **chosen.comparison)
    print("\n".join([*found.sentences, f"comparison: {found.page}"]))


def _judge(*words: str) -> None:
    """Score formulas, or code, beside the rivals of a search.

    FILE: a formula in any file, such as 0.5*d**2 + 0.1*q, or with
    allow_code=true Python code that defines the slot's function; a folder
    stands for its .txt and .py files. Prints a line of JSON for each, the best
    first. Keys of the search, such as env=, may follow. The same call goes on
    where it was stopped.
    """
    from metaevo.cli import judge

    judge.judge(words, on_signals(STOPPING).is_set)


def _distill(directory: str, *arguments: str) -> None:
    """Fit formulas to a run's result and test them.

    Trains agents with the result and with its closed form, on the same fresh
    seeds. The closed form is kept in RUN/closed_form if its mean stays within
    the original's 95 % interval.
    """
    chosen = config.parse_options(DistillOptions, arguments)
    run = runs.finished(directory, chosen.trust)
    from metaevo.analysis import distill, report
    from metaevo.evaluators.devices import configure

    stop = on_signals(STOPPING)
    configure()
    import jax

    with runs.as_data(run):
        lines = distill.distill(
            runs.remade(run),
            Path(directory),
            chosen.seeds,
            chosen.seed,
            jax.devices(),
            print,
            stop.is_set,
            chosen.margin,
        )
    print("\n".join([*lines, f"report: {report.write(directory)}"]))


def _export(path: str, *arguments: str) -> None:
    """Write a result as one file for another framework.

    Source code for PyTorch, JAX or numpy that needs nothing else, a
    .stablehlo of jax.export, or an .onnx. A learned optimizer becomes a
    torch.optim.Optimizer.
    """
    chosen = config.parse_options(ExportOptions, arguments)
    from metaevo.export import files

    print(files.write(path, chosen.to, chosen.out, chosen.slot))


# --- files and machines ---------------------------------------------------------------


def _verify(path: str) -> None:
    """Check that files are whole.

    Reads all of them and changes nothing. Exit code 4 if something is lost; the
    loss of an older checkpoint does not count.
    """
    from metaevo.cli import findings, verify

    with runs.reading(path):
        found = verify.verify(path)
    print(findings.text(found, "whole", "not whole"))
    if findings.failures(found):
        raise CheckpointError(f"{path} is not whole")
    print(verify.described(path), end="")


def _doctor(directory: str = ".") -> None:
    """Check that this machine can run searches.

    Devices, memory, disk, locks, renames, cache, wandb; for runs in DIRECTORY.
    Exit code 2 if something is wrong.
    """
    from metaevo.cli import doctor, findings

    found = list(doctor.examine(directory))
    print(findings.text(found, "ready", "problems"))
    if findings.failures(found):
        raise ConfigError("searches may fail here, or be lost; see above")


def _completion(shell: str) -> None:
    """Print what makes a shell complete metaevo's command lines.

    SHELL: bash, zsh or fish. For bash and zsh add to ~/.bashrc or ~/.zshrc:
    eval "$(metaevo completion bash)". For fish: metaevo completion fish >
    ~/.config/fish/completions/metaevo.fish
    """
    from metaevo.cli import shells

    if shell not in shells.SCRIPTS:
        raise _unexpected("completion", [shell])
    print(shells.script(shell))


def _push(directory: str, mode: str = "online") -> None:
    """Send a run to wandb again, from its files.

    From the first generation, as a new wandb run.
    """
    if mode not in ("online", "offline"):
        raise _unexpected("wandb-push", [directory, mode])
    read_manifest(directory)
    from metaevo.engine.loggers import wandb_push

    with runs.reading(directory):
        pushed = wandb_push.push(directory, mode)
    if mode == "online":
        print(f"{pushed.generations} generations sent; the server has them")
    else:
        print(f"{pushed.generations} generations written: wandb sync {pushed.folder}")


def _unexpected(name: str, arguments: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{' '.join([name, *arguments])!r}: expected {name} "
        f"{COMMANDS[name].arguments}; metaevo {name} --help"
    )


COMMANDS = {
    "list": Command(
        _list,
        "[KIND|NAME]",
        "metaevo list algorithms",
    ),
    "new": Command(
        _new,
        "KIND NAME",
        "metaevo new search my_search",
    ),
    "run": Command(
        _run,
        "NAME key=value ...",
        "metaevo run ppo_value_loss num_generations=20 run.seed=1",
    ),
    "train": Command(
        _train,
        "NAME key=value ...",
        "metaevo train ppo env=gymnax/Acrobot-v1 run.stop='return>=-100'",
    ),
    "tune": Command(
        _tune,
        "NAME key=value ...",
        "metaevo tune ppo env=gymnax/Acrobot-v1 minutes=4",
        TuneOptions,
    ),
    "resume": Command(
        _resume,
        "RUN key=value ...",
        "metaevo resume runs/demo num_generations=40",
        ResumeOptions,
    ),
    "rerun": Command(
        _rerun,
        "RUN key=value ...",
        "metaevo rerun runs/demo generation=7 member=3",
        RerunOptions,
    ),
    "report": Command(
        _report,
        "RUN",
        "metaevo report runs/demo",
    ),
    "runs": Command(
        _runs,
        "[DIRECTORY ...] key=value ...",
        "metaevo runs runs page=runs.html",
        RunsOptions,
    ),
    "watch": Command(
        _watch,
        "[RUN ...] key=value ...",
        "metaevo watch runs/demo",
        WatchOptions,
    ),
    "trials": Command(
        _trials,
        "RUN key=value ...",
        "metaevo trials runs/demo to=csv > trials.csv",
        TrialsOptions,
    ),
    "scores": Command(
        _scores,
        "RUN|ARTIFACT key=value ...",
        "metaevo scores runs/demo to=csv out=scores.csv",
        ScoresOptions,
    ),
    "play": Command(
        _play,
        "RUN key=value ...",
        "metaevo play runs/demo agent=hand-made seed=3",
        PlayOptions,
    ),
    "compare": Command(
        _compare,
        "RUN ... key=value ...",
        "metaevo compare runs/a runs/b on=env=gymnax/Acrobot-v1",
        CompareOptions,
    ),
    "judge": Command(
        _judge,
        "FILE ... key=value ...",
        "metaevo judge losses/ search=dqn_td_program looks=8",
        JudgeOptions,
    ),
    "distill": Command(
        _distill,
        "RUN key=value ...",
        "metaevo distill runs/loss",
        DistillOptions,
    ),
    "export": Command(
        _export,
        "RUN|ARTIFACT key=value ...",
        "metaevo export runs/loss to=torch out=value_loss.py",
        ExportOptions,
    ),
    "verify": Command(
        _verify,
        "RUN|ARTIFACT",
        "metaevo verify runs/demo",
    ),
    "doctor": Command(
        _doctor,
        "[DIRECTORY]",
        "metaevo doctor runs",
    ),
    "completion": Command(
        _completion,
        "bash|zsh|fish",
        "metaevo completion bash > ~/.metaevo-completion",
    ),
    "wandb-push": Command(
        _push,
        "RUN [online|offline]",
        "metaevo wandb-push runs/demo",
    ),
}
