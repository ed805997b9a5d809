#!/usr/bin/env bash
# Runs tests with the lowest versions of the direct dependencies that pyproject.toml permits.
#
#     scripts/lowest_versions.sh FOLDER [PYTEST ARGUMENTS]
#
# FOLDER gets the virtual environment. The packages that only tests need are as new as they can be beside them.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
shift
python3 -m venv "$folder"
"$folder/bin/pip" install -q uv
"$folder/bin/uv" pip install -q -p "$folder/bin/python" --resolution lowest-direct .
"$folder/bin/uv" pip install -q -p "$folder/bin/python" -e '.[test]'
exec "$folder/bin/python" -m pytest -p no:cacheprovider "$@"
