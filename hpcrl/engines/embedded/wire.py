"""SGLang's JSON: from a ``/generate`` body to prompts and parameters, and from samples to its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from hpcrl.engines.embedded.errors import RequestError
from hpcrl.engines.embedded.sequence import Sequence

# Asking for any of these would be answered wrongly without them; SGLang's other fields only tune or log.
_NOT_DONE = (
    "stream",
    "input_embeds",
    "image_data",
    "video_data",
    "audio_data",
    "lora_path",
    "session_params",
    "custom_logit_processor",
    "top_logprobs_num",
    "token_ids_logprob",
    "return_hidden_states",
    "return_routed_experts",
    "return_sampling_mask",
    "return_entropy",
)


@dataclass(frozen=True)
class GenerateRequest:
    """A ``/generate`` body after the checks.

    Attributes:
        single: the answer is one object, not a list.
        prompts: token ids, or text that has still to be tokenized.
        sampling: one entry a prompt.
        rids: the caller's names, one a sample; None if it gave none.
    """

    single: bool
    prompts: list[list[int]] | list[str]
    sampling: list[Mapping[str, Any]]
    rids: list[str] | None
    return_logprob: bool
    logprob_start_len: int

    @classmethod
    def parse(cls, body: Any) -> GenerateRequest:
        """Read a body.

        Raises:
            RequestError: it is not a request, or asks for what this engine does not do.
        """
        if not isinstance(body, dict):
            raise RequestError("the body must be a JSON object")
        for key in _NOT_DONE:
            if body.get(key):
                raise RequestError(f"{key!r} is not supported by the embedded engine; leave it out or use a real SGLang server")
        text, ids = body.get("text"), body.get("input_ids")
        if (text is None) == (ids is None):
            raise RequestError("Either text, input_ids or input_embeds should be provided.")
        single, prompts = _texts(text) if ids is None else _ids(ids)
        sampling = _sampling(body.get("sampling_params"), len(prompts))
        samples = [params.get("n") or 1 for params in sampling]
        if len(set(samples)) > 1:
            raise RequestError("The parallel_sample_num should be the same for all samples in sample params.")
        count = len(prompts) * samples[0] if isinstance(samples[0], int) else len(prompts)
        return cls(
            single=single and count == 1,
            prompts=prompts,
            sampling=sampling,
            rids=_rids(body.get("rid"), len(prompts), count, single and count == 1),
            return_logprob=bool(_uniform("return_logprob", body.get("return_logprob"), False)),
            logprob_start_len=_start(body.get("logprob_start_len")),
        )


async def read_body(request: web.Request) -> Any:
    """The JSON of a request; an empty object where it has none.

    Raises:
        RequestError: it is not JSON.
    """
    if not request.can_read_body:
        return {}
    try:
        return await request.json()
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from error


def answer(sequence: Sequence, *, version: str, text: str, latency_s: float) -> dict[str, Any]:
    """One sample as SGLang words it; ``version`` names the weights if the sample has no token."""
    spans = [{"version": s.version, "start": s.start, "end": s.end} for s in sequence.spans]
    spans = spans or [{"version": version, "start": 0, "end": 0}]
    meta: dict[str, Any] = {
        "id": sequence.rid,
        "finish_reason": sequence.finish_reason,
        "prompt_tokens": len(sequence.prompt),
        "completion_tokens": len(sequence.tokens),
        "cached_tokens": sequence.cached_tokens,
        "num_retractions": sequence.retractions,
        "weight_version": spans[-1]["version"],
        "weight_versions": spans,
        "e2e_latency": latency_s,
    }
    if sequence.return_logprob:
        scored = sequence.prompt_logprobs or []
        prompt = sequence.prompt[len(sequence.prompt) - len(scored) :]
        meta["input_token_logprobs"] = [[value, token, None] for value, token in zip(scored, prompt, strict=True)]
        # A number that is not finite is no JSON; such a sample ends as an abort that says so.
        meta["output_token_logprobs"] = [
            [value if value == value else None, token, None]
            for value, token in zip(sequence.logprobs, sequence.tokens, strict=True)
        ]
        meta["output_token_logprobs_length"] = len(sequence.tokens)
    return {"text": text, "output_ids": sequence.tokens, "meta_info": meta}


def _texts(text: Any) -> tuple[bool, list[str]]:
    if isinstance(text, str):
        return True, [text]
    if isinstance(text, list) and text and all(isinstance(item, str) for item in text):
        return False, text
    raise RequestError("text must be a string or a list of strings")


def _ids(ids: Any) -> tuple[bool, list[list[int]]]:
    if not isinstance(ids, list):
        raise RequestError("input_ids must be a list of integers or a list of such lists")
    if not ids:
        raise RequestError("input_ids cannot be empty.")
    single = not isinstance(ids[0], list)
    prompts = [ids] if single else ids
    for prompt in prompts:
        if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
            raise RequestError("input_ids must be a list of integers or a list of such lists")
    return single, prompts


def _sampling(given: Any, count: int) -> list[Mapping[str, Any]]:
    listed = given if isinstance(given, list) else [given if given is not None else {}] * count
    if len(listed) != count or not all(isinstance(item, dict) for item in listed):
        raise RequestError(f"sampling_params must be an object, or a list of {count} objects, one a prompt")
    return listed


def _rids(rid: Any, prompts: int, samples: int, single: bool) -> list[str] | None:
    if rid is None:
        return None
    if isinstance(rid, str):
        return [rid] if single else [f"{rid}_{i}" for i in range(samples)]
    if not isinstance(rid, list) or len(rid) != prompts or not all(isinstance(item, str) for item in rid):
        raise RequestError("The specified rids length mismatch with the batch_size for batch processing.")
    if len(set(rid)) != len(rid):
        raise RequestError("Duplicate request IDs detected within the request")
    each = samples // prompts
    return rid if each == 1 else [f"{item}_{i}" for item in rid for i in range(each)]


def _uniform(key: str, value: Any, default: Any) -> Any:
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise RequestError(f"{key!r} must be the same for all prompts of a request to the embedded engine")
        value = value[0]
    return default if value is None else value


def _start(value: Any) -> int:
    start = _uniform("logprob_start_len", value, -1)
    if type(start) is not int or start < -1:
        raise RequestError(f"logprob_start_len must be an integer of at least -1, got {start!r}")
    return start
