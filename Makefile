# On a fresh machine with Python >= 3.11, pip and make, every target sets up what it needs.
VENV := .venv
PYTHON ?= python3
RUN := $(VENV)/bin/

.DEFAULT_GOAL := help
.PHONY: help demo federation test lint bench fuzz clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)pip install --quiet torch==2.13.0
	$(RUN)pip install --quiet --editable '.[flower]'
	touch $@

$(VENV)/.tests: $(VENV)/.ready
	$(RUN)pip install --quiet --editable '.[flower,mlflow,onnx,privacy,ray,tensorboard]' hypothesis mypy playwright pytest pytest-xdist ruff
	touch $@

demo: $(VENV)/.ready ## Compare five ways to onboard clients on the embedded digits (a minute)
	$(RUN)pfeddsh demo

federation: $(VENV)/.ready ## Show live onboarding on Flower: a coordinator and five sites on this machine (minutes)
	$(RUN)pfeddsh federation

test: $(VENV)/.tests ## Run all tests
	$(RUN)pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.tests ## Check style and types
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(RUN)mypy

bench: $(VENV)/.ready ## Measure speed and memory against plain PyTorch
	$(RUN)python benchmarks/throughput.py
	$(RUN)python benchmarks/throughput.py resnet8
	$(RUN)python benchmarks/hypernetwork.py
	$(RUN)python benchmarks/live.py
	$(RUN)python benchmarks/robust.py
	$(RUN)python benchmarks/scale.py

fuzz: $(VENV)/.tests ## Send a million mutated messages to every door of a coordinator (minutes)
	$(RUN)python tests/fuzz.py --messages 1000000

clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
