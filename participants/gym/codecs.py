"""Codecs for the session state of resources servers that NeMo Gym ships.

Each carries exactly what it knows: a session that holds anything else is refused by name, and so is other data.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from attrs import frozen

from statecore.wire import digest

from ..servers.codecs import JSON, Codec, CodecError
from .held import Held, InAttribute, Slot, SlotCodec, held_in

RANKS: Final = ("2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K", "A")
RANDOM_VERSION: Final = 3
RANDOM_WORDS: Final = 625
"""A Mersenne Twister: 624 words of 32 bits and a position."""


def export_random(generator: random.Random) -> JSON:
    """The whole state of a generator of Python's `random`, the half of a Gaussian pair that it may hold included."""
    version, words, gauss = generator.getstate()
    return {"version": version, "words": list(words), "gauss": gauss}


def load_random(name: str, path: str, data: JSON) -> random.Random:
    """A generator of its own that draws on where the exported one stood."""
    fields = _fields(name, path, data, {"version", "words", "gauss"})
    words, gauss = fields["words"], fields["gauss"]
    if fields["version"] != RANDOM_VERSION:
        raise CodecError(name, f"{path}.version", f"{fields['version']!r} is not {RANDOM_VERSION}")
    if type(words) is not list or len(words) != RANDOM_WORDS or any(type(each) is not int for each in words):
        raise CodecError(name, f"{path}.words", f"not {RANDOM_WORDS} integers")
    if any(not 0 <= each < 1 << 32 for each in words) or words[-1] >= RANDOM_WORDS:
        raise CodecError(name, f"{path}.words", "not 624 words of 32 bits and a position among them")
    if gauss is not None and type(gauss) is not float:
        raise CodecError(name, f"{path}.gauss", f"{gauss!r} is neither null nor a float")
    generator = random.Random(0)
    generator.setstate((RANDOM_VERSION, tuple(words), gauss))
    return generator


@frozen
class _BlackjackCodec(Codec[dict[str, Any]]):
    """A hand: the player's cards, the dealer's, and the generator that deals."""

    name: str = "gym:blackjack"

    def export(self, state: dict[str, Any], /) -> JSON:
        fields = _fields(self.name, "$", state, {"player", "dealer", "rng"})
        if type(fields["rng"]) is not random.Random:
            raise CodecError(self.name, "$.rng", f"a {type(fields['rng']).__qualname__} is no generator known here")
        hands = {who: self._cards(who, fields[who]) for who in ("player", "dealer")}
        return {**hands, "rng": export_random(fields["rng"])}

    def load(self, data: JSON, /) -> dict[str, Any]:
        fields = _fields(self.name, "$", data, {"player", "dealer", "rng"})
        hands = {who: self._cards(who, fields[who]) for who in ("player", "dealer")}
        return {**hands, "rng": load_random(self.name, "$.rng", fields["rng"])}

    def _cards(self, who: str, value: Any) -> list[str]:
        if type(value) is not list or any(each not in RANKS for each in value):
            raise CodecError(self.name, f"$.{who}", f"{value!r} is no list of cards")
        return list(value)


def blackjack_sessions() -> Held:
    """The sessions of `resources_servers/blackjack`: the game and its random state."""
    return held_in("session_state", _BlackjackCodec())


FRAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "calendar": ("_calendar_events",),
    "email": ("_emails",),
    "analytics": ("_analytics_data", "_plots_data"),
    "project_management": ("_project_tasks",),
    "customer_relationship_manager": ("_crm_data",),
    "company_directory": ("_emails",),
}
"""The data frames of each of the workplace's tools: all that a tool keeps."""


def frame_keys() -> tuple[str, ...]:
    """The names of all data frames, as records have them: ``tool._frame``."""
    return tuple(f"{tool}.{frame}" for tool, frames in FRAMES.items() for frame in frames)


@frozen
class _WorkplaceCodec(Codec[dict[str, Any]]):
    """The data frames of one workplace by name. One that is as the workplace ships it is left out: most stay so."""

    name: str = "gym:workplace_assistant"

    def export(self, state: dict[str, Any], /) -> JSON:
        frames = _fields(self.name, "$", state, set(frame_keys()))
        fresh = _fresh_frames()
        changed = {
            key: _export_frame(self.name, f"$.{key}", frames[key])
            for key in frame_keys()
            if not _same(frames[key], fresh[key])
        }
        return {"shipped": _shipped(), "frames": changed}

    def load(self, data: JSON, /) -> dict[str, Any]:
        fields = _fields(self.name, "$", data, {"shipped", "frames"})
        changed = fields["frames"]
        if fields["shipped"] != _shipped():
            raise CodecError(self.name, "$.shipped", "this workplace ships other data than the one that was exported")
        if type(changed) is not dict or not set(changed) <= set(frame_keys()):
            raise CodecError(self.name, "$.frames", "not an object of the workplace's data frames")
        fresh = _fresh_frames()
        return {
            key: _load_frame(self.name, f"$.frames.{key}", changed[key]) if key in changed else fresh[key].copy()
            for key in frame_keys()
        }


