"""Rules of training: each row once, by a policy that is not too new, and never undone once it was acknowledged.

Step s, counted from 1, trains version s - 1 of the policy, which makes version s; its rows are in every save of step s and
later. So the step that a restarted trainer begins with tells which training it still has: that of all steps before; any other
is as if it had not been.
"""

from __future__ import annotations

from hpcrl.dataplane.ledger.events import Event
from hpcrl.dataplane.verify.blocks import DONE, LIVE, Block
from hpcrl.dataplane.verify.prompts import PromptSum
from hpcrl.dataplane.verify.rows import RowRules
from hpcrl.dataplane.verify.stream import Stream


class TrainingRules:
    """Applies events of training and acknowledgement of one stream."""

    def __init__(self, stream: Stream, rows: RowRules) -> None:
        self._stream, self._found, self._rows = stream, stream.findings, rows

    def trained(self, event: Event, group: str) -> None:
        """Rows were trained by a version."""
        stream, training, found = self._stream, self._stream.training, self._found
        # The event names the version that the training made.
        version = event.version - 1
        training.group = training.group or group
        first_row = event.blocks[0][0] if event.blocks else None
        if version < 0:
            found.add("versions", f"{event.who} trained rows and named version {event.version} as made of them", row=first_row)
            return
        if event.life > training.life:
            self._resume(event)
        elif version < training.version:
            what = f"{event.who} trained version {version} after {training.version} in one life"
            found.add("versions", what, row=first_row, step=version + 1)
        training.version, training.peak = version, max(training.peak, version)
        if version not in training.versions:
            training.versions.add(version)
        prompts = training.prompts.setdefault(version + 1, PromptSum())
        for first, rows in event.blocks:
            block = stream.find(first, rows, "once", f"trained by {event.who}")
            if block is None:
                continue
            stream.counts.trained += rows
            self._check_hold(event, group, block)
            if block.settled or block.version >= 0:
                before = f"as step {block.version + 1}" if block.version >= 0 else "in an earlier attempt"
                what = f"trained again by {event.who}, after {before}, which was not rolled back"
                found.add("once", what, row=first, prompt=block.prompt, step=version + 1)
                continue
            block.version, block.by, block.life = version, event.who, event.life
            for prompt in stream.book.trained(block.pairs):
                samples = stream.limits.samples
                what = f"more than its {samples} rows were trained"
                found.add("prompts", what, row=first, prompt=prompt, step=version + 1)
            self._check_versions(block)
            for prompt, _ in block.pairs:
                prompts.add(prompt)

    def acknowledged(self, event: Event, group: str) -> None:
        """A group is through with rows; of rows that it trained, that is for good."""
        stream, training = self._stream, self._stream.training
        for first, rows in event.blocks:
            block = stream.find(first, rows, "held", f"acknowledged by {event.who}")
            if block is None:
                continue
            hold = block.holds.get(group)
            if group == training.group and block.restored and hold is None:
                # What told of its training may be lost with the node of an earlier attempt; the trainer's save has it.
                self.settle(block)
            elif group != training.group or (block.version < 0 and not block.settled):
                self._rows.acknowledged(event, group, block)
                continue
            shared = hold is not None and hold.shared
            if block.acked:
                self._found.add("held", f"acknowledged again by {event.who}", row=first, prompt=block.prompt)
            elif block.by and block.by != event.who and not shared:
                self._found.add("held", f"acknowledged by {event.who}; {block.by} trained it", row=first, prompt=block.prompt)
            block.acked = True
            if hold is not None:
                hold.state = DONE
            self.settle(block)
            if block.version > training.acknowledged:
                training.acknowledged, training.acknowledged_row = block.version, first

    def settle(self, block: Block) -> None:
        """Its training is for good."""
        if block.settled:
            return
        if block.version < 0:
            self._stream.book.trained(block.pairs)
        block.settled = True
        self._stream.counts.settled += block.rows
        self._stream.book.settled(block.pairs)

    def settle_below(self, step: int) -> None:
        """A save of a step holds all training of lower versions."""
        stream = self._stream
        for first, block in list(stream.live.items()):
            if 0 <= block.version < step and not block.settled:
                self.settle(block)
                if block.left:
                    stream.gone_before.trained.add(first, block.rows)
                    del stream.live[first]

    def _resume(self, event: Event) -> None:
        """A trainer's new life trains for the first time: what earlier ones trained is in its save, or undone."""
        stream, training, found, step = self._stream, self._stream.training, self._found, event.version - 1
        first_ever, new_attempt = training.life < 0, event.life >> 8 > training.life >> 8
        training.life = event.life
        if first_ever:
            if step > 0 and stream.whole:
                found.add("versions", f"{event.who} began with step {step + 1}, and no history of earlier ones", step=step + 1)
            return
        if step > training.peak + 1:
            # What was written last before a node was lost may be lost with it.
            what = f"training of steps {training.peak + 2} to {step}, before the trainer went on at step {step + 1}"
            if new_attempt:
                found.missing.append(f"stream {stream.name!r}: {what}, is not in the history of an earlier attempt")
                stream.whole = False
            else:
                found.add("versions", f"{what}, is not in the history", step=step + 1)
        if training.acknowledged >= step:
            what = (
                f"its training as step {training.acknowledged + 1} was acknowledged, yet {event.who} went on from a save of "
                f"step {step}"
            )
            found.add("lost", what, row=training.acknowledged_row, step=training.acknowledged + 1)
            training.acknowledged = step - 1
        if step <= training.peak:
            training.abandoned = max(training.abandoned, training.peak + 1)
        # What is trained from here on counts, whatever was trained as these steps before.
        for later in range(step + 1, training.peak + 2):
            training.prompts.pop(later, None)
        self.settle_below(step)
        for block in list(stream.live.values()):
            if block.version >= step and not block.settled:
                block.version, block.life, block.by = -1, -1, ""
                stream.book.untrained(block.pairs, waiting=not block.left)

    def _check_hold(self, event: Event, group: str, block: Block) -> None:
        hold, training = block.holds.get(group), self._stream.training
        if group != training.group:
            self._found.add("held", f"trained by {event.who}; {training.group} trains the stream", row=block.first)
        elif hold is None or not hold.allows(event.who):
            holder = f"{hold.who} held" if hold is not None and hold.state == LIVE else f"{event.who} did not hold"
            what = f"trained by {event.who}; {holder} it"
            self._found.add("held", what, row=block.first, prompt=block.prompt, step=event.version)

    def _check_versions(self, block: Block) -> None:
        stream, version = self._stream, block.version
        lag, allowed = version - block.oldest, stream.limits.version_lag
        if block.oldest >= 0 and allowed is not None and lag > allowed:
            what = f"made by version {block.oldest} and trained by version {version}: {lag} versions, {allowed} allowed"
            self._found.add("lag", what, row=block.oldest_row, prompt=block.prompt, step=version + 1)
        # A rollback leaves rows behind that newer versions had made.
        if block.newest > version and block.newest > stream.training.abandoned + 1 and stream.whole:
            what = f"made by version {block.newest}, trained by version {version} before that was there"
            self._found.add("versions", what, row=block.first, prompt=block.prompt, step=version + 1)
