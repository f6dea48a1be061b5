PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: install demo test lint bench docs clean

install: $(VENV)/installed

# pip, held to the versions that the tests are run with.
$(VENV)/installed: pyproject.toml constraints.txt src/reluformer/translation/engine/step.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/reluformer demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n auto --maxprocesses 8 --dist loadfile

bench: install
	$(BIN)/reluformer bench attention

# The pages as a site in site/; a warning, as of a link that leads nowhere, is an error.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache src/reluformer/translation/engine/_step*.so
