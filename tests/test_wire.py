"""What crosses a border: exact on the way back, or refused with the place named."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any, Generic, Literal, NewType, TypeVar

import attrs
import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from statecore import DefinitionError, StatecoreError, WireError, WireErrors
from statecore.wire import (
    MAX_DEPTH,
    MAX_INTEGER_BITS,
    canonical,
    converter,
    digest,
    exact,
    items,
    number,
    parse,
    sha256_hex,
    structure,
    text,
    unstructure,
)

SURROGATE = "\ud800"
STRINGS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=20,
)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    ONE = 1


class Mixed(str, Enum):  # noqa: UP042
    X = "x"


class Text(str):
    pass


def same(left: object, right: object) -> bool:
    """Equal, types included: 1 is not True, 1.0 is not 1, 0.0 is not -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# --- plain JSON


@given(JSON)
def test_what_is_written_comes_back_equal_types_included(value: Any) -> None:
    """parse(canonical(x)) is x, whatever plain JSON it is."""
    assert same(parse(canonical(value)), value)


@given(JSON)
def test_the_canonical_form_is_the_standard_librarys(value: Any) -> None:
    """Sorted keys, no spaces, UTF-8 as it is: other implementations can write the same bytes."""
    data = canonical(value)
    expected = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    assert data == expected.encode()
    assert canonical(parse(data)) == data
    assert digest(value) == sha256_hex(data)


def test_the_canonical_form_of_a_known_value() -> None:
    """The bytes and the digest, pinned."""
    value = {"b": [1, -0.0, True, None], "a": "ü\n", "A": 2**128}
    assert canonical(value) == (
        '{"A":340282366920938463463374607431768211456,"a":"ü\\n","b":[1,-0.0,true,null]}'.encode()
    )
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("value", [-0.0, 2**53 + 1, 2**64, 2**128, -(2**63) - 1, 5e-324, 1.7976931348623157e308, 1e16])
def test_numbers_that_others_lose_are_exact(value: Any) -> None:
    """-0.0, integers beyond 64 bits (a PCG64 state has 128), the smallest and the largest float."""
    assert same(parse(canonical(value)), value)


@pytest.mark.parametrize(
    ("bad", "kind", "says"),
    [
        (math.nan, "finite_number", "nan is no finite number"),
        (math.inf, "finite_number", "inf is no finite number"),
        (-math.inf, "finite_number", "-inf is no finite number"),
        ((1, 2), "json_type", "tuple is no plain JSON"),
        (b"x", "json_type", "bytes is no plain JSON"),
        (bytearray(b"x"), "json_type", "bytearray is no plain JSON"),
        ({1}, "json_type", "set is no plain JSON"),
        (frozenset(), "json_type", "frozenset is no plain JSON"),
        (Colour.RED, "json_type", "Colour is no plain JSON"),
        (Level.ONE, "json_type", "Level is no plain JSON"),
        (Mixed.X, "json_type", "Mixed is no plain JSON"),
        (Text("x"), "json_type", "Text is no plain JSON"),
        (object, "json_type", "type is no plain JSON"),
        (1j, "json_type", "complex is no plain JSON"),
        (SURROGATE, "string_unicode", "lone surrogate"),
        (f"a{SURROGATE}", "string_unicode", "lone surrogate"),
        (1 << MAX_INTEGER_BITS, "int_parsing_size", "more than 4096 bits"),
        (-(1 << MAX_INTEGER_BITS), "int_parsing_size", "more than 4096 bits"),
    ],
)
def test_what_would_not_come_back_is_refused_by_path(bad: Any, kind: str, says: str) -> None:
    """Wherever it is, the place is named, and the path is the same from `exact`, `canonical` and `digest`."""
    for check in (exact, canonical, digest):
        with pytest.raises(WireError) as caught:
            check({"a": [0, {"b": bad}]})
        assert (caught.value.path, caught.value.loc) == ("$.a[1].b", ("a", 1, "b"))
        assert caught.value.kind == kind
        assert says in caught.value.problem
    with pytest.raises(WireError, match=r"^\$: "):
        exact(bad)


@pytest.mark.parametrize("key", [1, 1.5, None, True, (1,), Colour.RED, Text("x"), SURROGATE])
def test_keys_that_are_no_strings_are_refused_by_path(key: Any) -> None:
    """json would write them as strings; they would come back as something else."""
    with pytest.raises(WireError) as caught:
        canonical({"a": {"fine": 1, key: 2}})
    assert caught.value.path == "$.a"
    assert "key" in caught.value.problem


