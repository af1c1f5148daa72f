"""Makes docs/log/performance.md, its figure and docs/log/algorithms.md.

    python -m benchmarks.tables

No figure is written by hand: what was not measured is listed as such.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.stats

from benchmarks.measure import RESULTS
from metaevo.analysis import stats

DOCS = Path(__file__).parents[1] / "docs"

# What an empty result leaves unsaid, by file.
EXPECTED = {
    "throughput_cartpole": "PPO on CartPole",
    "profile": "where a frame of PPO goes",
    "throughput_breakout": "PPO on MinAtar Breakout",
    "throughput_dqn": "DQN, learning every 4th step",
    "throughput_offpolicy": "DQN, TD3 and SAC, learning every step",
    "throughput_pqn": "PQN",
    "throughput_a2c": "A2C",
    "throughput_impala": "IMPALA, actors four updates behind",
    "throughput_brax": "PPO on brax",
    "peers": "rejax and stable-baselines3",
    "generation": "a generation's overhead",
    "startup": "start-up by part, in CPU seconds",
    "memory": "memory",
    "update_step": "one update of a population",
    "canaries": "canaries",
}

HEAD = """# Performance

Made by `python -m benchmarks.tables` from `benchmarks/results`; every line there holds
its command, device, versions, flags and load. Medians, with the least and the most in
brackets. On a shared machine only ratios carry over: variants ran in turns, and a ratio
is the median of the turns' own. *Share of GEMM* is the arithmetic done over numpy's
matrix product on all cores, measured in the same turns. Beside ratios of the clock on
the wall are those of CPU time, which other programs on the machine disturb less.

The references are short programs, `benchmarks/reference_*.py`, written as one would
write a single agent and put under `jit(vmap)`; *sharded* ones use all devices, which
few users of such programs do. Against a sharded one PPO gains little, for most of its
time goes into the same gradient steps: see *where a frame of PPO goes*.

To repeat it: the commands below, each with its duration in its file's first lines, or
`make bench` and `make bench-rest`; on a GPU `make bench-gpu`, see
[the runbook](../../benchmarks/gpu.md).
"""


def number(x: float) -> str:
    if abs(x) >= 1e9:
        return f"{x / 1e9:,.3g} G"
    if abs(x) >= 1000:
        return f"{x:,.0f}"
    return f"{x:.3g}"


def cell(value) -> str:
    if isinstance(value, dict) and "median" in value:
        low, high = number(value["min"]), number(value["max"])
        return f"{number(value['median'])} ({low} to {high})"
    if isinstance(value, dict):
        return ", ".join(f"{k} {cell(v)}" for k, v in value.items())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return number(value)


HIDDEN = {"date", "device", "num_devices", "machine", "cores", "load", "python"}
HIDDEN |= {"versions", "flags", "command", "repeats", "figure", "devices"}


def table(rows: list[dict], hidden: set[str]) -> str:
    columns = list(dict.fromkeys(k for row in rows for k in row if k not in hidden))
    lines = [columns, ["---"] * len(columns)]
    lines += [[cell(row.get(c, "")) for c in columns] for row in rows]
    return "\n".join("| " + " | ".join(line).replace("_", " ") + " |" for line in lines)


def section(path: Path, title: str) -> str:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    last = rows[-1]
    versions = ", ".join(f"{k} {v}" for k, v in last["versions"].items())
    loads = [row["load"][0] for row in rows]
    devices = sorted({row["device"] for row in rows})
    said = (
        f"`{last['command']}` on {last['num_devices']} x {' and '.join(devices)} "
        f"({last['machine']}, {last['cores']} cores), {last['date'][:10]}, load "
        f"{min(loads):.1f} to {max(loads):.1f}; {versions}; flags `{last['flags']}`."
    )
    repeats = {row["repeats"] for row in rows if "repeats" in row}
    if repeats:
        said += f" Rounds: {', '.join(map(str, sorted(repeats)))}."
    parts = {row.get("part") for row in rows}
    hidden = HIDDEN | ({"part"} if len(parts) == 1 else set())
    hidden -= {"device"} if len(devices) > 1 else set()
    groups: dict[tuple | str, list] = {}
    for row in rows:
        kind = row.get("figure") or tuple(k for k in row if k not in hidden)
        groups.setdefault(kind, []).append(row)
    tables = [table(rows, hidden) for rows in groups.values()]
    return "\n\n".join([f"### {title}", said, *tables])


def draw(results: Path) -> bool:
    """The figure of the benchmarks, speed beside scores; False if nothing was run."""
    files = {x: results / f"{x}.jsonl" for x in (*EXPECTED, "algorithms")}
    rows = {
        name: [json.loads(line) for line in path.read_text().splitlines()]
        for name, path in files.items()
        if path.exists()
    }
    if "throughput_cartpole" not in rows:
        return False
    from matplotlib.figure import Figure

    trained = {row["row"] for row in rows.get("algorithms", ())}
    tasks = ("CartPole", "Acrobot", "Pendulum")
    tasks = tasks if all(f"ppo-{task}" in trained for task in tasks) else ()
    height = 6.4 if tasks else 3.2
    figure = Figure(figsize=(11, height), layout="constrained")
    places = [["speed", "ratio"]]
    if tasks:
        left = ("speed", "ratio", "ratio")
        places = [[*row] for row in zip(left, tasks, strict=True)]
    panels = figure.subplot_mosaic(places)
    _speeds(panels["speed"], rows["throughput_cartpole"])
    _ratios(panels["ratio"], [x for found in rows.values() for x in found])
    for task in tasks:
        _scores(panels[task], task, rows["algorithms"])
    figure.savefig(DOCS / "images" / f"bench_{results.name}.png", dpi=110)
    return True


def _ends(found: list[dict]) -> list[list[float]]:
    """Return the distances of the least and the most from the medians."""
    return [[abs(x["median"] - x[end]) for x in found] for end in ("min", "max")]


def _speeds(panel, rows: list[dict]) -> None:
    """Draw PPO's frames per second by population."""
    rows = [row for row in rows if row["figure"] == "speed"]
    rows = sorted(rows, key=lambda row: row["population"])
    for name in dict.fromkeys(row["variant"] for row in rows):
        points = {x["population"]: x for x in rows if x["variant"] == name}
        rates = [x["frames_per_second"] for x in points.values()]
        middle = [x["median"] for x in rates]
        panel.errorbar(
            [*points], middle, _ends(rates), marker="o", capsize=3, label=name
        )
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set(ylim=0, xlabel="members", ylabel="frames per second")
    panel.set_title("PPO on CartPole")
    panel.legend(frameon=False)


