"""Typed results and inputs: plain on the wire, T again afterwards, and refused before anything that would not come back is kept."""

from __future__ import annotations

import enum
import ipaddress
import json
import re
import subprocess
import sys
import uuid
from collections import namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Generic, NamedTuple, TypeVar

import attrs
import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict

from ryusen_sdk import BlobRef, ConversionError, DefinitionError, Event, MisuseError, Ryusen, Step
from ryusen_sdk.convert import from_wire, to_wire
from ryusen_sdk.plain_data import json_bytes
from ryusen_sdk.typed import check_type, json_view, plain, typed

T = TypeVar("T")
BLOB = BlobRef("s3://b/k", 3, "a" * 64, "text/plain")
MOMENT = datetime(2024, 10, 27, 2, 30, 0, 123456, tzinfo=UTC)


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Order:
    id: int
    tags: list[str] = field(default_factory=list)


@dataclass
class PremiumOrder(Order):
    gift: str = ""


class Line(msgspec.Struct):
    sku: str
    price: Decimal


class Basket(msgspec.Struct, rename="camel"):
    all_lines: list[Line]
    seen: set[int]
    corner: tuple[int, int]
    colour: Colour
    key: uuid.UUID
    at: datetime
    on: date
    span: timedelta
    raw: bytes
    blob: BlobRef
    by_key: dict[uuid.UUID, Decimal]
    by_number: dict[int, str]
    later: datetime | None = None


class Card(msgspec.Struct, tag=True):
    number: str


class Cash(msgspec.Struct, tag=True, array_like=False):
    amount: int


class Pair(msgspec.Struct, array_like=True, tag="p"):
    left: int
    right: int


class Money(NamedTuple):
    amount: int
    currency: str


class Named(TypedDict, total=False):
    id: int
    tags: list[str]


@attrs.define
class Node:
    name: str
    children: list[Node] = attrs.field(factory=list)


class Item(pydantic.BaseModel):
    sku: str
    price: Decimal
    seen: set[str] = set()
    at: datetime | None = None
    on_hand: int = pydantic.Field(default=0, alias="onHand")
    raw: bytes = b""

    @pydantic.computed_field
    @property
    def label(self) -> str:
        return f"{self.sku}@{self.price}"


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    corner: tuple[int, int]
    key: uuid.UUID


class Paged(pydantic.BaseModel, Generic[T]):
    items: list[T]


@dataclass
class Page(Generic[T]):
    items: list[T]
    next: Page[T] | None = None


@dataclass
class Invoice:
    """A plain dataclass with models inside."""

    best: Item | None
    all: list[Item]


ITEM = Item(sku="x", price=Decimal("1.10"), seen={"b", "a"}, at=MOMENT, onHand=4, raw=b"\x00\xff")

CASES: list[tuple[Any, Any]] = [
    (Order(1, ["a"]), Order),
    ([Order(1), Order(2)], list[Order]),
    ({"a": Order(1)}, dict[str, Order]),
    (None, Order | None),
    (Order(1), Order | None),
    ((1, "a"), tuple[int, str]),
    (
        Basket(
            [Line("x", Decimal("1.10"))],
            {3, 1},
            (1, 2),
            Colour.RED,
            uuid.UUID(int=7),
            MOMENT,
            MOMENT.date(),
            timedelta(microseconds=-1),
            b"\x00\xff",
            BLOB,
            {uuid.UUID(int=8): Decimal("0.3")},
            {5: "five"},
        ),
        Basket,
    ),
    ([Card("1"), Cash(2)], list[Card | Cash]),
    (Pair(1, 2), Pair),
    (Money(5, "EUR"), Money),
    ({"id": 1, "tags": ["a"]}, Named),
    ({}, Named),
    (Node("a", [Node("b")]), Node),
    (Page([Order(1)], Page([])), Page[Order]),
    (ITEM, Item),
    ([ITEM], list[Item]),
    ({"a": ITEM}, dict[str, Item]),
    (None, Item | None),
    (ITEM, Item | Strict),
    (Strict(corner=(1, 2), key=uuid.UUID(int=1)), Strict),
    (Paged[Item](items=[ITEM]), Paged[Item]),
    (Page([ITEM]), Page[Item]),
    (Invoice(ITEM, [ITEM]), Invoice),
    (Invoice(None, []), Invoice),
]


