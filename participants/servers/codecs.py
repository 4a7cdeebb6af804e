"""How the state of a session becomes plain JSON and comes back: the codec protocol, two codecs and their check.

Rules (docs/reference/protocol.md section 14, *Payloads*, `state.codec` and `state.data`; S11): what is exported is
plain JSON and shares nothing with the state; what is loaded equals what was exported and shares nothing with anything.
A codec that claims this is checked by doing it (`check_codec`), never believed; what it cannot carry it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import attrs

from statecore.errors import StatecoreError, WireError, WireErrors, path_of
from statecore.wire import encode, parse, structure, unstructure

JSON: TypeAlias = Any
"""Plain JSON: None, bool, int, float, str, list, dict with str keys."""

S = TypeVar("S")
Loc: TypeAlias = tuple[str | int, ...]
_Reached: TypeAlias = dict[int, tuple[Loc, object]]

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_IMMUTABLE = (tuple, frozenset, MappingProxyType, Enum)
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


class CodecError(StatecoreError):
    """State that a codec cannot carry, data that it cannot load, or a codec that does not do what it claims.

    `codec` is its name, `path` the place (`$.layers[0]._elapsed_steps`), `problem` what is wrong there.
    """

    def __init__(self, codec: str, path: str, problem: str) -> None:
        super().__init__(codec, path, problem)
        self.codec = codec
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"codec {self.codec}: {self.path}: {self.problem}"


class Codec(Protocol[S]):
    """Carries the state of one session into a record and back.

    `name` is written into the record's `codec` and compared before a load. `export` leaves the state as it is and
    returns JSON that later changes of the state do not touch. `load` makes a new state. Both raise CodecError and
    nothing else for what they refuse.
    """

    @property
    def name(self) -> str: ...

    def export(self, state: S, /) -> JSON: ...

    def load(self, data: JSON, /) -> S: ...


@attrs.frozen
class _AttrsCodec(Codec[S]):
    cls: type[S]
    name: str

    def export(self, state: S, /) -> JSON:
        if type(state) is not self.cls:
            found, due = type(state).__qualname__, self.cls.__qualname__
            raise CodecError(self.name, "$", f"the state is a {found}, not a {due}")
        return _copied(self.name, unstructure(state))

    def load(self, data: JSON, /) -> S:
        try:
            return structure(_copied(self.name, data), self.cls)
        except (WireError, WireErrors) as error:
            raise _from_wire(self.name, error) from error


@attrs.frozen
class _JsonCodec(Codec[Any]):
    name: str = "json"

    def export(self, state: Any, /) -> JSON:
        return _copied(self.name, state)

    def load(self, data: JSON, /) -> Any:
        return _copied(self.name, data)


def attrs_codec(cls: type[S], name: str | None = None) -> Codec[S]:
    """A codec for an attrs class whose fields `statecore.wire` can structure; `name` is `attrs:<class>` unless given.

    Raises TypeError if `cls` is no attrs class.
    """
    if not attrs.has(cast("type[Any]", cls)):
        raise TypeError(f"attrs_codec({cls!r}): not an attrs class; decorate it with @attrs.define, or write a Codec")
    codec: Codec[S] = _AttrsCodec(cls, name if name is not None else f"attrs:{cls.__qualname__}")
    return codec


def json_codec() -> Codec[Any]:
    """A codec for state that is plain JSON itself; both ways it is copied, so nothing is shared."""
    return _JsonCodec()


def undo_of(codec: Codec[S], state: S) -> Callable[[], S]:
    """A function that gives `state` as it is now, whatever is done to it meanwhile.

    A state that cannot be changed (a frozen attrs object all of whose content is hashable) is kept itself, any other is
    exported and loaded.
    """
    cls = type(state)
    if cls.__setattr__ is not object.__setattr__ and cls.__hash__ not in (None, object.__hash__):
        try:
            hash(state)
        except TypeError:
            pass  # frozen outside, mutable inside
        else:
            return lambda: state
    image = codec.export(state)
    return lambda: codec.load(image)


def check_codec(codec: Codec[S], state: S) -> None:
    """The codec carries this state: exported, written, read, loaded and exported again it is the same (S11).

    Raises CodecError naming what differs, what is shared between the two states or with the data, or what the codec
    itself refuses. The state is only exported, so a codec that changes what it exports is found out too.
    """
    data = codec.export(state)
    written = _written(codec.name, data)
    read = parse(written)
    loaded = codec.load(read)
    if _written(codec.name, read) != written:
        raise CodecError(codec.name, _difference(data, read) or "$", "load changed the data that it was given")
    if type(loaded) is not type(state):
        raise CodecError(codec.name, "$", f"a {type(state).__qualname__} came back as a {type(loaded).__qualname__}")
    for again, what in ((codec.export(loaded), "after a load"), (codec.export(state), "the second time")):
        if _written(codec.name, again) != written:
            raise CodecError(codec.name, _difference(data, again) or "$", f"the export differs {what}")
    if type(state).__eq__ is not object.__eq__ and loaded != state:
        raise CodecError(codec.name, "$", "the loaded state is not equal to the one exported, though their exports are")
    theirs = _mutable(loaded)
    ours = _mutable(state)
    _check_nothing_shared(codec.name, ours, theirs, "the loaded state")
    _check_nothing_shared(codec.name, _mutable(read), theirs, "the loaded state")
    _check_nothing_shared(codec.name, _mutable(data), ours, "the state that was exported")


def _from_wire(name: str, error: WireError | WireErrors) -> CodecError:
    problem = error.problem if isinstance(error, WireError) else str(error)
    return CodecError(name, error.errors[0].path, problem)


def _written(name: str, data: JSON) -> bytes:
    try:
        return encode(data)
    except WireError as error:
        raise CodecError(name, error.path, f"not plain JSON: {error.problem}") from error


def _copied(name: str, data: JSON) -> JSON:
    return parse(_written(name, data))


def _difference(left: JSON, right: JSON, loc: Loc = ()) -> str | None:
    """The path of the first place where two JSON values differ, types and the sign of zero included."""
    if type(left) is type(right) is dict:
        for key in [*left, *(key for key in right if key not in left)]:
            if key not in left or key not in right:
                return path_of((*loc, key))
            if found := _difference(left[key], right[key], (*loc, key)):
                return found
        return None
    if type(left) is type(right) is list:
        for index in range(max(len(left), len(right))):
            if index >= min(len(left), len(right)):
                return path_of((*loc, index))
            if found := _difference(left[index], right[index], (*loc, index)):
                return found
        return None
    return None if type(left) is type(right) and repr(left) == repr(right) else path_of(loc)


def _check_nothing_shared(name: str, left: _Reached, right: _Reached, what: str) -> None:
    for identity, (loc, value) in left.items():
        if identity in right:
            raise CodecError(name, path_of(loc), f"this {type(value).__qualname__} is shared with {what}")


def _mutable(root: object) -> _Reached:
    """Every mutable object that is reached from `root` through containers and attributes: its id, path and itself."""
    seen = {id(root)}
    found: _Reached = {}
    waiting: list[tuple[Loc, object]] = [((), root)]
    while waiting:
        loc, value = waiting.pop()
        if _is_mutable(value):
            found[id(value)] = loc, value
        for part, child in _children(value):
            if type(child) not in _ATOMS and id(child) not in seen and not isinstance(child, _CODE):
                seen.add(id(child))
                waiting.append(((*loc, part), child))
    return found


def _children(value: object) -> Iterator[tuple[str | int, object]]:
    if isinstance(value, dict | MappingProxyType):
        yield from ((str(key), child) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from enumerate(value)
    elif type(value) not in _ATOMS and not isinstance(value, Enum):
        yield from getattr(value, "__dict__", {}).items()
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                    yield slot, getattr(value, slot)
        if hasattr(type(value), "bit_generator"):  # numpy's Generator: two of them may draw from one stream
            yield "bit_generator", value.bit_generator  # type: ignore[attr-defined]


def _is_mutable(value: object) -> bool:
    """Whether changing the object is possible: it has no hash, or is told from its equals by identity alone."""
    if type(value) in _ATOMS or isinstance(value, (*_IMMUTABLE, *_CODE)):
        return False
    how: object = type(value).__hash__
    if how is None:
        return bool(getattr(getattr(value, "flags", None), "writeable", True))  # a read-only numpy array is a constant
    return how is object.__hash__
