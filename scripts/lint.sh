#!/usr/bin/env bash
# Linters, strict types, import contracts, the ceilings of the house, and the English of the pages; all of them run, whatever the first ones find.
set -uo pipefail
cd "$(dirname "$0")/.."
bin="${BIN:-.venv/bin}"
failed=()
for check in "ruff check ." "ruff format --check ." "mypy" "lint-imports" "python scripts/house.py" "python scripts/prose.py"; do
  echo "$ $check"
  # shellcheck disable=SC2086
  "$bin"/$check || failed+=("$check")
done
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
