"""Counters of the engine, and their Prometheus text under SGLang's names."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

# Seconds over which the generation throughput is averaged.
_THROUGHPUT_WINDOW_S = 10.0


@dataclass
class Figures:
    """What the engine did since its start, and what it is at now. Written by the engine's thread alone."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    requests: int = 0
    aborted: int = 0
    retracted: int = 0
    updates: int = 0
    running: int = 0
    waiting: int = 0
    paused: int = 0
    used_tokens: int = 0
    cache_bytes: int = 0
    queue_seconds: float = 0.0
    queue_count: int = 0
    _made: deque[tuple[float, int]] = field(default_factory=deque)

    def note_tokens(self, count: int) -> None:
        """Count tokens that were just generated."""
        self.generation_tokens += count
        self._made.append((time.monotonic(), count))

    def throughput(self) -> float:
        """Generated tokens a second over the last seconds."""
        now = time.monotonic()
        made = [(t, count) for t, count in list(self._made) if now - t <= _THROUGHPUT_WINDOW_S]
        while self._made and now - self._made[0][0] > _THROUGHPUT_WINDOW_S:
            self._made.popleft()
        return sum(count for _, count in made) / _THROUGHPUT_WINDOW_S

    def prometheus(self, model_name: str, capacity_tokens: int) -> str:
        """The text of ``/metrics``."""
        usage = self.used_tokens / capacity_tokens
        hit_rate = self.cached_tokens / max(1, self.prompt_tokens)
        rows: list[tuple[str, str, str, float]] = [
            ("num_running_reqs", "gauge", "Samples that are decoded now", self.running),
            ("num_queue_reqs", "gauge", "Samples that wait", self.waiting),
            ("num_paused_reqs", "gauge", "Samples that are held by a pause", self.paused),
            ("num_used_tokens", "gauge", "Positions of the cache in use", self.used_tokens),
            ("token_usage", "gauge", "Share of the cache in use", usage),
            ("gen_throughput", "gauge", "Generated tokens a second", self.throughput()),
            ("cache_hit_rate", "gauge", "Share of prompt tokens taken from another sample's prefill", hit_rate),
            ("prompt_tokens_total", "counter", "Prompt tokens", self.prompt_tokens),
            ("cached_tokens_total", "counter", "Prompt tokens that were not computed again", self.cached_tokens),
            ("generation_tokens_total", "counter", "Generated tokens", self.generation_tokens),
            ("num_requests_total", "counter", "Samples asked for", self.requests),
            ("num_aborted_requests_total", "counter", "Samples aborted", self.aborted),
            ("num_retracted_requests_total", "counter", "Samples sent back to the line by a pause", self.retracted),
            ("queue_time_seconds_sum", "", "", self.queue_seconds),
            ("queue_time_seconds_count", "", "", self.queue_count),
        ]
        lines = []
        for name, kind, text, value in rows:
            if kind:
                lines += [f"# HELP sglang:{name} {text}", f"# TYPE sglang:{name} {kind}"]
            elif name.endswith("_sum"):
                base = name.removesuffix("_sum")
                lines += [f"# HELP sglang:{base} Seconds that samples waited", f"# TYPE sglang:{base} summary"]
            lines.append(f'sglang:{name}{{model_name="{model_name}"}} {float(value):.10g}')
        return "\n".join(lines) + "\n"
