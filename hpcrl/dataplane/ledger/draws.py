"""Shares of a set of blocks, balanced by length. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrl.dataplane.ledger.records import Block
from hpcrl.plan.balance import longest_first


def block_tokens(block: Block) -> int:
    """Tokens of all rows; a row of a stream that declares no tokens counts as one."""
    return sum(block.labels.tokens) if block.labels.tokens else block.rows


def block_cost(block: Block, quadratic: float) -> float:
    """``t + quadratic * t * t`` of each row of t tokens, added up."""
    tokens = block.labels.tokens or [1] * block.rows
    return sum(t + quadratic * t * t for t in tokens)


def balance(blocks: Sequence[Block], shares: int, *, max_tokens: int, quadratic: float) -> list[list[Block]]:
    """As many of the blocks as fit, from the first, in shares of about equal cost, each in the blocks' order.

    Args:
        max_tokens: no share may have more, 0 = no limit; blocks are left out from the end until that holds, but for the first.
    """
    costs = [block_cost(block, quadratic) for block in blocks]
    tokens = [block_tokens(block) for block in blocks]
    taken = len(blocks)
    if max_tokens:
        # Shares cannot hold more together than their limits do, which spares most of the tries below.
        while taken > 1 and sum(tokens[:taken]) > shares * max_tokens:
            taken -= 1
    while True:
        parts = longest_first(costs[:taken], shares)
        if not max_tokens or taken <= 1 or all(sum(tokens[index] for index in part) <= max_tokens for part in parts):
            return [[blocks[index] for index in sorted(part)] for part in parts]
        taken -= 1