@pytest.mark.req("VAL-02")
@pytest.mark.parametrize(("value", "kind"), CASES, ids=[str(kind)[:40] for _, kind in CASES])
def test_typed_values_are_plain_on_the_wire_and_come_back(value: Any, kind: Any) -> None:
    check_type(kind)
    wire = to_wire(plain(value, kind))
    back = typed(from_wire(wire), kind)
    assert back == value
    assert type(back) is type(value)
    assert to_wire(plain(back, kind)) == wire  # the same value has the same digest again


def test_what_has_a_place_on_the_wire_keeps_it() -> None:
    kept = json.loads(bytes(to_wire(plain(CASES[6][0], Basket))))["value"]
    types = {name: kept[name]["type"] for name in ("at", "span", "raw", "blob", "on", "key", "seen", "byNumber", "allLines")}
    assert types == {
        "at": "instant",
        "span": "duration",
        "raw": "bytes",
        "blob": "blob_ref",
        "on": "string",
        "key": "string",
        "seen": "array",
        "byNumber": "object",
        "allLines": "array",
    }


UNFIT: list[tuple[Any, Any, str]] = [
    ({"id": 1, "tags": ["a", 2]}, Order, "$.tags[1]"),
    ({"id": True}, Order, "$.id"),
    ({"id": "1"}, Order, "$.id"),
    ({}, Order, "$"),
    ([{"id": 1}, {"id": None}], list[Order], "$[1].id"),
    ({"name": "a", "children": [{"name": 1}]}, Node, "$.children[0].name"),
    ({"sku": "x", "price": "y"}, Item, "$.price"),
    ([{"sku": "x", "price": "1"}, {"sku": 5, "price": "1"}], list[Item], "$[1].sku"),
    ({"best": None, "all": [{"sku": "x", "price": []}]}, Invoice, "$.all[0].price"),
    ({"items": [{"sku": "x"}]}, Paged[Item], "$.items[0].price"),
    ({"id": [1]}, Named, "$.id"),
]


@pytest.mark.req("VAL-03")
@pytest.mark.parametrize(("value", "kind", "path"), UNFIT, ids=[f"{kind}-{path}"[-40:] for _, kind, path in UNFIT])
def test_data_that_does_not_fit_names_the_member(value: Any, kind: Any, path: str) -> None:
    for convert in (typed, plain):
        with pytest.raises(ConversionError) as refused:
            convert(value, kind)
        assert refused.value.path == path
        assert refused.value.why


class Site(pydantic.BaseModel):
    """Members whose types only Pydantic can write and read."""

    url: pydantic.HttpUrl
    dsn: pydantic.PostgresDsn
    folder: PurePosixPath
    hosts: list[ipaddress.IPv4Address | ipaddress.IPv6Network] = []
    names: dict[str, re.Pattern[str]] = {}


class Account(pydantic.BaseModel):
    password: pydantic.SecretStr


SITE = Site.model_validate(
    {
        "url": "https://example.org/a?b=c",
        "dsn": "postgresql://u:p@db/x",
        "folder": "/srv/www",
        "hosts": ["10.0.0.1", "fe80::/10"],
        "names": {"all": "^a+$"},
    }
)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(SITE, Site), ([SITE], list[Site]), (Page([SITE]), Page[Site]), (Paged(items=[SITE]), Paged[Site])],
)
def test_what_only_pydantic_can_write_comes_back_as_it_went(value: object, kind: Any) -> None:
    recorded = plain(value, kind)
    assert "10.0.0.1" in json.dumps(recorded)
    assert typed(from_wire(to_wire(recorded)), kind) == value


def test_a_secret_is_refused_rather_than_kept_as_stars() -> None:
    with pytest.raises(ConversionError, match=r"\$\.password: .*SecretStr has no plain form"):
        plain(Account(password=pydantic.SecretStr("hunter2")), Account)


class Hasty(pydantic.BaseModel):
    """Changes what it is given, each time."""

    text: str

    @pydantic.field_validator("text")
    @classmethod
    def grow(cls, text: str) -> str:
        return text + "!"


@dataclass
class Picky:
    amount: int

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise LookupError("no such amount")


