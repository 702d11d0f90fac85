from __future__ import annotations

import pytest

from hpcrl.dataplane.transferqueue.tickets import Tickets


def test_a_settled_ticket_is_never_used_again():
    tickets = Tickets()
    for expected in (1, 2, 3):
        with tickets.use() as ticket:
            assert (ticket.number, ticket.oldest) == (expected, expected)
            ticket.settle()


def test_a_ticket_without_an_answer_is_used_again():
    tickets = Tickets()
    with pytest.raises(ConnectionError), tickets.use():
        raise ConnectionError
    with tickets.use() as ticket:
        assert ticket.number == 1


def test_concurrent_reads_have_tickets_of_their_own():
    tickets = Tickets()
    with tickets.use() as first, tickets.use() as second:
        assert (first.number, second.number, second.oldest) == (1, 2, 1)
        second.settle()
    with tickets.use() as again:
        assert again.number == 1
        again.settle()
    with tickets.use() as third:
        assert (third.number, third.oldest) == (3, 3)