def _ratios(panel, rows: list[dict]) -> None:
    """Draw how many times as fast as others training is, by the clock on the wall."""
    rows = [row for row in rows if "against" in row]
    tasks = [x["part"].replace("peers", "cartpole") for x in rows]
    names = [
        f"{task}, {x['population']} / {x['against']}"
        for task, x in zip(tasks, rows, strict=True)
    ]
    found = [row["wall"] for row in rows]
    middle = [x["median"] for x in found]
    panel.errorbar(middle, names, xerr=_ends(found), fmt="o", capsize=2, ms=4)
    panel.axvline(1, color="grey", lw=0.8)
    panel.set_xscale("log")
    panel.set_xticks([0.5, 1, 2, 5, 10, 20], [0.5, 1, 2, 5, 10, 20])
    panel.tick_params(axis="y", labelsize=7)
    panel.invert_yaxis()
    panel.set_title("times as fast as another: task, members / the other")


def _scores(panel, task: str, lines: list[dict]) -> None:
    """Draw returns of each agent on a task, beside the published ones."""
    from benchmarks.algorithms import ROWS

    known = {line["row"]: line for line in lines}
    wanted = [x for x, row in ROWS.items() if row.published and x.endswith(f"-{task}")]
    for name in filter(known.get, wanted):
        line, label = known[name], ROWS[name].name
        published = float(ROWS[name].published.split()[0])
        panel.plot(line["each"], [label] * len(line["each"]), ".", color="#8a8a8a")
        panel.plot(line["return"], label, "o", color="#0072B2")
        panel.plot(published, label, "x", color="#D55E00")
    panel.margins(y=0.3)
    panel.set_title(f"return on {task}")
    if task == "CartPole":
        panel.legend(("each agent", "mean", "published"), frameon=False)


ALGORITHMS = """# Algorithms on standard tasks

Made by `python -m benchmarks.tables` from `benchmarks/results/*/algorithms.jsonl`,
which `python -m benchmarks.algorithms` writes. A row is what this command trains:

```console
$ metaevo train ALGORITHM env=ENVIRONMENT ARGUMENTS num_seeds=8
```

`preset=NAME` is one of `metaevo/presets/ALGORITHM/`; `metaevo train ALGORITHM --help`
lists them. *Return* is that of the deterministic policy on fresh episodes after
training: the mean over agents, with its 95 % interval, which [allows for agents that
fail rarely](../report.md#the-verdicts). *Seconds* are those of all agents of a row,
compilation included, beside other work on the same machine.

*Beside* is a published figure, whose networks, seeds and evaluation differ, or the
difference from another row with its 95 % interval (Welch's); where that row has other
frames, they are named. MinAtar is gymnax's, which ends episodes after 1,000 steps.
"""


SHORT = """## Rows that fall short

* **IMPALA and A2C on Breakout** learn from each frame once. So does PPO with one epoch,
  and it ends where they do, whether in eight minibatches or in one: its four epochs are
  what it has more. Beyond that, 32 games in place of 8 leave IMPALA a fourth of the
  updates, and nearly nothing. No delay, a smaller step size, Adam, a higher norm, a
  shorter trace, or 4 games of 10 steps do not help it; a larger entropy bonus does, a
  little. Many of these agents have the same returns one by one: they hit five or six
  bricks by the same moves, and then miss.
* **GORILA on Breakout** is as good as DQN with DQN's step size. With a fifth of it,
  its default, it is at half of that, and minibatches of 64 do not make up for it.
* **GORILA on CartPole** was asked for 480. [Loops](loops.md) has what was tried.
* **Ape-X and R2D2 on CartPole** are below DQN, with intervals that hold 0. On Breakout
  both do as well as DQN.
* **PPO on the inverted pendulum.** Two of eight agents once failed
  ([Loops](loops.md)). None of this page does, with either discount, so the discount is
  not the cause.
* **SAC on Acrobot** has a tenth of DQN's frames.

Rows of Breakout that ran before `preset=minatar` had GORILA's step size and IMPALA's
eight games name their arguments as they would be given now.
"""


