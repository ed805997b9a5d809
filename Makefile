# Shorthands; the README's two commands need none of them.
PY ?= .venv/bin/python

.venv:
	python3 -m venv .venv
	.venv/bin/pip install -q -e '.[test]'

.PHONY: test lint format slow bench
test: .venv
	$(PY) -m pytest -n logical --dist loadfile

slow: .venv
	$(PY) -m pytest -m slow

lint: .venv
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

format: .venv
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

bench: .venv
	$(PY) benchmarks/main_job.py
