"""One stream's book: its record, and what is worked out from it so that nothing must be searched for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from hpcrl.dataplane.ledger.credits import Credits
from hpcrl.dataplane.ledger.ops import Ref
from hpcrl.dataplane.ledger.ready import ReadyQueue
from hpcrl.dataplane.ledger.records import UNTRAINED, Block, Hold, StreamRecord
from hpcrl.dataplane.ledger.rules import StreamRules


class StreamBook:
    """Moves blocks from one state to the next; who may is asked elsewhere.

    Attributes:
        rows, bytes: that live.
        rows_with: live rows that have each column.
        leased: live rows that each group holds under lease, trained ones included.
        done: live rows that each group is through with.
    """

    def __init__(self, rules: StreamRules, record: StreamRecord) -> None:
        self.rules, self.record = rules, record
        self.credits = Credits(rules, record.blocks.values())
        self.rows = self.bytes = 0
        self.rows_with: Counter[str] = Counter()
        self.leased: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self._by_order: dict[int, Block] = {}
        self._untrained: dict[int, None] = {}
        self._queues: dict[str, dict[frozenset[str], ReadyQueue]] = {}
        for block in record.blocks.values():
            self._note(block)

    def get(self, first: int) -> Block | None:
        """The live block of that first row."""
        return self.record.blocks.get(first)

    def oldest_untrained(self) -> Block | None:
        """The block that takes room for the longest time."""
        return self.record.blocks[next(iter(self._untrained))] if self._untrained else None

    def queue(self, group: str, columns: frozenset[str]) -> ReadyQueue:
        """What is ready for a group that asks for these columns; made, at the cost of one look at all, when first asked for."""
        queues = self._queues.setdefault(group, {})
        if columns not in queues:
            queues[columns] = ReadyQueue(columns)
            for block in self.record.blocks.values():
                self._offer(block, group, queues[columns])
        return queues[columns]

    def ready(self, queue: ReadyQueue) -> Iterator[Block]:
        """The oldest block that is ready, again and again: whoever iterates takes it or stops."""
        while (order := queue.oldest()) is not None:
            yield self._by_order[order]

    def add(self, block: Block) -> None:
        """A new block."""
        self.record.blocks[block.first] = block
        self._note(block)
        self.credits.count(block, 1)
        for group, queues in self._queues.items():
            for queue in queues.values():
                self._offer(block, group, queue)

    def fill(self, block: Block, refs: Mapping[str, Ref]) -> None:
        """New columns of a block."""
        size = sum(ref.size for ref in refs.values())
        block.refs.update(refs)
        block.bytes += size
        self.bytes += size
        if not block.trained:
            self.credits.grow(size)
        for column in refs:
            self.rows_with[column] += block.rows
        for group, queues in self._queues.items():
            for queue in queues.values():
                self._offer(block, group, queue)

    def hold(self, block: Block, group: str, hold: Hold) -> None:
        """A group takes a free block under lease."""
        block.holds[group] = hold
        self.leased[group] += block.rows
        self._withdraw(block, group)

    def free(self, block: Block, group: str) -> None:
        """A group's lease ends and the work is not done; a trained block is as if it had not been."""
        del block.holds[group]
        self.leased[group] -= block.rows
        if block.trained and group == self.rules.final:
            block.version = UNTRAINED
            self.credits.count(block, 1)
            self._untrained[block.first] = None
        for queue in self._queues.get(group, {}).values():
            self._offer(block, group, queue)

    def finish(self, block: Block, group: str) -> None:
        """A group is through with a block, whether it holds it or not."""
        if group in block.done:
            return
        if block.holds.pop(group, None):
            self.leased[group] -= block.rows
        block.done.append(group)
        self.done[group] += block.rows
        self._withdraw(block, group)

    def train(self, block: Block, version: int) -> None:
        """A block was trained on."""
        if not block.trained:
            self.credits.count(block, -1)
            self._untrained.pop(block.first, None)
            self.record.counters.trained += block.rows
        block.version = version

    def remove(self, block: Block) -> None:
        """A block is gone."""
        del self.record.blocks[block.first], self._by_order[block.order]
        self.rows -= block.rows
        self.bytes -= block.bytes
        for column in block.refs:
            self.rows_with[column] -= block.rows
        for group in block.holds:
            self.leased[group] -= block.rows
        for group in block.done:
            self.done[group] -= block.rows
        if not block.trained:
            self.credits.count(block, -1)
            self._untrained.pop(block.first, None)
        for group in self._queues:
            self._withdraw(block, group)

    def _note(self, block: Block) -> None:
        self._by_order[block.order] = block
        self.rows += block.rows
        self.bytes += block.bytes
        for column in block.refs:
            self.rows_with[column] += block.rows
        for group in block.holds:
            self.leased[group] += block.rows
        for group in block.done:
            self.done[group] += block.rows
        if not block.trained:
            self._untrained[block.first] = None

    def _offer(self, block: Block, group: str, queue: ReadyQueue) -> None:
        if group not in block.holds and group not in block.done and queue.accepts(block.refs):
            queue.add(block.order, block.rows)

    def _withdraw(self, block: Block, group: str) -> None:
        for queue in self._queues.get(group, {}).values():
            queue.discard(block.order)
