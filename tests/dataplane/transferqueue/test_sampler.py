from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow  # imports torch and TransferQueue


@pytest.fixture
def partition():
    from hpcrl.dataplane.transferqueue import compat

    made = compat.controller_module.DataPartitionStatus("rows/s")
    for index, key in [(7, "0:2"), (3, "2:2"), (5, "4:1")]:
        made.keys_mapping[key] = index
        made.revert_keys_mapping[index] = key
    return made


@pytest.fixture
def sample(partition):
    from hpcrl.dataplane.transferqueue.sampler import BlockSampler

    sampler = BlockSampler()

    def take(ready, ticket=1, oldest=1, max_rows=4, reader="r"):
        config = {"reader": reader, "ticket": ticket, "oldest": oldest, "max_rows": max_rows}
        if not ready and not sampler.has_cached_result("rows/s", "task", config):
            return []  # the controller does not ask the sampler then
        given, consumed = sampler(ready, 1, partition=partition, **config)
        assert given == consumed
        return given

    return take


def test_oldest_blocks_first_as_many_as_fit(sample, partition):
    assert sample([3, 5, 7]) == [7, 3]
    assert partition.custom_meta == {7: {"key": "0:2"}, 3: {"key": "2:2"}}
    assert sample([5], ticket=2, oldest=2) == [5]


def test_a_repeated_ticket_is_given_the_same(sample):
    assert sample([3, 5, 7]) == [7, 3]
    assert sample([]) == [7, 3]
    assert sample([5]) == [7, 3]
    assert sample([5], ticket=2) == [5]
    assert sample([], ticket=1) == [7, 3]
    assert sample([], ticket=2) == [5]


def test_a_closed_ticket_is_forgotten(sample):
    assert sample([3, 5, 7]) == [7, 3]
    assert sample([5], ticket=2, oldest=2) == [5]
    assert sample([], ticket=1, oldest=1) == []


def test_other_readers_have_their_own_tickets(sample):
    assert sample([3, 5, 7]) == [7, 3]
    assert sample([5], reader="q") == [5]


def test_a_block_cleared_since_is_left_out(sample, partition):
    assert sample([3, 5, 7]) == [7, 3]
    del partition.keys_mapping["0:2"]
    assert sample([5]) == [3]
    del partition.keys_mapping["2:2"]
    assert sample([5]) == [5]