Unknown = namedtuple("Unknown", "a b")  # noqa: PYI024 - a type without annotations is the point

LOST: list[tuple[Any, Any, str, str]] = [
    (PremiumOrder(1, [], "ribbon"), Order, "$.gift", "lost"),
    ([Order(1), PremiumOrder(1, [], "ribbon")], list[Order], "$[1].gift", "lost"),
    ({"id": 1, "colour": "red"}, Named, "$.colour", "lost"),
    (Hasty(text="hi"), Hasty, "$.text", "comes back changed"),
    ({"sku": "x", "price": "1", "seen": ["a"], "at": None, "on_hand": "4", "raw": b""}, Item, "$.on_hand", "comes back changed"),
    (Order(object()), Order, "$.id", "object has no plain form"),  # type: ignore[arg-type]
    (Order(1, [print]), Order, "$.tags[0]", "no plain form"),  # type: ignore[list-item]
    ({"a": {(1, 2): 3}}, dict[str, Any], "$.a", "tuple, which has no text"),
    ({1: "a", "1": "b"}, dict[Any, Any], "$", "two keys"),
    (Item.model_construct(sku=5, price=Decimal(1)), Item, "$", "cannot be written"),
]


@pytest.mark.req("VAL-03")
@pytest.mark.parametrize(("value", "kind", "path", "why"), LOST, ids=[why for *_, why in LOST])
def test_what_would_not_come_back_is_refused_before_it_is_kept(value: Any, kind: Any, path: str, why: str) -> None:
    with pytest.raises(ConversionError, match=why) as refused:
        plain(value, kind)
    assert refused.value.path == path


def test_a_type_may_refuse_for_itself() -> None:
    with pytest.raises(ConversionError, match=r"^\$: does not fit Picky: LookupError: no such amount$"):
        typed({"amount": -1}, Picky)


def test_an_endless_object_is_refused() -> None:
    node = Node("a")
    node.children.append(node)
    with pytest.raises(ConversionError, match="64 levels"):
        plain(node, Node)


def test_portable_limits_hold_inside_typed_data() -> None:
    for value, path in ((Page([float("nan")]), "$.items[0]"), (Page([2**64]), "$.items[0]"), (Page(["\ud800"]), "$.items[0]")):
        with pytest.raises(ConversionError) as refused:
            to_wire(plain(value, Page[Any]))
        assert refused.value.path == path


class Opaque:
    pass


@dataclass
class Holder:
    it: Opaque


@dataclass
class Lost:
    it: Missing  # type: ignore[name-defined]  # noqa: F821 - an annotation that leads nowhere is the point


@pytest.mark.parametrize("kind", [Opaque, Holder, list[Holder], Lost, "Order", 5, {}, Order | Invoice, list[Item | Card]], ids=str)
def test_a_type_of_no_values_is_found_before_anything_runs(kind: Any) -> None:
    with pytest.raises(MisuseError, match="is no type for values"):
        check_type(kind)


def test_an_event_of_no_values_is_found_before_anything_runs() -> None:
    app = Ryusen("shop")

    @app.function(on="order/placed")
    async def ship(event: Event[Holder], step: Step) -> None: ...

    (function,) = app.registry.functions()
    with pytest.raises(DefinitionError, match=r"'ship' .* takes Event\[Holder\]: Opaque is no dataclass"):
        function.event_type()


