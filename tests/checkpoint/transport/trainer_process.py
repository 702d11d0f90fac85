"""Stands for a rank of the trainer: publishes versions of a model that changes, and sends them."""

import json
import sys
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file

from hpcrl.checkpoint.publish.layout import TensorSpec
from hpcrl.checkpoint.publish.publisher import Publisher
from hpcrl.checkpoint.transport.distributed import DistributedSender, Members, Wire
from hpcrl.checkpoint.transport.errors import TransportError
from hpcrl.checkpoint.transport.memory import MemorySender
from hpcrl.checkpoint.transport.serve import FileServer


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    model = Path(settings["model"])
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(model / "model.safetensors").items()}
    specs = [TensorSpec(name, "bfloat16", tuple(tensor.shape)) for name, tensor in tensors.items()]
    publisher = Publisher(Path(settings["weights"]), model, specs, attempt=1)
    memory = MemorySender(Path(settings["memory"]), model, specs, seconds=settings.get("seconds", 20))
    wire = Wire.of(specs, "127.0.0.1", settings.get("group_port", 0), "gloo")
    distributed = DistributedSender(wire, rank=0, seconds=settings.get("seconds", 20))
    version = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            match order["do"]:
                case "publish":
                    generator = torch.Generator().manual_seed(order["version"])
                    for tensor in tensors.values():
                        tensor.view(torch.int16).add_((torch.rand(tensor.shape, generator=generator) < 0.01).to(torch.int16))
                    version = publisher.publish(order["version"], tensors.items())
                    say(version=version.version, hash=version.hash, kind=version.kind)
                case "memory":
                    memory.send(version, publisher.owned)
                    say(sent=version.version)
                case "distributed":
                    distributed.members = Members(order["generation"], tuple(order["engines"]))
                    distributed.send(version, publisher.owned)
                    say(sent=version.version)
                case "wire":
                    say(wire=wire.to_json())
                case "serve":
                    FileServer(publisher._folder, address="127.0.0.1", port=order["port"], key=order["key"])
                    say(serving=True)
                case "record":
                    say(record=msgspec.to_builtins(version))
        except TransportError as error:
            say(error=str(error))


main()
