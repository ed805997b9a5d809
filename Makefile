# Shorthands; the README's two commands need none of them.
PY ?= .venv/bin/python

.venv:
	python3 -m venv .venv
	.venv/bin/pip install -q -e '.[test]'

.PHONY: test e2e lint format slow bench docs
# ROOM=load: the tests of one room.
test: .venv
	$(PY) -m pytest -n logical --dist loadfile $(if $(ROOM),tests/$(ROOM))

e2e: .venv
	$(PY) -m pytest -n logical --dist loadfile -m e2e

slow: .venv
	$(PY) -m pytest -m slow

lint: .venv
	scripts/lint.sh

format: .venv
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

bench: .venv
	$(PY) benchmarks/product/main_job.py

docs: .venv
	.venv/bin/pip install -q -e '.[docs]'
	.venv/bin/zensical build --strict --clean
