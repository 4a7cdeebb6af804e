"""The values inside a Gymnasium environment as plain JSON: scalars, random generators, spaces.

Rules (docs/reference/protocol.md section 14, S11): numpy's scalars become plain values; a PCG64 state is two 128-bit
integers and the half-used 32-bit word, and all four are carried; a space is constant but for its generator. Whatever is
of another kind is refused by name. Errors are `WireError` with the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from gymnasium import spaces

from statecore.errors import WireError

from ..servers.codecs import JSON, Loc

Check: TypeAlias = Callable[[JSON, Loc], JSON]


def plain(value: Any, loc: Loc) -> JSON:
    """The value as plain JSON of its own: numpy scalars as int, float, bool, str; arrays and tuples as lists."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return plain(value.item(), loc)
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), loc)
    if type(value) in (list, tuple):
        return [plain(item, (*loc, index)) for index, item in enumerate(value)]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: plain(item, (*loc, key)) for key, item in value.items()}
    raise WireError.at(loc, f"a {type(value).__qualname__} is no plain value")


# --- checks: of what is exported and of what is loaded, the same


def integer(low: int, high: int | None = None) -> Check:
    def check(value: JSON, loc: Loc) -> JSON:
        if type(value) is not int:
            raise WireError.at(loc, f"{value!r} is not an integer", "int_type")
        if value < low or (high is not None and value > high):
            raise WireError.at(loc, f"{value} is not in {low}..{'' if high is None else high}")
        return value

    return check


def number(value: JSON, loc: Loc) -> JSON:
    if type(value) is not float:
        raise WireError.at(loc, f"{value!r} is not a float", "float_type")
    return value


def flag(value: JSON, loc: Loc) -> JSON:
    if type(value) is not bool:
        raise WireError.at(loc, f"{value!r} is not true or false", "bool_type")
    return value


def one_of(*allowed: str) -> Check:
    def check(value: JSON, loc: Loc) -> JSON:
        if value not in allowed or type(value) is not str:
            raise WireError.at(loc, f"{value!r} is none of {', '.join(allowed)}")
        return value

    return check


def maybe(inner: Check) -> Check:
    return lambda value, loc: None if value is None else inner(value, loc)


def list_of(inner: Check, at_least: int = 0) -> Check:
    def check(value: JSON, loc: Loc) -> JSON:
        if type(value) is not list:
            raise WireError.at(loc, f"{value!r} is not a list", "list_type")
        if len(value) < at_least:
            raise WireError.at(loc, f"has {len(value)} items, not {at_least} or more", "too_short")
        return [inner(item, (*loc, index)) for index, item in enumerate(value)]

    return check


def keys(value: JSON, loc: Loc, required: frozenset[str], optional: frozenset[str] = frozenset()) -> dict[str, JSON]:
    """The value, which is an object with all the required keys and no other than the optional ones beside them."""
    if type(value) is not dict:
        raise WireError.at(loc, f"{value!r} is not an object", "dict_type")
    if missing := sorted(required - value.keys()):
        raise WireError.at((*loc, missing[0]), "is missing", "missing")
    if unknown := sorted(value.keys() - required - optional):
        raise WireError.at((*loc, unknown[0]), "is not known here", "extra_forbidden")
    return value


# --- random generators


_PCG64_KEYS: Final = frozenset({"bit_generator", "state", "has_uint32", "uinteger"})
_WIDE: Final = integer(0, 2**128 - 1)


def dump_generator(generator: Any, loc: Loc) -> JSON:
    """The whole state of a PCG64 generator, or None where there is no generator yet."""
    if generator is None:
        return None
    bits = generator.bit_generator if type(generator) is np.random.Generator else generator
    if type(bits) is not np.random.PCG64:
        raise WireError.at(loc, f"a {type(bits).__qualname__} is no PCG64 generator and cannot be carried")
    return plain(bits.state, loc)


def load_generator(data: JSON, loc: Loc) -> np.random.Generator | None:
    """A generator of its own that draws on where the exported one stood, or None."""
    if data is None:
        return None
    fields = keys(data, loc, _PCG64_KEYS)
    one_of("PCG64")(fields["bit_generator"], (*loc, "bit_generator"))
    wide = keys(fields["state"], (*loc, "state"), frozenset({"state", "inc"}))
    for name in ("state", "inc"):
        _WIDE(wide[name], (*loc, "state", name))
    if wide["inc"] % 2 == 0:
        raise WireError.at((*loc, "state", "inc"), f"{wide['inc']} is even, which no PCG64 increment is")
    integer(0, 1)(fields["has_uint32"], (*loc, "has_uint32"))
    integer(0, 2**32 - 1)(fields["uinteger"], (*loc, "uinteger"))
    bits = np.random.PCG64(0)
    state: Any = {**fields, "state": dict(wide)}
    bits.state = state
    return np.random.Generator(bits)


# --- spaces: constant, but for the generator that `sample` draws from


_SPACE_ATTRIBUTES: Final[Mapping[type, frozenset[str]]] = {
    spaces.Discrete: frozenset({"dtype", "n", "start", "_shape", "_np_random"}),
    spaces.Tuple: frozenset({"dtype", "spaces", "_shape", "_np_random"}),
}


def dump_space(space: Any, made: Any, loc: Loc) -> JSON:
    """The generators of a space, which else equals `made`: one, or for a Tuple its own and those of its parts."""
    known = _SPACE_ATTRIBUTES.get(type(space))
    if known is None:
        raise WireError.at(loc, f"a {type(space).__qualname__} is no space that is declared here")
    if unknown := sorted(vars(space).keys() - known):
        raise WireError.at((*loc, unknown[0]), "is an attribute that is not declared here")
    if space != made:
        raise WireError.at(loc, f"{space} is not the {made} that the environment was made with")
    own = dump_generator(space._np_random, loc)
    if type(space) is not spaces.Tuple:
        return own
    parts = zip(space.spaces, made.spaces, strict=True)
    return {"own": own, "parts": [dump_space(part, other, (*loc, i)) for i, (part, other) in enumerate(parts)]}


def load_space(space: Any, data: JSON, loc: Loc) -> list[tuple[Any, np.random.Generator | None]]:
    """Pairs of a space and the generator that it is to have, for the space and its parts; nothing is set yet."""
    if type(space) is not spaces.Tuple:
        return [(space, load_generator(data, loc))]
    fields = keys(data, loc, frozenset({"own", "parts"}))
    parts = fields["parts"]
    if type(parts) is not list or len(parts) != len(space.spaces):
        raise WireError.at((*loc, "parts"), f"is not a list of {len(space.spaces)}")
    pairs = [(space, load_generator(fields["own"], (*loc, "own")))]
    for index, (part, item) in enumerate(zip(space.spaces, parts, strict=True)):
        pairs += load_space(part, item, (*loc, "parts", index))
    return pairs
