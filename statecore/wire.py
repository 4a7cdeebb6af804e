"""What crosses a border is exact on the way back, or refused with the place named.

Two halves. Plain JSON: `exact` walks a value, `canonical` writes it as the one byte string, `parse` reads bytes back,
`digest` is the sha256 of the canonical form. Types: `structure` and `unstructure` turn plain JSON into attrs classes
and back through `converter` (cattrs), strictly: no coercion, no unknown keys, every fault named by path.

Exact means: `parse(canonical(x)) == x`, types included. So NaN and infinities, tuples, bytes, sets, keys that are no
str, lone surrogates, subclasses (enums too) and bottomless nesting are refused; -0.0 and big integers go through.
Typed fields may hold enums (written as their values) and tuples (written as lists); an untyped field holds plain JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any, TypeVar

import attrs
from cattrs.errors import (
    AttributeValidationNote,
    BaseValidationError,
    ForbiddenExtraKeysError,
    IterableValidationNote,
    StructureHandlerNotFoundError,
)

from ._strict import make_strict_converter
from .errors import DefinitionError, WireError, WireErrors, path_of

__all__ = [
    "MAX_DEPTH",
    "MAX_INTEGER_BITS",
    "canonical",
    "converter",
    "digest",
    "encode",
    "exact",
    "items",
    "number",
    "parse",
    "sha256_hex",
    "structure",
    "text",
    "unstructure",
]

T = TypeVar("T")
Loc = tuple[str | int, ...]

MAX_DEPTH = 200
"""Containers within containers; more is refused, in both directions (json itself stops near 1,000)."""
MAX_INTEGER_BITS = 4096
"""Integers of more bits are refused (Python itself refuses to write or read more than 4,300 digits)."""

_BEYOND = 1 << MAX_INTEGER_BITS
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
)

_ORDERED = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False)


# --- plain JSON


def exact(value: object, path: str = "$") -> None:
    """Nothing, if `value` is plain JSON that comes back equal; else WireError naming the first place that does not."""
    if not _plain([value], MAX_DEPTH + 1):
        _locate(value, path, (), MAX_DEPTH)


def canonical(value: object) -> bytes:
    """The one byte string of a JSON value: keys sorted by code point, no spaces, UTF-8. Raises WireError by path."""
    exact(value)
    return _ENCODER.encode(value).encode()


def encode(value: object) -> bytes:
    """The bytes of a JSON value with its keys in their order: what is kept to be given back as it was.

    `parse(encode(x))` equals `x`, order included. Raises WireError by path.
    """
    exact(value)
    return _ORDERED.encode(value).encode()


def parse(data: bytes | str) -> Any:
    """The JSON value in `data`, exactly; one document, UTF-8.

    Raises WireError(kind="json_invalid") for what is no JSON and for what would not be exact: NaN and Infinity, numbers
    out of range, a repeated key, a byte order mark, lone surrogates, too deep nesting. For a syntax error `loc` is
    `(position,)` as FastAPI has it, in characters; else the place.
    """
    if isinstance(data, str):
        document = data
    else:
        try:
            document = data.decode()
        except UnicodeDecodeError as error:
            raise WireError("$", f"not UTF-8: {error.reason}", "json_invalid", (error.start,)) from None
    if document.startswith("\ufeff"):
        raise WireError("$", "starts with a byte order mark", "json_invalid", (0,))
    try:
        value = _DECODER.decode(document)
    except json.JSONDecodeError as error:
        raise WireError("$", str(error), "json_invalid", (error.pos,)) from None
    except RecursionError:
        raise WireError("$", f"nested deeper than {MAX_DEPTH}", "json_invalid") from None
    except ValueError as error:  # int() refuses too many digits
        raise WireError("$", str(error), "json_invalid") from None
    if not _plain([value], MAX_DEPTH + 1):
        _locate(value, "$", (), MAX_DEPTH, kind="json_invalid")
    return value


def sha256_hex(data: bytes) -> str:
    """The sha256 of `data`, 64 lower case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def digest(value: object) -> str:
    """The sha256 of the value's canonical bytes. Raises WireError as `canonical` does."""
    return sha256_hex(canonical(value))


class _Repeated:
    """Stands where an object had a key twice, until the walk names its place."""

    def __init__(self, key: str) -> None:
        self.key = key


