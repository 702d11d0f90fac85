#!/bin/bash
# For a GPU host without a network that has Python 3.12, torch and transformers: everything else that hpcrl's trainer, embedded
# engine and data plane import, as wheels. Run it where there is a network, copy the folder over, and there:
#   python3 -m pip install --no-index --no-deps --target SITE .gpu/wheels/*.whl && export PYTHONPATH=SITE:CHECKOUT
# usage: tools/gpu/bundle.sh [FOLDER]   (default: .gpu/wheels, which git ignores)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${1:-$root/.gpu/wheels}
# MLflow, reasoning-gym, math-verify and h5py stay out: the smoke test does without them.
names=(torchtitan spmd_types tyro typeguard docstring_parser dill TransferQueue tensordict pyvers pyzmq msgspec omegaconf Pebble)
pins=()
for name in "${names[@]}"; do
  pins+=("$(grep -i "^$name==" "$root/constraints.txt" || { echo "constraints.txt pins no $name" >&2; exit 1; })")
done
tags=()
for glibc in 17 24 26 27 28 31 34 35; do tags+=(--platform "manylinux_2_${glibc}_x86_64"); done
rm -rf "$folder"
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${tags[@]}" \
  --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d "$folder" "${pins[@]}"
du -sh "$folder"
