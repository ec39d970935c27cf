# On a fresh machine with Python >= 3.11, pip and make, every target sets up what it needs.
VENV := .venv
PYTHON ?= python3
RUN := $(VENV)/bin/

.DEFAULT_GOAL := help
.PHONY: help demo federation test coverage package lint docs bench fuzz clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)pip install --quiet torch==2.13.0
	$(RUN)pip install --quiet --editable '.[flower]'
	touch $@

$(VENV)/.tests: $(VENV)/.ready
	$(RUN)pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.ready ## Compare five ways to onboard clients on the embedded digits (a minute)
	$(RUN)pfeddsh demo

federation: $(VENV)/.ready ## Show live onboarding on Flower: a coordinator and five sites on this machine (minutes)
	$(RUN)pfeddsh federation

test: $(VENV)/.tests ## Run all tests
	$(RUN)pytest -n 2 --dist loadfile --no-loadscope-reorder

coverage: $(VENV)/.tests ## Run all tests, and show which lines none of them runs
	$(RUN)pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term

package: $(VENV)/.tests ## Build wheel and sdist, and install the wheel into an empty environment (minutes)
	rm -rf dist && $(RUN)hatchling build
	$(PYTHON) -m venv --clear dist/empty
	dist/empty/bin/pip install --quiet torch==2.13.0
	dist/empty/bin/pip install --quiet dist/*.whl
	cd dist && empty/bin/pfeddsh --version && empty/bin/pfeddsh run --rounds 1 --schedule 4+1 --out empty/run

lint: $(VENV)/.tests ## Check style and types
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(RUN)mypy

docs: $(VENV)/.tests ## Build the documentation into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(RUN)mkdocs build --strict

bench: $(VENV)/.ready ## Measure speed and memory against plain PyTorch
	$(RUN)python benchmarks/throughput.py
	$(RUN)python benchmarks/throughput.py mlp convnet resnet8 resnet20 resnet18
	$(RUN)python benchmarks/hypernetwork.py
	$(RUN)python benchmarks/live.py
	$(RUN)python benchmarks/robust.py

fuzz: $(VENV)/.tests ## Send a million mutated messages to every door of a coordinator (ten minutes)
	$(RUN)python tests/fuzz.py --messages 1000000

clean: ## Remove the environment and caches
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache
