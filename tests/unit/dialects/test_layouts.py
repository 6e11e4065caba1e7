"""The names and bytes of Curator and kazoo, as their clients write and read them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.dialects import CuratorKind, Dialect, ForeignPaths, PutNames, curator, described, kazoo
from aiozkqueue.dialects.framing import frame, unframe
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import LAST_MOMENT, MalformedError

if TYPE_CHECKING:
    from pydantic import JsonValue


@pytest.mark.parametrize(
    ("messages", "stored"),
    [
        ([b"test"], "00010001010000000474657374" + "02"),
        ([b"a", b""], "0001000101000000016101" + "0000000002"),
        ([], "0001000102"),
    ],
)
def test_the_frame_has_curators_format(messages: list[bytes], stored: str) -> None:
    assert frame(messages).hex() == stored
    assert unframe(bytes.fromhex(stored)) == messages


@given(st.lists(st.binary(max_size=50), max_size=5), st.binary(max_size=9))
def test_a_frame_is_read_back_whatever_follows_it(messages: list[bytes], suffix: bytes) -> None:
    assert unframe(frame(messages) + suffix) == messages


@given(st.binary(max_size=60), st.booleans())
def test_other_bytes_are_either_read_or_refused(data: bytes, versioned: bool) -> None:  # noqa: FBT001 - drawn
    try:
        messages = unframe(bytes.fromhex("00010001") + data if versioned else data)
    except MalformedError:
        return
    assert sum(map(len, messages)) <= len(data)


@pytest.mark.parametrize(
    ("priority", "digits"),
    [(0, "100000000"), (10, "10000000A"), (-1, "0FFFFFFFF"), (-(2**31), "080000000"), (2**31 - 1, "17FFFFFFF")],
)
def test_priorities_are_written_as_curator_does(priority: int, digits: str) -> None:
    assert curator("/q", kind="priority").name(PutNames(priority=priority)) == f"queue-{digits}"


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_priorities_sort_as_their_numbers(first_priority: int, other_priority: int) -> None:
    dialect = curator("/q", kind="priority")
    first, second = (
        dialect.name(PutNames(priority=priority)) + "0000000001" for priority in (first_priority, other_priority)
    )
    assert (dialect.order(first) < dialect.order(second)) == (first_priority < other_priority)


def test_delays_are_the_number_between_the_last_two_bars() -> None:
    dialect = curator("/q", kind="delay")
    assert dialect.name(PutNames(due=1_700_000_000_000)) == "queue-|18BCFE56800|"
    assert dialect.due("queue-|18BCFE56800|0000000001") == 1_700_000_000_000
    assert dialect.due("queue-|x|18BCFE56800|0000000001") == 1_700_000_000_000
    for unparsable in ("queue-0000000001", "queue-|zz|0000000001", "queue-||0000000001", "queue-|0000000001"):
        assert dialect.due(unparsable) == 0


@pytest.mark.parametrize(
    ("digits", "due"),
    [
        ("FFFFFFFFFFFFFFFF", 0),  # Java writes -1 like this, and does not read it back
        ("8000000000000000", 0),
        ("FFFFFFFFFFFFFFFFFFFFFFFF", 0),
        ("7FFFFFFFFFFFFFFF", LAST_MOMENT),
        ("-5", 0),
        ("+5", 5),
        ("++5", 0),
        ("0000000000000000000000005", 5),
        ("5_0", 0),
    ],
)
def test_a_delay_is_read_as_a_java_long(digits: str, due: int) -> None:
    assert curator("/q", kind="delay").due(f"queue-|{digits}|0000000001") == due


@pytest.mark.parametrize("value", [0, 1, None, "no", [], 1.0])
def test_a_switch_that_is_not_a_bool_is_refused(value: Any) -> None:
    """A record of a move stores it, and would not be read back."""
    with pytest.raises(InvalidOptionError, match="compressed takes True or False"):
        curator("/q", compressed=value)
    with pytest.raises(InvalidOptionError, match="locking takes True or False"):
        kazoo("/q", locking=value)


@pytest.mark.parametrize("priority", [False, 0.0, "", [], {}, True, "1", 2**31])
@pytest.mark.parametrize("dialect", [curator("/q", kind="priority"), kazoo("/q")])
def test_a_priority_of_another_type_is_refused(dialect: Dialect, priority: Any) -> None:
    with pytest.raises(InvalidOptionError, match="takes an integer"):
        dialect.name(PutNames(priority=priority))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "it is empty"),
        ("0001", "it begins with 0001, not with 00010001"),
        ("00010001", "it is cut off after 0 messages"),
        ("00010001" + "010000", "the length of message 0 is cut off"),
        ("00010001" + "010000000161", "it is cut off after 1 message"),
        ("00010001" + "010000000161" + "01", "the length of message 1 is cut off"),
        ("00010001" + "010000000261", "message 0 declares 2 bytes, but 1 is left"),
        ("00010001" + "01ffffffff61", "message 0 declares -1 bytes, but 1 is left"),
    ],
)
def test_a_malformed_frame_is_described(data: str, reason: str) -> None:
    with pytest.raises(MalformedError) as refused:
        unframe(bytes.fromhex(data))
    assert str(refused.value) == reason


def test_ids_drop_characters_that_a_name_cannot_hold() -> None:
    assert curator("/q", kind="id").name(PutNames(key="a/b|c")) == "queue-|a_b_c|"


def test_entries_are_named_and_placed_as_kazoo_does() -> None:
    assert kazoo("/q").name(PutNames()) == "entry-100-"
    assert kazoo("/q").name(PutNames(priority=7)) == "entry-007-"
    assert (kazoo("/q").items, kazoo("/q").locks) == ("/q/entries", "/q/taken")
    assert (kazoo("/q", locking=False).items, kazoo("/q", locking=False).locks) == ("/q", None)


@pytest.mark.parametrize("dialect", [curator("/a/q", "/a/l"), kazoo("/a/q"), kazoo("/a/q", locking=False)])
def test_places_and_paths_map_to_each_other(dialect: Dialect) -> None:
    paths = ForeignPaths("/zms", dialect)
    name = f"{dialect.prefix}0000000001"
    assert paths.at(f"items/{name}") == f"{dialect.items}/{name}"
    assert paths.place_of(paths.at(f"items/{name}")) == f"items/{name}"
    assert paths.place_of(dialect.items) == "items"
    assert paths.place_of(f"{dialect.items}/{name}/below") == ""
    assert paths.place_of(paths.at("due/1")) == "due/1"
    assert paths.lock(name) == f"{dialect.locks or paths.base + '/locks'}/{name}"
    assert (paths.lock_of(name), paths.lock_of("another")) == (name, None)
    assert paths.base.startswith("/zms/.foreign/")


DIALECTS = [
    *(curator("/a/q", None if kind == "simple" else "/a/l", kind) for kind in get_args(CuratorKind)),
    curator("/a/q", compressed=True),
    kazoo("/a/q"),
    kazoo("/a/q", locking=False),
]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stored_layout_is_read_back(dialect: Dialect) -> None:
    assert described(dialect.path, json.loads(json.dumps(dialect.settings()))) == dialect


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        ("/q", {}),
        ("/q", {"program": "rabbit"}),
        ("/q", {"program": ["kazoo"]}),
        ("/q", {"program": "kazoo"}),
        ("/q", {"program": "kazoo", "locking": 1}),
        ("q", {"program": "kazoo", "locking": True}),
        ("/q", {"program": "curator", "kind": "heap", "compressed": False}),
        ("/q", {"program": "curator", "kind": ["id"], "compressed": False}),
        ("/q", {"program": "curator", "kind": "queue", "locks": "/q", "compressed": False}),
        ("/q", {"program": "curator", "kind": "queue", "locks": 7, "compressed": False}),
    ],
)
def test_an_invalid_stored_layout_is_refused(path: str, settings: dict[str, JsonValue]) -> None:
    with pytest.raises(MalformedError):
        described(path, settings)


@pytest.mark.parametrize("priority", [0, 10, -1, -(2**31), 2**31 - 1])
def test_the_priority_is_read_from_a_curator_name(priority: int) -> None:
    dialect = curator("/q", kind="priority")
    name = dialect.name(PutNames(priority=priority)) + "0000000001"
    assert dialect.options_in(name) == dialect.options_in(dialect.piece(name, 3)) == PutNames(priority=priority)


@pytest.mark.parametrize(
    ("dialect", "name", "expected"),
    [
        (kazoo("/q"), "entry-007-0000000001", PutNames(priority=7)),
        (kazoo("/q"), "entry-x-0000000001", PutNames()),
        (curator("/q"), "queue-0000000001", PutNames()),
        (curator("/q", kind="priority"), "queue-0000000001", PutNames()),
        (curator("/q", kind="delay"), "queue-|18BCFE56800|0000000001", PutNames(due=1_700_000_000_000)),
        (curator("/q", kind="delay"), "queue-|zz|0000000001", PutNames()),
        (curator("/q", kind="id"), "queue-|order-7|0000000001-p00000003", PutNames(key="order-7")),
        (curator("/q", kind="id"), "queue-0000000001", PutNames()),
        (curator("/q", kind="simple"), "qn-0000000001", PutNames()),
    ],
)
def test_put_options_are_read_from_item_names(dialect: Dialect, name: str, expected: PutNames) -> None:
    assert dialect.options_in(name) == expected