def test_a_path_may_begin_elsewhere() -> None:
    """The caller names what it walks."""
    with pytest.raises(WireError, match=r"^state\.x\[0\]: nan is no finite number"):
        exact({"x": [math.nan]}, "state")


def test_odd_keys_are_quoted_in_paths() -> None:
    """A key that is no name cannot be taken for a path."""
    with pytest.raises(WireError) as caught:
        exact({"a.b": {"": math.nan}})
    assert caught.value.path == '$["a.b"][""]'


def test_nesting_has_a_bound_in_both_directions() -> None:
    """So many containers are fine, one more is refused; an endless one is refused too, and quickly."""
    assert parse(canonical(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(WireError, match="nested deeper than 200"):
        canonical(nested(MAX_DEPTH + 1))
    with pytest.raises(WireError, match="nested deeper than 200") as caught:
        parse("[" * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1))
    assert caught.value.kind == "json_invalid"
    with pytest.raises(WireError, match="nested deeper than 200"):
        parse("[" * 100_000 + "]" * 100_000)
    endless: list[Any] = []
    endless.extend([endless, endless])
    with pytest.raises(WireError, match="nested deeper than 200"):
        exact(endless)


@pytest.mark.parametrize(
    ("document", "says", "loc"),
    [
        ("", "Expecting value", (0,)),
        ("nul", "Expecting value", (0,)),
        ('{"a":}', "Expecting value", (5,)),
        ("[1 2]", "Expecting ',' delimiter", (3,)),
        ("1 2", "Extra data", (2,)),
        ("{'a':1}", "Expecting property name", (1,)),
        ('{"a":1,"b":{"c":1,"c":1}}', "key 'c' appears twice", ("b",)),
        ('{"a":1,"a":2}', "key 'a' appears twice", ()),
        ("[NaN]", "nan is no finite number", (0,)),
        ('{"a":[Infinity]}', "inf is no finite number", ("a", 0)),
        ("-Infinity", "-inf is no finite number", ()),
        ("[1e400]", "inf is no finite number", (0,)),
        ("-1e400", "-inf is no finite number", ()),
        ("\ufeff1", "byte order mark", (0,)),
        (b"\xef\xbb\xbf1", "byte order mark", (0,)),
        (b'"\xff"', "not UTF-8", (1,)),
        (b'"\xed\xa0\x80"', "not UTF-8", (1,)),  # an encoded surrogate
        ('["\\ud800"]', "lone surrogate", (0,)),
        ('{"\\ud800":1}', "lone surrogate", ()),
        ("1" * 5000, "Exceeds the limit", ()),
        (str(1 << MAX_INTEGER_BITS), "more than 4096 bits", ()),
        ("1".encode("utf-16"), "not UTF-8", (0,)),
    ],
)
def test_what_is_no_exact_json_is_refused(document: str | bytes, says: str, loc: tuple[str | int, ...]) -> None:
    """Syntax errors give the position, the rest its place; all of them are json_invalid."""
    with pytest.raises(WireError) as caught:
        parse(document)
    assert says in caught.value.problem
    assert (caught.value.kind, caught.value.loc) == ("json_invalid", loc)


def test_escaped_pairs_and_negative_zero_are_read() -> None:
    """A surrogate pair written as two escapes is one character."""
    assert parse('"\\ud83d\\ude00"') == "\N{GRINNING FACE}"
    assert same(parse(b"[-0.0, 1.0, 1]"), [-0.0, 1.0, 1])


@given(st.binary(max_size=60) | STRINGS)
def test_no_input_does_more_than_be_refused(document: bytes | str) -> None:
    """Whatever comes, it is a value or a WireError."""
    try:
        value = parse(document)
    except WireError:
        return
    assert same(parse(canonical(value)), value)


# --- types

Name = NewType("Name", str)
ItemT = TypeVar("ItemT")


@frozen
class Episode:
    rollout_id: str = field(validator=text(pattern=r"[A-Za-z0-9._-]+", min_length=1, max_length=8))
    attempt: int = field(default=0, validator=number(ge=0))


@frozen
class Everything:
    """One field of each form that records use."""

    episodes: tuple[Episode, ...] = ()
    colour: Colour = Colour.RED
    level: Level = Level.ONE
    payload: Any = None
    ratio: float = 0.5
    limit: float | None = None
    by_key: dict[str, Episode] = field(factory=dict)
    choice: Literal["a", 1] = "a"
    pair: tuple[int, str] = (1, "x")
    either: int | str = 1
    names: list[Name] = field(factory=list)
    flag: bool = False
    children: tuple[Everything, ...] = ()
    where: Path = Path("x")


@frozen
class Box(Generic[ItemT]):
    item: ItemT


@dataclass(frozen=True)
class Plain:
    x: int


FULL = Everything(
    episodes=(Episode("a", 2), Episode("b")),
    payload={"state": 2**128, "x": [-0.0, None]},
    limit=2.5,
    by_key={"k": Episode("c")},
    choice=1,
    pair=(2, "y"),
    either="z",
    names=[Name("n")],
    flag=True,
    children=(Everything(),),
    where=Path("a/b"),
)


def test_a_full_object_comes_back_equal() -> None:
    """Enums, tuples, optionals, unions, nested and recursive classes: JSON and back, through bytes too."""
    value = unstructure(FULL)
    exact(value)
    assert structure(parse(canonical(value)), Everything) == FULL
    assert value["colour"] == "red" and type(value["colour"]) is str
    assert value["level"] == 1 and type(value["level"]) is int
    assert value["episodes"] == [{"rollout_id": "a", "attempt": 2}, {"rollout_id": "b", "attempt": 0}]
    assert value["pair"] == [2, "y"]


@given(st.builds(Everything, payload=JSON, ratio=st.floats(allow_nan=False, allow_infinity=False), flag=st.booleans()))
def test_payloads_pass_through_typed_objects_exactly(thing: Everything) -> None:
    """An untyped field is plain JSON and comes back as it was."""
    back = structure(parse(canonical(unstructure(thing))), Everything)
    assert back == thing
    assert same(back.payload, thing.payload)
    assert same(back.ratio, thing.ratio)


def test_generic_classes_and_dataclasses_are_converted() -> None:
    """The type argument decides how the field is read."""
    assert structure({"item": [1, 2]}, Box[tuple[int, ...]]) == Box((1, 2))
    assert unstructure(Plain(3)) == {"x": 3}
    assert structure({"x": 3}, Plain) == Plain(3)
    with pytest.raises(WireError, match=r"^\$\.item: is not an integer"):
        structure({"item": "1"}, Box[int])


@pytest.mark.parametrize(
    ("name", "bad", "kind"),
    [
        # what cattrs itself would coerce
        ("episodes", [{"rollout_id": "a", "attempt": "5"}], "int_type"),
        ("episodes", [{"rollout_id": "a", "attempt": 1.7}], "int_type"),
        ("episodes", [{"rollout_id": "a", "attempt": 1.0}], "int_type"),
        ("episodes", [{"rollout_id": "a", "attempt": True}], "int_type"),
        ("episodes", [{"rollout_id": 5}], "string_type"),
        ("flag", "false", "bool_type"),
        ("flag", 0, "bool_type"),
        ("episodes", "ab", "list_type"),
        ("episodes", {"rollout_id": "a"}, "list_type"),
        ("episodes", None, "list_type"),
        ("names", "ab", "list_type"),
        ("names", [1], "string_type"),
        ("ratio", "0.5", "float_type"),
        ("ratio", True, "float_type"),
        ("ratio", 2**53 + 1, "float_type"),
        ("ratio", math.inf, "finite_number"),
        ("limit", "x", "float_type"),
        ("colour", "blue", "enum"),
        ("colour", None, "enum"),
        ("colour", ["red"], "enum"),
        ("level", 2, "enum"),
        ("level", True, "enum"),
        ("level", 1.0, "enum"),
        ("choice", True, "enum"),
        ("choice", "b", "enum"),
        ("choice", [], "enum"),
        ("either", None, "union_type"),
        ("pair", [1], "too_short"),
        ("pair", [1, "a", 2], "too_long"),
        ("pair", {"0": 1}, "list_type"),
        ("either", 1.5, "union_type"),
        ("either", True, "union_type"),
        ("by_key", [], "dict_type"),
        ("by_key", {"k": 1}, "model_attributes_type"),
        ("children", [[]], "model_attributes_type"),
        ("where", 5, "string_type"),
    ],
)
def test_nothing_is_coerced(name: str, bad: Any, kind: str) -> None:
    """Each primitive is of exactly its type, arrays are lists, objects dicts; the fault names the field."""
    with pytest.raises(WireError) as caught:
        structure({name: bad}, Everything)
    assert caught.value.kind == kind
    assert caught.value.loc[0] == name


def test_an_integer_stands_for_the_float_that_equals_it() -> None:
    """JSON does not tell 2 from 2.0; a float field holds a float in both cases, and writes one."""
    back = structure({"ratio": 2}, Everything)
    assert same(back.ratio, 2.0)
    assert same(unstructure(Everything(ratio=3))["ratio"], 3.0)


@frozen
class Unions:
    scale: float | str | None = None
    count: int | float = 0


def test_unions_of_primitives_take_exactly_their_members() -> None:
    """An integer is a float only where the union has no integer; a bool is never a number."""
    assert same(structure({"scale": 2}, Unions).scale, 2.0)
    assert same(structure({"count": 2}, Unions).count, 2)
    assert same(structure({"count": 2.0}, Unions).count, 2.0)
    assert structure({"scale": None}, Unions) == structure({}, Unions) == Unions()
    refused: list[tuple[str, Any]]
    refused = [("scale", True), ("scale", math.nan), ("scale", []), ("count", "1"), ("count", None)]
    for name, bad in refused:
        with pytest.raises(WireError):
            structure({name: bad}, Unions)


def test_every_fault_is_found_with_its_place() -> None:
    """Several faults come together, each with path, kind and problem, as a coordinator's log wants them."""
    with pytest.raises(WireErrors) as caught:
        structure(
            {
                "episodes": [{"rollout_id": "a/b"}, {"attempt": 1}, {"rollout_id": "x", "attempt": -1, "extra": 1}],
                "by_key": {"k": {"rollout_id": ""}, "l": {"rollout_id": "123456789"}},
                "unknown": 1,
            },
            Everything,
        )
    assert {(error.path, error.kind) for error in caught.value.errors} == {
        ("$.episodes[0].rollout_id", "string_pattern_mismatch"),
        ("$.episodes[1].rollout_id", "missing"),
        ("$.episodes[2].extra", "extra_forbidden"),
        ("$.by_key.k.rollout_id", "string_too_short"),
        ("$.by_key.l.rollout_id", "string_too_long"),
        ("$.unknown", "extra_forbidden"),
    }
    assert ("episodes", 1, "rollout_id") in [error.loc for error in caught.value.errors]
    assert "$.unknown: is not a known field (extra_forbidden)" in str(caught.value)


def test_one_fault_is_a_wire_error_and_reads_like_several() -> None:
    """`.errors` is there in both cases."""
    with pytest.raises(WireError) as caught:
        structure({"attempt": 1}, Episode)
    assert caught.value.errors == (caught.value,)
    assert str(caught.value) == "$.rollout_id: is required (missing)"
    assert isinstance(caught.value, StatecoreError)


@pytest.mark.parametrize("value", [[], "x", 1, None, ()])
def test_a_class_is_read_from_an_object_only(value: Any) -> None:
    """Anything else than a dict is refused, and said so."""
    with pytest.raises(WireError) as caught:
        structure(value, Episode)
    assert caught.value.kind == "model_attributes_type"


@pytest.mark.parametrize(
    ("thing", "path"),
    [
        (Everything(payload=(1,)), "$.payload"),
        (Everything(payload={"x": [{1}]}), "$.payload.x[0]"),
        (Everything(payload=Episode("a")), "$.payload"),
        (Everything(payload=Colour.RED), "$.payload"),
        (Everything(payload={1: 2}), "$.payload"),
        (Everything(payload=math.nan), "$.payload"),
        (Everything(payload=b"x"), "$.payload"),
        (Everything(ratio=math.nan), "$.ratio"),
        (Everything(ratio="x"), "$.ratio"),  # type: ignore[arg-type]
        (Everything(flag=1), "$.flag"),  # type: ignore[arg-type]
        (Everything(names=[Text("x")]), "$.names[0]"),  # type: ignore[list-item]
        (Everything(names=[Colour.RED]), "$.names[0]"),  # type: ignore[list-item]
        (Everything(names=[Mixed.X]), "$.names[0]"),  # type: ignore[list-item]
        (Everything(names=[SURROGATE]), "$.names[0]"),  # type: ignore[list-item]
        (Everything(names=("x",)), "$.names"),  # type: ignore[arg-type]
        (Everything(episodes=[]), "$.episodes"),  # type: ignore[arg-type]
        (Everything(episodes=(1,)), "$.episodes[0]"),  # type: ignore[arg-type]
        (Everything(pair=(1,)), "$.pair"),  # type: ignore[arg-type]
        (Everything(pair=(1, 2)), "$.pair[1]"),  # type: ignore[arg-type]
        (Everything(by_key={"k": 1}), "$.by_key.k"),  # type: ignore[dict-item]
        (Everything(children=(Everything(ratio=math.inf),)), "$.children[0].ratio"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(thing: Everything, path: str) -> None:
    """On the way out the same rules hold, so that a file never holds what its reader refuses."""
    with pytest.raises(WireError) as caught:
        unstructure(thing)
    assert caught.value.path == path


def test_a_subclass_in_a_field_is_refused_since_it_would_lose_fields() -> None:
    """cattrs would write the declared class's fields and drop the others silently."""

    @frozen
    class Named(Episode):
        name: str = "n"

    with pytest.raises(WireError, match=r"^\$\.episodes\[0\]: is not exactly a Episode but Named"):
        unstructure(Everything(episodes=(Named("a"),)))


@frozen
class Sets:
    tags: frozenset[str] = frozenset()


@frozen
class Bytes:
    data: bytes = b""


@frozen
class Numbered:
    by_number: dict[int, str] = field(factory=dict)


@frozen
class Mix:
    mixed: Mixed = Mixed.X


@pytest.mark.parametrize(
    ("thing", "value", "says"),
    [
        (Sets(frozenset({"a"})), {"tags": ["a"]}, "a set has no order in JSON; declare a tuple"),
        (Bytes(b"x"), {"data": "x"}, "bytes"),
        (Numbered({1: "x"}), {"by_number": {"1": "x"}}, "1"),
    ],
)
def test_fields_that_have_no_exact_form_are_refused_both_ways(thing: Any, value: Any, says: str) -> None:
    """Sets have no order, bytes no form, numbers as keys become strings: all named, with what to declare instead."""
    with pytest.raises(WireError, match=says):
        unstructure(thing)
    with pytest.raises(WireError):
        structure(value, type(thing))


def test_an_enum_that_is_a_str_by_inheritance_is_read_but_not_written() -> None:
    """In a str field it could not be told from text; the message says to make it a StrEnum."""
    assert structure({"mixed": "x"}, Mix) == Mix()
    with pytest.raises(WireError, match="make the enum a StrEnum"):
        unstructure(Mix())


def test_a_type_that_nothing_converts_is_a_definition_error() -> None:
    """It is our fault and not the peer's; hooks on the converter mend it."""

    @frozen
    class When:
        at: datetime

    attrs.resolve_types(When, globals(), locals())
    with pytest.raises(DefinitionError, match=r"nothing converts .*datetime.*; register hooks"):
        structure({"at": "2020-01-01"}, When)
    mine = converter.copy()
    mine.register_structure_hook(datetime, lambda value, _: datetime.fromisoformat(value))
    assert mine.structure({"at": "2020-01-01"}, When) == When(datetime(2020, 1, 1))


def test_checks_of_a_class_keep_their_place_and_bugs_come_through() -> None:
    """attrs' own validators name their field; a ValueError of the class is its fault; anything else is a bug."""

    @frozen
    class Checked:
        kind: str = field(validator=attrs.validators.matches_re("[a-z]+"))
        size: int = 0

        def __attrs_post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("size is negative")
            if self.size > 9:
                raise ZeroDivisionError("a bug")

    attrs.resolve_types(Checked, globals(), locals())
    with pytest.raises(WireError, match=r"^\$\.kind: .*must match regex.*value_error"):
        structure({"kind": "A"}, Checked)
    with pytest.raises(WireError, match=r"^\$: size is negative \(value_error\)"):
        structure({"kind": "a", "size": -1}, Checked)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        structure({"kind": "a", "size": 10}, Checked)


@frozen
class Bounded:
    ratio: float | None = field(default=None, validator=number(gt=0, le=1))
    tags: tuple[str, ...] | None = field(default=None, validator=items(min_length=1, max_length=2))
    name: str | None = field(default=None, validator=text(min_length=1))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"ratio": 0}, "greater_than"),
        ({"ratio": 1.5}, "less_than_equal"),
        ({"tags": []}, "too_short"),
        ({"tags": ["a", "b", "c"]}, "too_long"),
        ({"name": ""}, "string_too_short"),
    ],
)
def test_validators_say_which_bound_was_broken(value: Any, kind: str) -> None:
    """Numbers, counts and lengths have kinds of their own, at the field; None passes where the type allows it."""
    assert structure({"ratio": 1, "tags": ["a"], "name": "x"}, Bounded) == Bounded(1.0, ("a",), "x")
    assert structure({"ratio": None}, Bounded) == Bounded()
    with pytest.raises(WireError) as caught:
        structure(value, Bounded)
    assert (caught.value.kind, caught.value.loc) == (kind, (next(iter(value)),))


def test_a_pattern_holds_for_the_whole_text() -> None:
    """A newline at the end does not slip through, as `$` would let it."""
    with pytest.raises(WireError):
        structure({"rollout_id": "abc\n"}, Episode)
    with pytest.raises(WireError):
        Episode("a b")
