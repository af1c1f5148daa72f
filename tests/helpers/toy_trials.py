"""Functions to be trained outside of JAX: good ones, and those that misbehave."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

if os.environ.get("METAEVO_TRIAL") and "jax" in sys.modules:
    raise RuntimeError("JAX is imported in the process of a trial")


def distance(trial):
    """-|x - 1|, with a little noise from the seed."""
    return -abs(trial.params["x"] - 1) + (trial.seed % 1000) * 1e-6


def slow_distance(trial):
    time.sleep(0.1)
    return distance(trial)


def grow(trial):
    """A weight that lives on: it comes closer to 1 by a share of the way."""
    weight = 0.0
    if trial.parent is not None:
        weight = json.loads((trial.parent / "weight.json").read_text())
    assert not list(trial.folder.iterdir())
    weight += trial.params["rate"] * (1 - weight)
    (trial.folder / "weight.json").write_text(json.dumps(weight))
    return weight


def loss_at_two(trial):
    """The value of an evolved loss and its slope, by numpy alone."""
    import numpy as np

    loss = trial.params["td_loss"]
    if loss is None:
        return 2.0
    inputs = np.array([2.0]), np.array([0.0]), np.array([0.0])
    assert loss.gradient(*inputs)[0].shape == (1,)
    return float(loss(*inputs)[0])


# --- those that misbehave -------------------------------------------------------------


def misbehave(trial):
    """Do what the file `what` in the working directory says."""
    return BEHAVIOURS[os.environ["TOY_BEHAVIOUR"]](trial)


def _raises(trial):
    raise ValueError("this one fails")


def _hangs(trial):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def _prints(trial):
    print("to stdout")
    print("to stderr", file=sys.stderr)
    os.system("echo from a child")
    return 1.0


def _not_a_number(trial):
    return float("nan")


def _text(trial):
    return "much"


def _vanishes(trial):
    os._exit(3)


def _is_killed(trial):
    os.kill(os.getpid(), signal.SIGSEGV)


def _leaves_a_child(trial):
    """The child outlives it, holds its pipes, and is in a group of its own."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        time.sleep(1000)
        os._exit(0)
    _tell_process(trial, child)
    return 2.0


def _child_returns(trial):
    """A forked child that returns into the caller's code."""
    if not os.fork():
        return 100.0
    time.sleep(0.3)
    return 3.0


def _does_not_exit(trial):
    import threading

    threading.Thread(target=time.sleep, args=(1000,)).start()
    return 4.0


def _takes_memory(trial):
    held = bytearray(300 << 20)
    for i in range(0, len(held), 4096):
        held[i] = 1
    time.sleep(1000)


def _closes_its_files(trial):
    os.closerange(3, 100)
    return 5.0


def _writes_its_own_result(trial):
    for descriptor in range(3, 1000):
        try:
            os.write(descriptor, b'{"score": "1e9"}\n')
        except OSError:
            continue
    return 5.0


def _reads_its_input(trial):
    return float(len(sys.stdin.read()))


def _writes_to_neighbours(trial):
    for other in trial.folder.parent.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has ended, and is removed
            for path in other.rglob("*"):
                if path.is_file():
                    path.write_text("overwritten")
    (trial.folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(trial.folder / "pipe")
    return 6.0


def _starts_a_program(trial):
    program = [sys.executable, "-c", "import time; time.sleep(1000)"]
    _tell_process(trial, subprocess.Popen(program).pid)
    time.sleep(1000)


def _exits(trial):
    sys.exit("enough")


def _tell_process(trial, number):
    Path(trial.folder / "process").write_text(str(number))


BEHAVIOURS = {
    function.__name__.removeprefix("_"): function
    for function in (
        *(_raises, _hangs, _prints, _not_a_number, _text, _vanishes, _is_killed),
        *(_leaves_a_child, _child_returns, _does_not_exit, _takes_memory),
        *(
            _writes_its_own_result,
            _closes_its_files,
            _reads_its_input,
            _writes_to_neighbours,
        ),
        *(_starts_a_program, _exits),
    )
}


def sometimes(trial):
    """Fails for large x, and harms its neighbours for small x."""
    x = trial.params["x"]
    if x > 5:
        raise ValueError("too large")
    if x < 0.5:
        _writes_to_neighbours(trial)
    return distance(trial)


def never(trial):
    raise ValueError("never")


if __name__ == "__main__":
    import metaevo
    from metaevo import spaces
    from strategies.random_search import random_search

    space = spaces.prior(x=spaces.log_uniform(0.1, 10.0))
    metaevo.optimize(
        space,
        random_search(space, 4),
        slow_distance,
        num_generations=4,
        num_seeds=2,
        workers=2,
        directory=sys.argv[1],
        held_out_seeds=0,
        wandb="disabled",
    )