@frozen
class _Workplace(InAttribute):
    """The sessions of the workplace: of each its tools, whose state is their data frames and nothing else."""

    def get(self, server: Any, session_id: str) -> Slot:
        tools = self.all_of(server).get(session_id)
        return Slot(None if tools is None else frames_of(tools))

    def put(self, server: Any, session_id: str, state: Slot) -> None:
        if state.value is None:
            self.drop(server, session_id)
            return
        tools = _tools()
        for key, frame in state.value.items():
            tool, _, attribute = key.partition(".")
            setattr(tools["containers"][tool], attribute, frame)
        self.all_of(server)[session_id] = tools


def workplace_sessions() -> Held:
    """The sessions of `resources_servers/workplace_assistant`."""
    return _Workplace("session_id_to_tool_env", SlotCodec(_WorkplaceCodec()))


def frames_of(tools: Mapping[str, Any]) -> dict[str, Any]:
    """The data frames of a workplace's tools; CodecError for a tool that keeps anything else."""
    holders = tools["containers"].items()
    found = {f"{tool}.{name}": each for tool, holder in holders for name, each in vars(holder).items()}
    if set(found) != set(frame_keys()):
        strange = ", ".join(sorted(set(found) ^ set(frame_keys())))
        raise CodecError("gym:workplace_assistant", "$", f"its tools do not keep what is known here: {strange}")
    return found


def _tools() -> dict[str, Any]:
    """Tools as the workplace makes them for a new session."""
    utils: Any = importlib.import_module("resources_servers.workplace_assistant.utils")
    made: dict[str, Any] = utils.get_tools([tool for tool in FRAMES if tool != "company_directory"])
    return made


@cache
def _fresh_frames() -> Mapping[str, Any]:
    """The frames as the workplace ships them, to compare with and to copy."""
    return frames_of(_tools())


@cache
def _shipped() -> str:
    """The digest of what the workplace ships."""
    return digest({key: _export_frame("gym:workplace_assistant", key, each) for key, each in _fresh_frames().items()})


def _same(left: Any, right: Any) -> bool:
    same_kinds = list(left.index) == list(right.index) and dict(left.dtypes) == dict(right.dtypes)
    return same_kinds and bool(left.equals(right))


def _export_frame(name: str, path: str, frame: Any) -> JSON:
    """A frame as its columns in order, the kind of each, its row labels and its values; a missing value is null."""
    columns: list[JSON] = []
    for column in frame.columns:
        if type(column) is not str:
            raise CodecError(name, path, f"column {column!r} has no text for a name")
        missing = frame[column].isna().tolist()
        values = [None if gone else value for gone, value in zip(missing, frame[column].tolist(), strict=True)]
        for value in values:
            if type(value) not in (str, bool, type(None)):
                raise CodecError(name, f"{path}.{column}", f"{value!r} is neither text nor true or false")
        columns.append({"name": column, "dtype": str(frame[column].dtype), "values": values})
    rows = frame.index.tolist()
    if any(type(row) is not int for row in rows):
        raise CodecError(name, path, "its row labels are no integers")
    return {"rows": rows, "columns": columns}


def _load_frame(name: str, path: str, data: JSON) -> Any:
    pandas: Any = importlib.import_module("pandas")
    fields = _fields(name, path, data, {"rows", "columns"})
    rows, columns = fields["rows"], fields["columns"]
    if type(rows) is not list or any(type(row) is not int for row in rows) or type(columns) is not list:
        raise CodecError(name, path, "rows are a list of integers, columns a list")
    made = {}
    for index, column in enumerate(columns):
        part = _fields(name, f"{path}.columns[{index}]", column, {"name", "dtype", "values"})
        if type(part["values"]) is not list or len(part["values"]) != len(rows) or type(part["name"]) is not str:
            raise CodecError(name, f"{path}.columns[{index}]", f"not a name and {len(rows)} values")
        try:
            made[part["name"]] = pandas.Series(part["values"], index=rows, dtype=part["dtype"])
        except (TypeError, ValueError) as error:
            raise CodecError(name, f"{path}.columns[{index}]", str(error)) from error
    return pandas.DataFrame(made, index=rows, columns=list(made))


def _fields(name: str, path: str, value: Any, keys: set[str]) -> dict[str, Any]:
    if type(value) is not dict or set(value) != keys:
        raise CodecError(name, path, f"not an object with {', '.join(sorted(keys))} and nothing else")
    return value