def _object(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    keys = [key for key, _ in pairs]
    return _Repeated(next(key for i, key in enumerate(keys) if key in keys[:i]))


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _plain(container: dict[Any, Any] | list[Any], room: int) -> bool:
    """Whether everything in it is exact; `room` is how much deeper it may go. No path is kept: this is the hot walk."""
    if not room:
        return False
    if container.__class__ is dict:
        for key in container:
            if key.__class__ is not str or not (key.isascii() or _encodes(key)):
                return False
        container = container.values()  # type: ignore[assignment]
    for value in container:
        kind = value.__class__
        if kind is str:
            if not (value.isascii() or _encodes(value)):
                return False
        elif kind is dict or kind is list:
            if value and not _plain(value, room - 1):
                return False
        elif kind is int:
            if not -_BEYOND < value < _BEYOND:
                return False
        elif kind is float:
            if not isfinite(value):
                return False
        elif kind is not bool and value is not None:
            return False
    return True


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _locate(value: object, path: str, loc: Loc, room: int, kind: str | None = None) -> None:
    """Raise for the first place in `value` that is not exact."""
    if problem := _problem(value, room):
        raise WireError(path + path_of(loc)[1:], problem[1], kind or problem[0], loc)
    if isinstance(value, dict):
        for key, inner in value.items():
            if type(key) is not str or not _encodes(key):
                problem = _problem(key, room) or ("string_type", "is no string")
                raise WireError(path + path_of(loc)[1:], f"key {key!r} {problem[1]}", kind or problem[0], loc)
            _locate(inner, path, (*loc, key), room - 1, kind)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _locate(inner, path, (*loc, index), room - 1, kind)


def _problem(value: object, room: int) -> tuple[str, str] | None:
    """(kind, problem) of this value alone, or None."""
    kind = type(value)
    if kind is float and not isfinite(value):  # type: ignore[arg-type]
        return "finite_number", f"{value} is no finite number"
    if kind is int and not -_BEYOND < value < _BEYOND:  # type: ignore[operator]
        return "int_parsing_size", f"is an integer of more than {MAX_INTEGER_BITS} bits"
    if kind is str and not _encodes(value):  # type: ignore[arg-type]
        return "string_unicode", "holds a lone surrogate"
    if kind in (dict, list) and value and room < 1:
        return "recursion_loop", f"is nested deeper than {MAX_DEPTH}"
    if kind is _Repeated:
        return "repeated_key", f"key {value.key!r} appears twice"  # type: ignore[attr-defined]
    if kind in (str, int, float, bool, dict, list) or value is None:
        return None
    return "json_type", f"{kind.__name__} is no plain JSON: it would not come back as it is ({repr(value)[:60]})"


# --- types

converter = make_strict_converter()
"""The strict cattrs converter behind `structure` and `unstructure`; register hooks here for types of your own."""


def unstructure(obj: object) -> Any:
    """Plain JSON of an attrs object: enums as values, tuples as lists. Raises WireError by path for the inexact."""
    try:
        value = converter.unstructure(obj)
    except WireError as error:
        raise WireError.at(error.loc, error.problem, error.kind) from None
    exact(value)
    return value


def structure(value: object, cls: type[T]) -> T:
    """An instance of `cls` made from plain JSON, without coercion; equal JSON gives equal objects.

    Raises WireError for one fault, WireErrors for several, in the order they were found (both have `.errors`);
    DefinitionError if `cls` holds a type that nothing converts. Errors of other kinds in a class's own checks are bugs
    and come through.
    """
    try:
        return converter.structure(value, cls)
    except (WireError, WireErrors, BaseValidationError, ValueError, TypeError) as error:
        found = tuple(_flat(error, ()))
    except StructureHandlerNotFoundError as error:
        raise _unconvertible(error) from error
    raise found[0] if len(found) == 1 else WireErrors(found)


def _unconvertible(error: StructureHandlerNotFoundError) -> DefinitionError:
    return DefinitionError(f"nothing converts {error.type_!r}; register hooks for it on statecore.wire.converter")


def _flat(error: Exception, loc: Loc) -> Iterator[WireError]:
    """The single faults in what cattrs raised, each with its place."""
    if isinstance(error, BaseValidationError):
        for inner in error.exceptions:
            yield from _flat(inner, loc + _note(inner))
    elif isinstance(error, (WireError, WireErrors)):
        for each in error.errors:
            yield WireError.at(loc + each.loc, each.problem, each.kind)
    elif isinstance(error, ForbiddenExtraKeysError):
        for name in sorted(error.extra_fields):
            yield WireError.at((*loc, name), "is not a known field", "extra_forbidden")
    elif isinstance(error, KeyError) and loc and error.args == (loc[-1],):
        yield WireError.at(loc, "is required", "missing")
    elif isinstance(error, StructureHandlerNotFoundError):
        raise _unconvertible(error) from error
    elif isinstance(error, (ValueError, TypeError)):
        field = next((arg.name for arg in error.args if isinstance(arg, attrs.Attribute)), None)
        problem = str(error.args[0]) if error.args else type(error).__name__
        yield WireError.at(loc if field is None else (*loc, field), problem, "value_error")
    else:
        raise error


def _note(error: Exception) -> Loc:
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return (note.name,)
        if isinstance(note, IterableValidationNote):
            return (note.index,)
    return ()


# --- validators for attrs fields, whose faults have a kind and a place

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def text(*, pattern: str | None = None, min_length: int = 0, max_length: int | None = None) -> Validator:
    """A field validator: a str of so many characters, the whole of which matches `pattern` (None is let through)."""
    compiled = re.compile(pattern) if pattern is not None else None

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        if len(value) < min_length:
            raise WireError.at((attribute.name,), f"is shorter than {min_length} characters", "string_too_short")
        if max_length is not None and len(value) > max_length:
            raise WireError.at((attribute.name,), f"is longer than {max_length} characters", "string_too_long")
        if compiled is not None and not compiled.fullmatch(value):
            raise WireError.at((attribute.name,), f"does not match {pattern}", "string_pattern_mismatch")

    return check


def number(*, ge: float | None = None, gt: float | None = None, le: float | None = None) -> Validator:
    """A field validator: a number within the bounds (None is let through)."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        if ge is not None and not value >= ge:
            raise WireError.at((attribute.name,), f"is not at least {ge}", "greater_than_equal")
        if gt is not None and not value > gt:
            raise WireError.at((attribute.name,), f"is not greater than {gt}", "greater_than")
        if le is not None and not value <= le:
            raise WireError.at((attribute.name,), f"is more than {le}", "less_than_equal")

    return check


def items(*, min_length: int = 0, max_length: int | None = None) -> Validator:
    """A field validator: a sequence of so many items (None is let through)."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        if len(value) < min_length:
            raise WireError.at((attribute.name,), f"has fewer than {min_length} items", "too_short")
        if max_length is not None and len(value) > max_length:
            raise WireError.at((attribute.name,), f"has more than {max_length} items", "too_long")

    return check
