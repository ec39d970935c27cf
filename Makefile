# On a fresh machine with Python >= 3.11, pip and make, every target sets up what it needs.
VENV := .venv
PYTHON ?= python3
RUN := $(VENV)/bin/
# Empty counts as not set. If it were set, each process that Flower starts, one a message, would compile all it imports.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo federation test coverage package lint docs paper bench peers fuzz clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

# Not compiled: of the 18,000 files that pip would compile, few are ever imported. Torch is named for its version.
INSTALL := $(RUN)pip install --quiet --no-compile torch==2.13.0 --editable

$(VENV)/.ready: pyproject.toml | $(VENV)/bin/pip
	$(INSTALL) '.[flower]'
	touch $@

$(VENV)/.tests: pyproject.toml | $(VENV)/bin/pip
	$(INSTALL) '.[dev]'
	touch $(VENV)/.ready $@

demo: $(VENV)/.ready ## Compare five ways to onboard clients on the embedded digits (a minute)
	$(RUN)pfeddsh demo

federation: $(VENV)/.ready ## Show live onboarding on Flower: a coordinator and five sites on this machine (minutes)
	$(RUN)pfeddsh federation

test: $(VENV)/.tests ## Run all tests
	$(RUN)pytest -n 2 --dist loadfile --no-loadscope-reorder

coverage: $(VENV)/.tests ## Run all tests, and show which lines none of them runs
	$(RUN)pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term

package: $(VENV)/.tests ## Build wheel and sdist, and install them into an empty environment (minutes)
	rm -rf dist && $(RUN)hatchling build
	$(PYTHON) -m venv --clear dist/empty
	dist/empty/bin/pip install --quiet torch==2.13.0
	for built in dist/*.whl dist/*.tar.gz; do \
		dist/empty/bin/pip install --quiet --force-reinstall --no-deps "$$built" && dist/empty/bin/pip install --quiet "$$built" && \
		(cd dist && empty/bin/pfeddsh --version && empty/bin/pfeddsh run --rounds 1 --schedule 4+1 --out "empty/run-$${built##*.}") || exit 1; \
	done

lint: $(VENV)/.tests ## Check style and types
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(RUN)mypy

docs: $(VENV)/.tests ## Build the documentation into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(RUN)mkdocs build --strict

paper: $(VENV)/.tests ## Write the technical report into dist/, as a page and, with a Chromium, as PDF
	$(RUN)python results/tables.py
	$(RUN)python results/paper.py

bench: $(VENV)/.ready ## Measure speed and memory against plain PyTorch
	$(RUN)python benchmarks/throughput.py
	$(RUN)python benchmarks/throughput.py mlp convnet resnet8 resnet20 resnet18
	$(RUN)python benchmarks/whole_run.py
	$(RUN)python benchmarks/hypernetwork.py
	$(RUN)python benchmarks/live.py
	$(RUN)python benchmarks/robust.py
	$(RUN)python benchmarks/scale.py

# In an environment of its own: Flower's simulation and pfl ask for other versions than we do.
$(VENV)-peers/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/pip install --quiet --no-compile torch==2.13.0 --editable '.[bench]'
	touch $@

peers: $(VENV)-peers/.ready ## Measure the same work with Flower's simulation, pfl-research and plain PyTorch
	$(VENV)-peers/bin/python benchmarks/peers.py

fuzz: $(VENV)/.tests ## Send a million mutated messages to every door of a coordinator (ten minutes)
	$(RUN)python tests/fuzz.py --messages 1000000

clean: ## Remove the environment and caches
	rm -rf $(VENV) $(VENV)-peers site .mypy_cache .pytest_cache .ruff_cache
