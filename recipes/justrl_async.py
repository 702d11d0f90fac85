"""``justrl.py`` with generation one batch ahead of training, on the same GPUs in turn: engines go on with the next batch
whenever the trainer does not need the GPUs. Tokens are at most one policy version old.

    hpcrl submit recipes/justrl_async.py --nodes 1 --gpus-per-node 8
"""

from __future__ import annotations

from justrl import recipe as justrl

from hpcrl.config.preset import preset

recipe = preset(justrl, name="justrl_async", window=2)
