"""Codecs of session state: what they carry they carry exactly, and what they claim is checked by doing it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from attrs import Factory, define, frozen
from hypothesis import given
from hypothesis import strategies as st

from participants.servers.codecs import JSON, Codec, CodecError, attrs_codec, check_codec, json_codec
from statecore.wire import canonical


@define
class Basket:
    items: list[str] = Factory(list)
    total: int = 0
    extra: dict[str, Any] = Factory(dict)


@frozen
class Broken(Codec[Basket]):
    """The attrs codec of Basket with one fault put in."""

    fault: str
    name: str = "broken"

    def export(self, state: Basket, /) -> JSON:
        data: dict[str, Any] = {"items": list(state.items), "total": state.total, "extra": deepcopy(state.extra)}
        match self.fault:
            case "forgets":
                del data["total"]
            case "tuple":
                data["items"] = tuple(state.items)
            case "nan":
                data["total"] = float("nan")
            case "changes the state":
                state.total += 1
            case "shares the export":
                data["items"] = state.items
        return data

    def load(self, data: JSON, /) -> Basket:
        total = data.get("total", 0)
        match self.fault:
            case "rounds":
                return Basket(list(data["items"]), total // 2 * 2, deepcopy(data["extra"]))
            case "shares the data":
                return Basket(data["items"], total, deepcopy(data["extra"]))
            case "eats the data":
                eaten = [data["items"].pop() for _ in list(data["items"])]
                return Basket(eaten[::-1], total, deepcopy(data["extra"]))
            case "other type":
                return Bigger(list(data["items"]), total, deepcopy(data["extra"]))
        return Basket(list(data["items"]), total, deepcopy(data["extra"]))


@define
class Bigger(Basket):
    pass


def full() -> Basket:
    return Basket(["pear", "fig"], 7, {"of": [1, {"deep": [2.5, -0.0, 2**200]}]})


def test_a_sound_codec_passes_the_check() -> None:
    """The double without a fault, the attrs codec and the JSON codec carry the same state and pass."""
    check_codec(Broken("none"), full())
    check_codec(attrs_codec(Basket), full())
    check_codec(json_codec(), {"items": ["pear"], "n": -0.0, "wide": 2**127 + 1})


@pytest.mark.parametrize(
    ("fault", "path", "problem"),
    [
        ("forgets", "$", "not equal"),
        ("tuple", "$.items", "not plain JSON"),
        ("nan", "$.total", "not plain JSON"),
        ("changes the state", "$.total", "differs the second time"),
        ("shares the export", "$.items", "shared with the state that was exported"),
        ("rounds", "$.total", "differs after a load"),
        ("shares the data", "$.items", "shared with the loaded state"),
        ("eats the data", "$.items[0]", "load changed the data"),
        ("other type", "$", "came back as a Bigger"),
    ],
)
def test_s11_claimed_not_able(fault: str, path: str, problem: str) -> None:
    """A codec that claims to carry the state and does not is found out by the check, which names the place."""
    with pytest.raises(CodecError) as caught:
        check_codec(Broken(fault), full())
    assert caught.value.path == path
    assert problem in caught.value.problem
    assert str(caught.value).startswith("codec broken: $")


def test_sharing_between_two_states_is_found_inside_attributes() -> None:
    """A list that both states hold two levels down is named with its path."""

    class Cell:
        def __init__(self, held: dict[str, list[int]]) -> None:
            self.held = held

    kept = [1]

    class Shares(Codec[Cell]):
        name = "shares"

        def export(self, state: Cell, /) -> JSON:
            return {"held": list(state.held["in"])}

        def load(self, data: JSON, /) -> Cell:
            return Cell({"in": kept})

    with pytest.raises(CodecError, match=r"\$\.held\.in: this list is shared"):
        check_codec(Shares(), Cell({"in": kept}))


def test_an_export_is_not_touched_by_what_happens_later() -> None:
    """What the state becomes after the export changes nothing in it, and the loaded state is a third thing."""
    codec, state = attrs_codec(Basket), full()
    data = codec.export(state)
    before = canonical(data)
    loaded = codec.load(data)
    state.items.append("plum")
    state.extra["of"].append("late")
    loaded.extra["of"][1]["deep"].clear()
    assert canonical(data) == before
    assert loaded.items == ["pear", "fig"]


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"items": ["a"], "total": "7", "extra": {}}, "$.total"),
        ({"items": ["a"], "total": 7, "extra": {}, "more": 1}, "$.more"),
        ({"items": [1], "total": 7, "extra": {}}, "$.items[0]"),
        ([], "$"),
    ],
)
def test_the_attrs_codec_refuses_bad_data_by_path(data: JSON, path: str) -> None:
    """Wrong types, unknown fields and a wrong shape are CodecErrors that name the place."""
    with pytest.raises(CodecError) as caught:
        attrs_codec(Basket).load(data)
    assert caught.value.path == path


def test_the_attrs_codec_refuses_another_state() -> None:
    """A state of another class, a subclass too, is refused by the names of both."""
    with pytest.raises(CodecError, match="the state is a Bigger, not a Basket"):
        attrs_codec(Basket).export(Bigger())


def test_the_attrs_codec_is_named_after_its_class() -> None:
    """The record says which codec wrote it; a name can be given so that a class may be renamed."""
    assert attrs_codec(Basket).name == "attrs:Basket"
    assert attrs_codec(Basket, "basket").name == "basket"


def test_a_class_without_attrs_is_refused_when_the_codec_is_made() -> None:
    """A plain class has no declared fields; the message says what to do."""
    with pytest.raises(TypeError, match=r"not an attrs class; decorate it"):
        attrs_codec(int)


@pytest.mark.parametrize("state", [{"a": (1,)}, {1: "a"}, {"a": b""}, {"a": float("inf")}, "\ud800", {"a": {1}}])
def test_the_json_codec_refuses_what_json_does_not_hold(state: Any) -> None:
    """Tuples, keys that are no strings, bytes, infinities, lone surrogates and sets are refused by path."""
    with pytest.raises(CodecError, match=r"codec json: \$"):
        json_codec().export(state)


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain_json)
def test_the_json_codec_carries_any_json(state: JSON) -> None:
    """Any plain JSON passes the check: exact both ways, nothing shared."""
    check_codec(json_codec(), state)
