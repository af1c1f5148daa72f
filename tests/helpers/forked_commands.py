"""Run commands of metaevo in children of one process that has imported it.

A line of JSON is read for each command, and one is written: exit code, seconds on
the wall and of CPU, peak of memory in KiB. No thread of JAX runs before a child is
made. Output goes to files.
"""

import contextlib
import json
import os
import runpy
import signal
import sys
import time

PRELOADED = """
jax jax.numpy numpy matplotlib.figure jinja2 wandb safetensors.numpy
metaevo.cli.main metaevo.cli.program metaevo.engine.play metaevo.engine.compare
metaevo.cli.rerun metaevo.cli.verify metaevo.analysis.report metaevo.analysis.distill
metaevo.engine.loop metaevo.export.files metaevo.engine.loggers.wandb
"""


def child(request):
    """Become the command that `request` describes."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        handle = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(handle, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["metaevo", *request["arguments"]]
    runpy.run_module("metaevo", run_name="__main__")


def answer(request):
    """Run a command, and return exit code, both kinds of seconds and the peak."""
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        os.setsid()
        # Not sys.exit: nothing of the parent's is to be flushed or ended twice.
        code = 1
        try:
            child(request)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    while time.monotonic() - began < request["limit"]:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            seconds = time.monotonic() - began
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # services that it started
            cpu = used.ru_utime + used.ru_stime
            return os.waitstatus_to_exitcode(status), seconds, cpu, used.ru_maxrss
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    os.wait4(pid, 0)
    return "no end", request["limit"], 0, 0


def main():
    import importlib

    for name in PRELOADED.split():
        importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
