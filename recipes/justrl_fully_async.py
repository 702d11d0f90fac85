"""``justrl.py`` without a pacing window, on GPUs apart: engines never wait for a batch to end, and the trainer takes each
mini-batch of 64 prompts as soon as it is there. Tokens are at most ``limits.version_lag`` policy versions old.

    hpcrl submit recipes/justrl_fully_async.py --nodes 2 --gpus-per-node 8
"""

from __future__ import annotations

from justrl import recipe as justrl

from hpcrl.config.preset import preset

recipe = preset(justrl, name="justrl_fully_async", placement="apart", window=None, stream_minibatches=True, nodes=2)
