# Sourced by the installers: finds a Python that fits, makes virtual environments. Wants set -e of who sources it.

find_python() {
  local candidate
  for candidate in ${HPCRL_PYTHON:-} python3.11 python3.12 python3; do
    if command -v "$candidate" >/dev/null &&
      "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then
      echo "$candidate" && return
    fi
  done
  echo "hpcrl needs Python 3.11 or 3.12; none was found on PATH. Install one, or name it in HPCRL_PYTHON." >&2
  return 1
}

# usage: make_venv FOLDER
make_venv() {
  local python
  python=$(find_python)
  if ! "$python" -m venv "$1" 2>/dev/null; then
    # Debian ships venv apart from Python.
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
      apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv
    fi
    "$python" -m venv --clear "$1"
  fi
}
