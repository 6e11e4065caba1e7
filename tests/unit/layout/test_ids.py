from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.layout import IdSource, QueuePaths, parse_lock


def test_an_id_is_eighteen_letters_and_digits_that_begin_with_the_client() -> None:
    source = IdSource()
    made = [source.next() for _ in range(10_000)]
    assert all(re.fullmatch(r"[0-9A-Za-z]{18}", message_id) for message_id in made)
    assert all(message_id.startswith(source.client) for message_id in made)
    assert len(set(made)) == len(made)


def test_ids_sort_in_the_order_they_were_made() -> None:
    source = IdSource()
    made = [source.next() for _ in range(10_000)]
    assert all(before < after for before, after in pairwise(made))


def test_the_first_ids_for_fixed_random_bytes_are_pinned() -> None:
    source = IdSource(lambda count: bytes(count - 1) + b"\x3e")
    assert source.client == "000000000010"
    assert source.next() == "000000000010000000"
    assert source.next() == "000000000010000001"
    for _ in range(62**2 - 2):
        source.next()
    assert source.next() == "000000000010000100"


def test_ids_continue_under_a_new_nonce_and_the_same_client_after_the_last_count() -> None:
    nonces = iter([b"\x01" * 16, b"\x02" * 16])
    source = IdSource(lambda _: next(nonces))
    client = source.client
    source._start(62**4 - 1)
    last = [source.next() for _ in range(62**2)]
    assert last[-1] == client + "zzzzzz"
    later = source.next()
    assert later[:12] != client
    assert later[12:] == "000000"
    assert source.next() == later[:12] + "000001"
    assert source.client == client


def test_many_ids_at_once_are_those_that_would_be_made_singly() -> None:
    def source() -> IdSource:
        nonces = iter([b"\x01" * 16, b"\x02" * 16])
        source = IdSource(lambda _: next(nonces))
        source._start(62**4 - 3)
        return source

    singly, together = source(), source()
    for number in (0, 1, 62, 3 * 62**2, 0, 62**2 - 1, 2):
        assert together.take(number) == [singly.next() for _ in range(number)]


def test_ids_of_two_clients_differ() -> None:
    assert IdSource().next() != IdSource().next()


@given(st.binary(min_size=16, max_size=16))
def test_ids_fit_into_paths_for_any_random_bytes(noise: bytes) -> None:
    made = IdSource(lambda _: noise).next()
    assert re.fullmatch(r"[0-9A-Za-z]{18}", made)
    path = QueuePaths("/zms", "orders").lock(made)
    assert parse_lock(path.rpartition("/")[2]) == made
