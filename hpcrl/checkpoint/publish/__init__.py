"""Policy versions: written by the trainer's ranks, each its part, as what changed since the version before; read once a node.

::

    RUN/weights/v000007/
      version.json                          written last; without it there is no version
    of a base, in Hugging Face layout, so that any engine can load it:
      model-0000R-of-0000N.safetensors      what rank R - 1 of N owns; model.safetensors of a single rank
      model.safetensors.index.json, config.json, tokenizer.json, …
    of a patch, on top of the version before:
      patch-0000R-of-0000N.safetensors      a blob of bytes a tensor; see hpcrl.checkpoint.publish.codec
    RUN/weights/.v000006.…                  a dropped version; never read
"""
