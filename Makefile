# Everything a new user or CI needs; each target makes .venv first if it is not there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test test-slow lint docs clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock -e '.[dev]'
	touch $@

# The main job: evolve PPO's value loss on CartPole, from nothing.
demo: install
	$(BIN)/python -m searches.ppo_value_loss population_size=32 num_generations=16 run.directory=runs/demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Two files at a time: compiling takes most of it, and mostly one core.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu"

# The long learning runs. ONLY=dqn-CartPole runs one, ONLY="sac or td3" some.
ONLY ?= test
test-slow: install
	$(BIN)/python -m pytest -m slow -s -k "$(ONLY)"

# Runs that want an accelerator: Brax at full length.
test-gpu: install
	$(BIN)/python -m pytest -m gpu -s -k "$(ONLY)"

# The documentation as a site, in site/.
docs: install
	$(BIN)/python -m pip install --quiet --constraint requirements.lock -e '.[docs]'
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .ruff_cache .hypothesis
