"""How a policy version gets from the trainer's ranks into the engines.

``disk``
    always there and what every other way falls back on: see :mod:`hpcrl.checkpoint.publish`
``memory``
    engines on the trainer's node load from its shared memory
``distributed``
    a broadcast over ``torch.distributed`` into the running engines
``tcp``
    the published files, fetched from the trainer by a peer that shares no file system with it
"""