def algorithms(paths: Sequence[Path]) -> str:
    """The page of the algorithms' scores; of a row in several files the first holds."""
    from benchmarks.algorithms import ROWS

    found: dict[str, dict] = {}
    for path in paths:
        for row in map(json.loads, path.read_text().splitlines()):
            found.setdefault(row["row"], row)
    order = [name for name in ROWS if name in found]
    rows = [found[name] for name in sorted(order, key=lambda x: ROWS[x].env)]
    shown = [
        {
            "algorithm": ROWS[row["row"]].name,
            "environment": row["env"],
            "frames": row["frames"],
            "arguments": " ".join(f"`{x}`" for x in ROWS[row["row"]].arguments),
            "return": _mean(row["each"])
            + (f", {row['failed']} failed" if row["failed"] else ""),
            "each agent": ", ".join(f"{x:.0f}" for x in sorted(row["each"])),
            "seconds": f"{row['seconds']:,.0f}" + ("" if _on_cpu(row) else " (GPU)"),
            "beside": _beside(ROWS[row["row"]], row, found),
        }
        for row in rows
    ]
    where = " ".join(
        _machine([row for row in rows if _on_cpu(row) == cpu])
        for cpu in sorted({_on_cpu(row) for row in rows}, reverse=True)
    )
    lines = [list(shown[0]), ["---"] * len(shown[0])]
    lines += [
        [f"{x:,}" if isinstance(x, int) else str(x) for x in r.values()] for r in shown
    ]
    rest = [name for name in ROWS if name not in found]
    missing = [f"Not run yet: {', '.join(rest)}."] if rest else []
    drawn = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    parts = [ALGORITHMS.rstrip(), drawn, where, *missing, SHORT.rstrip()]
    return "\n\n".join(parts) + "\n"


def _on_cpu(row: dict) -> bool:
    return row["device"] == "cpu"


def _machine(rows: list[dict]) -> str:
    """Return a sentence: where, by which versions and when rows were trained."""
    dates = sorted(row["date"][:10] for row in rows)
    last, loads = rows[-1], [row["load"][0] for row in rows]
    return (
        f"On {last['num_devices']} x {last['device']} ({last['machine']}), jax "
        f"{last['versions']['jax']}, {dates[0]} to {dates[-1]}; load "
        f"{min(loads):.0f} to {max(loads):.0f}."
    )


def _mean(scores: list[float]) -> str:
    """A mean with its interval, or how many scores are equal."""
    found = stats.mean_interval(np.array(scores))
    if found.num_equal:
        return f"{found.estimate:.1f} (all {found.num_equal})"
    return f"{found.estimate:.1f} [{found.low:.1f}, {found.high:.1f}]"


def _beside(row, line: dict, found: dict[str, dict]) -> str:
    """Return what a row's figure is compared with, in words."""
    if row.published:
        return f"{row.published} ({row.source})"
    other = found.get(row.beside)
    if other is None:
        return "none found"
    name = row.beside.partition("-")[0]
    # Frames that do not fill an update are left out.
    equal = 0.95 <= line["frames"] / other["frames"] <= 1.05
    frames = "" if equal else f" after {other['frames']:,} frames"
    by = f"{name}{frames}: {line['return'] - other['return']:+.1f}"
    if not np.ptp(line["each"]) and not np.ptp(other["each"]):
        return by
    with warnings.catch_warnings():  # agents that are nearly alike are meant
        warnings.simplefilter("ignore", RuntimeWarning)
        test = scipy.stats.ttest_ind(line["each"], other["each"], equal_var=False)
    low, high = test.confidence_interval()
    return f"{by} [{low:+.1f}, {high:+.1f}]"


def main() -> None:
    if paths := sorted(RESULTS.glob("*/algorithms.jsonl")):
        (DOCS / "log" / "algorithms.md").write_text(algorithms(paths))
    parts = [HEAD]
    for backend, name in (("cpu", "CPU"), ("gpu", "GPU")):
        results = RESULTS / backend
        parts.append(f"## {name}")
        if draw(results):
            parts.append(
                f"![speed and returns beside others'](../images/bench_{backend}.png)"
            )
        missing = []
        for file, title in EXPECTED.items():
            path = results / f"{file}.jsonl"
            if path.exists() and path.read_text().strip():
                parts.append(section(path, title))
            else:
                missing.append(title)
        if missing:
            parts.append(f"Not measured: {'; '.join(missing)}.")
    (DOCS / "log" / "performance.md").write_text("\n\n".join(parts).rstrip() + "\n")


if __name__ == "__main__":
    main()
