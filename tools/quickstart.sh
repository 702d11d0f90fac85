#!/usr/bin/env bash
# The main job on this machine: SmolLM2-135M learns single-digit sums with GRPO. Takes a few minutes on two CPU cores.
# usage: bash tools/quickstart.sh [hpcrl run options, such as --set steps=5 or --set seed=1]
set -euo pipefail
# shellcheck source=tools/install.sh
source "$(dirname "${BASH_SOURCE[0]}")/install.sh" quickstart
exec hpcrl run recipes/quickstart.py "$@"