def test_pydantic_and_attrs_are_loaded_for_their_own_types_only() -> None:
    program = (
        "import sys, dataclasses, ryusen_sdk\n"
        "from ryusen_sdk.typed import check_type, plain, typed, json_view\n"
        "from ryusen_sdk.plain_data import json_bytes\n"
        "@dataclasses.dataclass\n"
        "class D: x: int\n"
        "check_type(D); plain(D(1), D); typed({'x': 1}, D); json_view(b'{\"x\":1}', D); json_bytes(D(1))\n"
        "print(sorted({'pydantic', 'attr', 'attrs'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip() == "[]"


# JSON text.


@pytest.mark.req("VAL-06")
@pytest.mark.parametrize(
    ("data", "kind", "expected"),
    [
        (b'{"id": 3}', Order, Order(3)),
        (b'[{"id": 3}]', list[Order], [Order(3)]),
        (b'{"sku": "x", "price": 1.10, "onHand": 4}', Item, Item(sku="x", price=Decimal("1.10"), onHand=4)),
        (b'{"best": {"sku": "x", "price": "1"}, "all": []}', Invoice, Invoice(Item(sku="x", price=Decimal(1)), [])),
        (b'{"corner": [1, 2], "key": "00000000-0000-0000-0000-000000000001"}', Strict, Strict(corner=(1, 2), key=uuid.UUID(int=1))),
        (b"-0.0", None, -0.0),
        (b'"\\u00e9"', None, "é"),
    ],
)
def test_json_view(data: bytes, kind: Any, expected: Any) -> None:
    before = bytes(data)
    assert json_view(data, kind) == expected
    assert data == before


@pytest.mark.req("VAL-07", "VAL-08")
@pytest.mark.parametrize(
    "data", [b"", b"x", b"{", b'{"a": NaN}', b"Infinity", b"-Infinity", b"1e999", b'"\\ud800"', b"\xff", b"[" * 100_000, b"text"]
)
@pytest.mark.parametrize("kind", [None, Order, Item, Any])
def test_bytes_that_are_no_json_are_an_error_and_never_text(data: bytes, kind: Any) -> None:
    with pytest.raises(ConversionError, match=r"exact bytes are in event\.payload"):
        json_view(data, kind)


@pytest.mark.parametrize(("data", "kind", "path"), [(b'{"id": "x"}', Order, "$.id"), (b'{"sku": "x", "price": "y"}', Item, "$.price")])
def test_json_that_does_not_fit_names_the_member(data: bytes, kind: Any, path: str) -> None:
    with pytest.raises(ConversionError) as refused:
        json_view(data, kind)
    assert refused.value.path == path


@pytest.mark.req("VAL-07")
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": float("nan")}, "$.a"),
        ([1, -float("inf")], "$[1]"),
        ({"at": [MOMENT]}, "$.at[0]"),
        ({"span": timedelta(1)}, "$.span"),
        ({"blob": BLOB}, "$.blob"),
        ({"raw": b"x"}, "$.raw"),
        ({"n": 2**64}, "$.n"),
        ({"n": -(2**63) - 1}, "$.n"),
        ({"text": "\ud800"}, "$.text"),
        ({"a": {1: 2}}, "$.a"),
        ({"a": {1, 2}}, "$.a"),
        ({"a": Decimal(1)}, "$.a"),
        ({"page": Page([float("nan")])}, "$.page.items[0]"),
    ],
)
def test_what_json_cannot_say_is_refused_and_not_changed(value: Any, path: str) -> None:
    with pytest.raises(ConversionError) as refused:
        json_bytes(value)
    assert refused.value.path == path


TEXTUAL = ITEM.model_copy(update={"raw": b"text"})
"""Pydantic writes bytes as text unless a model says otherwise."""


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Order(1, ["a"]), Order),
        ([Order(1)], list[Order]),
        (CASES[6][0], Basket),
        ([Card("1"), Cash(2)], list[Card | Cash]),
        (Node("a", [Node("b")]), Node),
        (Page([Order(1)], Page([])), Page[Order]),
        (TEXTUAL, Item),
        ({"a": [TEXTUAL]}, dict[str, list[Item]]),
        (Paged[Item](items=[TEXTUAL]), Paged[Item]),
        (Invoice(TEXTUAL, [TEXTUAL]), Invoice),
    ],
    ids=lambda case: str(case)[:30],
)
def test_a_typed_object_in_json_is_read_again_by_its_type(value: Any, kind: Any) -> None:
    assert json_view(json_bytes(value), kind) == value


def test_a_model_that_cannot_be_written_says_why() -> None:
    with pytest.raises(ConversionError, match=r"^\$\.all\[1\]: Item cannot be written: 'utf-8' codec"):
        json_bytes({"all": [TEXTUAL, ITEM]})
    with pytest.raises(ConversionError, match=r"^\$: Item cannot be written: 'utf-8' codec"):
        json_bytes(Invoice(ITEM, []))


def test_json_keeps_every_64_bit_integer() -> None:
    numbers = [2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**63)]
    assert json_view(json_bytes(numbers), None) == numbers
