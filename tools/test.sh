#!/usr/bin/env bash
# All checks: lint, format, types, tests. usage: bash tools/test.sh [--fast] [pytest arguments]
#   --fast   leave out the tests marked slow (real models in real processes)
set -euo pipefail
# shellcheck source=tools/install.sh
source "$(dirname "${BASH_SOURCE[0]}")/install.sh" quickstart,dev
marks=()
if [ "${1:-}" = --fast ]; then
  marks=(-m "not slow")
  shift
else
  # The tests that hold a real server against the embedded engine are not skipped here.
  bash tools/sglang_cpu.sh
  export HPCRL_SGLANG_PYTHON=${HPCRL_SGLANG_VENV:-$root/.venv-sglang}/bin/python
fi
# Thousands of processes would each compile what they import.
unset PYTHONDONTWRITEBYTECODE
ruff check .
ruff format --check .
mypy
# Scripts are no package, and two of them have one name.
mypy recipes/*.py tools/*.py tools/gpu/*.py
mypy tools/bench/*.py
# Two workers: much of the time is waiting for processes to start. Real clusters and real processes with deadlines share this
# host with whatever else runs on it: what fails is run once more, alone, and both outcomes stay in the output. What fails
# twice fails. A worker that crashes, or tests that cannot be collected, end it all: what was left is not known to have failed.
code=0
python -m pytest -n 2 --cache-clear --dist loadfile --no-loadscope-reorder --max-worker-restart 0 "${marks[@]}" "$@" || code=$?
if [ "$code" = 1 ]; then
  python -m pytest "${marks[@]}" --last-failed --last-failed-no-failures none "$@" && code=0 || code=$?
fi
exit "$code"
