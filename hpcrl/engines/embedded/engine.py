"""The embedded engine: a thread that decodes, and the calls that steer it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from hpcrl.engines.device_memory import Memory
from hpcrl.engines.embedded.errors import RequestError, WeightUpdateError
from hpcrl.engines.embedded.figures import Figures
from hpcrl.engines.embedded.holding import Holding, WeightReport
from hpcrl.engines.embedded.intake import Intake
from hpcrl.engines.embedded.model import LoadedModel
from hpcrl.engines.embedded.receive import Groups
from hpcrl.engines.embedded.schedule import Schedule
from hpcrl.engines.embedded.sequence import Group, Sequence
from hpcrl.engines.embedded.settings import EngineSettings

T = TypeVar("T")
PauseMode = Literal["abort", "retract", "in_place"]
MEMORY: tuple[Memory, ...] = ("weights", "kv_cache")
_ABORTED = "Aborted by AbortReq."


@dataclass
class _Change:
    """Something to do with the weights while nothing is decoded."""

    apply: Callable[[], None]
    future: Future[WeightReport] = field(default_factory=Future)


class EmbeddedEngine:
    """Generates with one model on one device.

    Every call is safe from any thread. Calls that steer (pause, update, abort) take effect between two chunks.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """Load the model and start the thread.

        Raises:
            CheckFailed: the model folder does not do.
        """
        self.settings = settings
        self.model = LoadedModel(settings)
        self.figures = Figures()
        self._intake = Intake(self.model.max_context, self.model.vocab_size, settings.seed)
        self._holding = Holding(self.model.module, settings.model_path, settings.weight_version, self._weights_changed)
        self._schedule = Schedule(self.model, settings, self.figures)
        self._paused: PauseMode | None = None
        self._released: set[Memory] = set()
        # Waits for its turn.
        self._change: _Change | None = None
        self._stopping = False
        self._failure: BaseException | None = None
        self._calls: list[Callable[[], object]] = []
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="embedded-engine", daemon=True)
        self._thread.start()

    @property
    def weights(self) -> WeightReport:
        """Which weights are loaded."""
        return self._holding.report

    @property
    def failure(self) -> BaseException | None:
        """What ended the engine's thread; None unless something did."""
        return self._failure

    @property
    def broken(self) -> str | None:
        """Why the engine must not generate until a whole set of weights is loaded; None if it is well."""
        if not self._thread.is_alive():
            return "the engine's thread has ended"
        return self._holding.broken

    @property
    def groups(self) -> Groups:
        """The groups in which peers send weights. Thread-safe."""
        return self._holding.groups

    @property
    def capacity_tokens(self) -> int:
        """Positions that the cache could hold at most."""
        return self.settings.max_running_rows * self.model.max_context

    @property
    def paused(self) -> PauseMode | None:
        """The mode of the pause that holds now."""
        return self._paused

    def submit(
        self,
        prompts: list[list[int]],
        sampling: list[Mapping[str, Any]],
        *,
        rids: list[str] | None = None,
        return_logprob: bool = False,
        logprob_start_len: int = -1,
    ) -> Future[list[Sequence]]:
        """Ask for completions: for each prompt as many as its parameters' ``n``, the samples of a prompt side by side.

        Args:
            sampling: SGLang's sampling parameters, one entry a prompt.
            rids: names for :meth:`abort`; one a sample.

        Raises:
            RequestError: the request cannot be served; nothing of it was started.
        """
        if (why := self.broken) is not None:
            raise RequestError(f"the engine is unhealthy: {why}", status=503)
        sequences, seeded = self._intake.sequences(prompts, sampling, rids, return_logprob, logprob_start_len)
        group = Group(sequences, Future(), seeded)
        # From here on only the engine's thread resolves it: a client that goes away must not cancel it under its hands.
        group.future.set_running_or_notify_cancel()
        self._post(lambda: self._admit(group))
        return group.future

    def abort(self, rid: str = "", *, abort_all: bool = False) -> int:
        """End requests as they stand; they are answered with what they have. Returns how many samples were ended.

        Args:
            rid: the request's name; ends every sample whose name starts with it, as SGLang does.
        """
        if not rid and not abort_all:
            return 0
        return self._ask(lambda: self._abort_now(rid, abort_all))

    def abort_soon(self, rid: str) -> None:
        """As :meth:`abort`, without waiting for it; nothing happens once the engine is stopped."""
        with contextlib.suppress(RequestError):
            self._post(lambda: self._abort_now(rid, False))

    def pause(self, mode: PauseMode = "abort") -> None:
        """Stop decoding after the chunk at hand; requests that come in meanwhile wait.

        Args:
            mode: ``abort`` answers every request with what it has; ``retract`` sends samples back to the line, to be computed
                again with their tokens kept; ``in_place`` freezes them with their cache.
        """

        def apply() -> None:
            if mode == "abort":
                self._schedule.abort(lambda _: True, _ABORTED)
            elif mode == "retract":
                self._schedule.retract()
            self._paused = mode

        self._ask(apply)

    def continue_(self) -> None:
        """Decode on.

        Raises:
            RequestError: memory was let go of that this needs, or weights were and none were loaded since.
        """

        def apply() -> None:
            if (why := self._absent) is not None:
                raise RequestError(why)
            self._paused = None
            self._schedule.let_in()

        self._ask(apply)

    def update_weights(
        self,
        path: Path,
        version: str | None = None,
        *,
        expect_hash: str | None = None,
        abort_all: bool = False,
        flush_cache: bool = False,
        wait_s: float | None = None,
    ) -> WeightReport:
        """Load a version from a folder of safetensors into the running model.

        While the engine is paused this happens at once; else requests that run are finished first and new ones wait.

        Args:
            version: name of the version; None keeps the present name.
            expect_hash: hash that the loaded weights must have.
            abort_all: end every request first.
            flush_cache: the caches of the old weights must not be used on: refused while samples are frozen in place.

        Raises:
            WeightUpdateError: see :func:`load_in_place`; a touched engine is unhealthy until a whole version is loaded.
            TimeoutError: requests ran longer than ``wait_s`` seconds.
        """
        return self._do(lambda: self._holding.load(path, version, expect_hash), abort_all, flush_cache).result(wait_s)

    def begin_update(self, wait_s: float | None = None) -> WeightReport:
        """Begin an update by peers, when :meth:`update_weights` would load; nothing is decoded until it has ended.

        Raises:
            WeightUpdateError: one has begun already.
            TimeoutError: requests ran longer than ``wait_s`` seconds.
        """
        return self._do(self._holding.begin).result(wait_s)

    def receive_weights(
        self,
        group: str,
        names: list[str],
        dtypes: list[torch.dtype],
        shapes: list[tuple[int, ...]],
        version: str | None = None,
    ) -> WeightReport:
        """Take tensors that rank 0 of a group sends.

        Args:
            version: name of the version; None keeps what was said before.

        Raises:
            WeightUpdateError: see :meth:`Update.receive`; or none has begun. A touched engine is unhealthy until a whole
                version is loaded.
        """
        return self._do(lambda: self._holding.receive(group, names, dtypes, shapes, version)).result()

    def take_tensors(self, tensors: list[tuple[str, torch.Tensor]], version: str | None = None) -> WeightReport:
        """Copy tensors of this node's memory; for ``version`` and errors see :meth:`receive_weights`."""
        return self._do(lambda: self._holding.take(tensors, version)).result()

    def end_update(self, expect_hash: str | None = None) -> WeightReport:
        """End the update; errors as :meth:`Update.end`, or none has begun."""
        return self._do(lambda: self._holding.end(expect_hash)).result()

    def flush_cache(self) -> bool:
        """Whether no cache is held (nothing runs); caches live only as long as their requests."""
        return self._ask(lambda: not self._schedule.running and not self._schedule.waiting)

    @property
    def memory(self) -> dict[Memory, int]:
        """What each part takes now [bytes]."""
        return {"weights": self._holding.nbytes, "kv_cache": self.figures.cache_bytes}

    def release_memory(self, tags: Collection[Memory]) -> None:
        """Let go of parts of the memory; once more is no error. Weights are gone then until a version is loaded.

        Raises:
            RequestError: samples run or wait in the line.
        """

        def apply() -> None:
            if self._schedule.running or self._schedule.waiting:
                raise RequestError("requests are under way; pause with mode abort, or wait for them, before memory is released")
            if "weights" in tags:
                self._holding.release()
            self._released |= set(tags)

        self._ask(apply)

    def resume_memory(self, tags: Collection[Memory]) -> None:
        """Take memory again; once more is no error."""

        def apply() -> None:
            if "weights" in tags:
                self._holding.resume()
            self._released -= set(tags)

        self._ask(apply)

    def stop(self) -> None:
        """Abort everything and end the thread. Safe to call twice."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        # Else the thread may wait for a peer's weights as long as that may take.
        self.groups.close()
        self._thread.join()

    @property
    def _absent(self) -> str | None:
        """Why nothing can be generated for want of memory or weights."""
        if self._released:
            return f"the memory of {', '.join(sorted(self._released))} was released; resume it first"
        return "the weights were released, and none were loaded since" if self._holding.blank else None

    def _do(self, apply: Callable[[], None], abort_all: bool = False, flush_cache: bool = False) -> Future[WeightReport]:
        change = _Change(apply)

        def enter() -> None:
            if abort_all:
                self._schedule.abort(lambda _: True, _ABORTED)
            if self._change is not None:
                change.future.set_exception(WeightUpdateError("another update is waiting; nothing was changed", touched=False))
            elif flush_cache and self._paused is not None and self._schedule.running:
                change.future.set_exception(
                    WeightUpdateError(
                        "Cache flush failed: samples are frozen in place with their cache. Use flush_cache=false, or pause "
                        "with mode retract; nothing was changed",
                        touched=False,
                    )
                )
            else:
                self._change = change

        self._post(enter)
        return change.future

    def _weights_changed(self) -> int:
        self.figures.updates += 1
        return self._schedule.size if self._paused is not None else 0

    def _ask(self, call: Callable[[], T]) -> T:
        future: Future[T] = Future()

        def answer() -> None:
            try:
                future.set_result(call())
            except RequestError as refusal:
                future.set_exception(refusal)
            except BaseException as error:
                future.set_exception(error)
                raise

        self._post(answer)
        return future.result()

    def _post(self, call: Callable[[], object]) -> None:
        with self._wake:
            if self._stopping or not self._thread.is_alive():
                raise RequestError("the engine is stopped", status=503)
            self._calls.append(call)
            self._wake.notify()

    def _abort_now(self, rid: str, abort_all: bool) -> int:
        return self._schedule.abort(lambda s: abort_all or s.rid.startswith(rid), _ABORTED)

    def _admit(self, group: Group) -> None:
        if (why := self._holding.broken) is not None:
            group.future.set_exception(RequestError(f"the engine is unhealthy: {why}", status=503))
        elif self._paused is None and (why := self._absent) is not None:
            group.future.set_exception(RequestError(why, status=503))
        else:
            # As SGLang does: what comes during a pause does not count as waiting.
            self._schedule.add(group, outside=self._paused is not None)

    def _loop(self) -> None:
        if self.settings.threads:
            torch.set_num_threads(self.settings.threads)
        why = "the engine was stopped"
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:
            self._failure, why = error, f"the engine's thread failed: {error}"
            raise
        finally:
            self._end(why)

    def _turn(self) -> None:
        with self._wake:
            while not (self._calls or self._stopping or self._can_change() or self._can_decode()):
                self._wake.wait()
            calls, self._calls = self._calls, []
        for call in calls:
            call()
        if self._can_change():
            self._apply_change()
        elif self._can_decode():
            self._schedule.step(self.weights.version, admit=self._change is None)
        self._schedule.count(paused=self._paused is not None)

    def _can_change(self) -> bool:
        held = self._paused is not None or self._holding.is_receiving
        return self._change is not None and (held or not self._schedule.running)

    def _can_decode(self) -> bool:
        may = self._paused is None and not self._holding.is_receiving and self._absent is None
        return may and bool(self._schedule.running or (self._schedule.waiting and self._change is None))

    def _apply_change(self) -> None:
        change, self._change = self._change, None
        assert change is not None
        try:
            change.apply()
        except WeightUpdateError as error:
            if error.touched:
                self._holding.spoil(str(error))
                self._schedule.abort(lambda _: True, "the engine's weights are broken")
            change.future.set_exception(error)
            return
        except BaseException as error:
            change.future.set_exception(error)
            raise
        change.future.set_result(self.weights)

    def _end(self, why: str) -> None:
        with self._wake:
            self._stopping = True
            calls, self._calls = self._calls, []
        for call in calls:
            call()
        self._schedule.abort(lambda _: True, why)
        if self._change is not None:
            self._change.future.set_exception(WeightUpdateError(f"{why}; nothing was changed", touched=False))
