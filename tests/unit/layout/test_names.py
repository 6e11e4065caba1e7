from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiozkqueue.errors import InvalidNameError, InvalidOptionError
from aiozkqueue.layout import (
    ItemName,
    MalformedError,
    check_queue_name,
    item_id,
    item_prefix,
    item_sequence,
    key_hash,
    payload_hash,
)

from .hostile import ids, moments

ID = "ABCDEFGHIJKL00002a"

optional_ids = st.none() | ids
sequences = st.integers(-(2**31), 2**31 - 1)
#: Any text between dashes: known and unknown fields in any order, repeated, empty or malformed.
fields = st.text(st.characters(exclude_characters="-/"), max_size=6) | st.builds(
    "{}{}".format, st.sampled_from("tgkbfeuixz"), ids
)
item_like = st.builds(
    lambda parts, end: "-".join(["item", *parts, end]),
    st.lists(fields, max_size=6),
    sequences.map("{:010d}".format) | st.text("-0123456789٣²", max_size=12),
)


@pytest.mark.parametrize("name", ["a", "orders", "Orders.v2", "a:b@c-d_e", "-", "a..", "zookeeper", "x" * 255])
def test_a_valid_queue_name_is_accepted(name: str) -> None:
    check_queue_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "/", "a b", "a\n", "a\x00", "größe", "a%", "x" * 256, "x" * 1_000_000, "٣"],
)
def test_a_queue_name_that_breaks_the_rules_is_refused(name: str) -> None:
    with pytest.raises(InvalidNameError, match="1 to 255") as caught:
        check_queue_name(name)
    assert repr(name[:80]) in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", [None, 7, b"orders"])
def test_a_queue_name_that_is_not_text_is_refused(name: object) -> None:
    with pytest.raises(InvalidNameError):
        check_queue_name(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"item-i{ID}-0000000042", ItemName(f"item-i{ID}-0000000042", ID, 42)),
        (
            f"item-t1795000000000-i{ID}-2147483647",
            ItemName(f"item-t1795000000000-i{ID}-2147483647", ID, 2**31 - 1, due=1_795_000_000_000),
        ),
        (
            f"item-t5-gG1-kK1-bB1-fF1-i{ID}-0000000000",
            ItemName(
                f"item-t5-gG1-kK1-bB1-fF1-i{ID}-0000000000",
                ID,
                0,
                due=5,
                group="G1",
                key="K1",
                batch="B1",
                tags="F1",
            ),
        ),
        (
            f"item-t5-e9-kK1-u1-i{ID}-0000000001",
            ItemName(f"item-t5-e9-kK1-u1-i{ID}-0000000001", ID, 1, due=5, key="K1", expires=9, unique=True),
        ),
        (
            f"item-gG1-x9-zz-i{ID}-0000000001",
            ItemName(f"item-gG1-x9-zz-i{ID}-0000000001", ID, 1, group="G1", unknown=("x9", "zz")),
        ),
        (
            f"item-tsoon-gG1-gG2-k--iold-i{ID}-0000000001",
            ItemName(
                f"item-tsoon-gG1-gG2-k--iold-i{ID}-0000000001",
                ID,
                1,
                group="G1",
                unknown=("tsoon", "gG2", "k", "", "iold"),
            ),
        ),
        ("item-0000000042", ItemName("item-0000000042", "0000000042", 42)),
        (f"item-i{ID}--2147483648", ItemName(f"item-i{ID}--2147483648", ID, -(2**31))),
        (f"item-i{ID}--000000007", ItemName(f"item-i{ID}--000000007", ID, -7)),
        ("item--000000007", ItemName("item--000000007", "n000000007", -7)),
        (f"item-t{'9' * 300}-iA-0000000001", ItemName(f"item-t{'9' * 300}-iA-0000000001", "A", 1, 253_402_300_799_999)),
    ],
)
def test_item_names_are_parsed(text: str, name: ItemName) -> None:
    assert ItemName.parse(text) == name
    assert item_id(text) == name.id
    assert item_sequence(text) == name.sequence


@pytest.mark.parametrize(
    "text",
    [
        "",
        "item",
        "item-",
        "item-42",
        "item-00000000042",
        "item-i-0000000042",
        "item-iA",
        "item-iA-",
        "item-iA-42",
        "item-iA-000000004x",
        "item-iA-٠٠٠٠٠٠٠٠٤٢",
        "item-xA-0000000042",
        "item-gG-0000000042",
        "item-i../../x-0000000042",
        "item-iA-0000000042\n",
        " item-iA-0000000042",
        "items-iA-0000000042",
        "lock-iA-0000000042",
        "qn-0000000042",
        "item-" + "x-" * 100_000,
        "item-" + "i-" * 100_000,
        "item-" + "iA-" * 100_000 + "x",
    ],
)
def test_a_name_of_another_kind_is_not_read_as_an_item(text: str) -> None:
    assert ItemName.parse(text) is None
    for read in (item_id, item_sequence):
        with pytest.raises(MalformedError, match="not the name of an item"):
            read(text)


