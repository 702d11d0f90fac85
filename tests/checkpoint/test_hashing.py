import torch

from hpcrl.checkpoint.hashing import digest_tensors, hash_digests, hash_tensors


def tensors():
    generator = torch.Generator().manual_seed(0)
    return {
        "model.embed_tokens.weight": torch.randn(8, 4, generator=generator).bfloat16(),
        "model.norm.weight": torch.randn(4, generator=generator).bfloat16(),
    }


def test_order_and_memory_layout_do_not_matter():
    one = tensors()
    other = {name: tensor.t().contiguous().t() for name, tensor in reversed(one.items())}
    assert hash_tensors(one) == hash_tensors(other)


def test_values_names_dtypes_and_shapes_matter():
    base = hash_tensors(tensors())
    changed = tensors()
    changed["model.norm.weight"][0] += 1
    renamed = tensors()
    renamed["model.norm2.weight"] = renamed.pop("model.norm.weight")
    wider = {name: tensor.float() for name, tensor in tensors().items()}
    reshaped = tensors()
    reshaped["model.norm.weight"] = reshaped["model.norm.weight"].reshape(2, 2)
    assert len({base, *map(hash_tensors, (changed, renamed, wider, reshaped))}) == 5


def test_a_tied_head_does_not_matter_and_another_head_does():
    base = hash_tensors(tensors())
    tied, copied, apart = tensors(), tensors(), tensors()
    tied["lm_head.weight"] = tied["model.embed_tokens.weight"]
    copied["lm_head.weight"] = copied["model.embed_tokens.weight"].clone()
    apart["lm_head.weight"] = apart["model.embed_tokens.weight"] + 1
    assert hash_tensors(tied) == hash_tensors(copied) == base != hash_tensors(apart)


def test_an_engine_with_wider_weights_hashes_in_the_published_dtype():
    wider = {name: tensor.float() for name, tensor in tensors().items()}
    assert hash_tensors(wider, torch.bfloat16) == hash_tensors(tensors())


def test_those_who_hold_a_part_each_get_the_hash_of_the_whole():
    whole = tensors() | {"lm_head.weight": tensors()["model.embed_tokens.weight"]}
    parts = [digest_tensors({name: tensor}) for name, tensor in whole.items()]
    assert hash_digests({name: digest for part in parts[::-1] for name, digest in part.items()}) == hash_tensors(whole)


def test_names_that_run_into_each_other_do_not_collide():
    assert hash_digests({"a": "1", "b": "2"}) != hash_digests({"a=1\nb": "2"}) != hash_digests({"a": "1\n1:b=2"})


def test_a_scalar_and_an_empty_tensor_have_digests():
    digests = digest_tensors({"s": torch.tensor(1.5), "e": torch.zeros(0, 3), "f": torch.zeros(3, 0)})
    assert len(set(digests.values())) == 3
