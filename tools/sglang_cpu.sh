#!/usr/bin/env bash
# SGLang for the CPU in a virtual environment of its own, for the tests that hold a real server against the embedded engine.
# usage: bash tools/sglang_cpu.sh   (into .venv-sglang, or HPCRL_SGLANG_VENV; about 2 GB; does nothing if it is there)
# A recipe uses it by: --set inference.sglang.python=.venv-sglang/bin/python
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=${HPCRL_SGLANG_VENV:-$root/.venv-sglang}
# shellcheck source=tools/venv.sh
source "$root/tools/venv.sh"

stamp=$(cat tools/sglang_cpu/requirements.txt tools/sglang_cpu.sh tools/sglang_cpu/site/*/*.py | sha256sum | cut -d' ' -f1)
marker=$venv/.installed-sglang
[ "$(cat "$marker" 2>/dev/null || true)" = "$stamp" ] && exit 0
echo "installing SGLang for the CPU into $venv …"
[ -x "$venv/bin/python" ] || make_venv "$venv"
python=$venv/bin/python
# As in install.sh: torch first and alone, of the build that pip finds for this machine.
"$python" -m pip install -q "$(grep '^torch==' constraints.txt)"
"$python" -m pip install -q --no-deps -r tools/sglang_cpu/requirements.txt
# Stand-ins for three packages of which there is no build that goes with a CPU torch.
cp -R tools/sglang_cpu/site/. "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
echo "$stamp" >"$marker"