def test_name_fields_have_a_fixed_order_whatever_the_order_of_the_call() -> None:
    assert item_prefix(ID) == f"item-i{ID}-"
    made = item_prefix(ID, tags="F", batch="B", key="K", group="G", due=1_795_000_000_000)
    assert made == f"item-t1795000000000-gG-kK-bB-fF-i{ID}-"


@given(ids, st.none() | moments, optional_ids, optional_ids, optional_ids, optional_ids, sequences)
def test_the_fields_of_an_item_name_are_read_back(
    id_: str,
    due: int | None,
    group: str | None,
    key: str | None,
    batch: str | None,
    tags: str | None,
    sequence: int,
) -> None:
    prefix = item_prefix(id_, due=due, group=group, key=key, batch=batch, tags=tags)
    text = f"{prefix}{sequence:010d}"
    name = ItemName.parse(text)
    assert name is not None
    assert name == ItemName(text, id_, sequence, due, group, key, batch, tags)
    assert name.prefix == prefix


@given(item_like | st.text(max_size=40))
@example("item--i-iA-0000000001")
@example("item-iA--i-0000000001")
@example("item-iA---000000001")
def test_the_fast_name_readers_agree_with_the_full_parser(text: str) -> None:
    name = ItemName.parse(text)
    if name is None:
        for read in (item_id, item_sequence):
            with pytest.raises(MalformedError):
                read(text)
        return
    assert item_id(text) == name.id
    assert item_sequence(text) == name.sequence
    assert name.text == text
    assert name.id
    assert "-" not in name.id
    assert "/" not in name.id


@given(item_like)
def test_an_item_created_again_from_its_prefix_keeps_even_unknown_fields(text: str) -> None:
    name = ItemName.parse(text)
    if name is None:
        return
    assert text.startswith(name.prefix)
    again = ItemName.parse(f"{name.prefix}{name.sequence:010d}")
    assert again is not None
    assert again.unknown == name.unknown
    assert (again.due, again.group, again.key, again.batch, again.tags) == (
        name.due,
        name.group,
        name.key,
        name.batch,
        name.tags,
    )


@pytest.mark.parametrize("value", ["", "a-b", "a/b", "-"])
@pytest.mark.parametrize("field", ["group", "key", "batch", "tags"])
def test_a_field_that_would_not_be_read_back_is_refused(field: str, value: str) -> None:
    with pytest.raises(MalformedError, match=field):
        item_prefix(ID, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(MalformedError, match="id"):
        item_prefix(value)


@pytest.mark.parametrize("due", [-1, 253_402_300_800_000])
def test_a_due_time_outside_the_calendar_is_refused(due: int) -> None:
    with pytest.raises(MalformedError, match="1970 and 9999"):
        item_prefix(ID, due=due)


def test_the_hash_of_a_key_is_pinned() -> None:
    assert key_hash("order-17") == "okuq5i62rno5ag66f4ttctqc4il7sniy"
    assert key_hash("größe") == "2nj2ezy3m6x76ckbvzcw4xdw5e4uxvsx"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_key_hashes_to_a_field_of_a_name(key: str) -> None:
    hashed = key_hash(key)
    assert len(hashed) == 32
    name = ItemName.parse(item_prefix(ID, key=hashed, group=hashed) + "0000000001")
    assert name is not None
    assert (name.key, name.group) == (hashed, hashed)


def test_a_key_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="not valid Unicode"):
        key_hash("\ud800")


def test_the_hash_of_a_payload_is_pinned_and_differs_from_that_of_a_key() -> None:
    assert payload_hash(b"order-17") == "itv5icsbe2xj3y3hqav3xcgqrlt5deqx"
    assert payload_hash(b"order-17") != key_hash("order-17")


@given(moments, moments)
def test_the_expiry_and_the_unique_key_in_a_name_are_read_back(due: int, expires: int) -> None:
    name = ItemName.parse(item_prefix(ID, due=due, expires=expires, key="k", unique=True) + "0000000001")
    assert name is not None
    assert (name.due, name.expires, name.key, name.unique) == (due, expires, "k", True)
