"""A cattrs converter without coercion, used by `wire` (which documents what is exact).

cattrs itself calls the type: "5" becomes 5, 1.7 becomes 1, "false" becomes True, "ab" a tuple of two. Here every
primitive is of exactly its type, arrays are lists, objects are dicts, and the same holds on the way out, so that what
is written can be read again.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum, StrEnum
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import cattrs
from cattrs.errors import IterableValidationError, IterableValidationNote
from cattrs.strategies import configure_union_passthrough

from .errors import WireError

Hook = Callable[[Any, Any], Any]
Out = Callable[[Any], Any]

_PRIMITIVES = {str, int, float, bool, NoneType}
_JSON_NAMES: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "an array",
}


def make_strict_converter() -> cattrs.Converter:
    """A new converter with the strict hooks."""
    made = cattrs.Converter(forbid_extra_keys=True)
    configure_union_passthrough(str | bool | int | float | None, made)
    made.register_structure_hook_factory(_is_primitive_union, _structure_primitive_union)
    # Hooks registered later are tried first.
    made.register_structure_hook_factory(_is_class, _structure_class)
    made.register_unstructure_hook_factory(_is_class, _unstructure_class)
    made.register_structure_hook_factory(_is_array, _structure_array)
    made.register_unstructure_hook_factory(_is_array, _unstructure_array)
    made.register_structure_hook_factory(_is_pair_of_types, _structure_fixed)
    made.register_unstructure_hook_factory(_is_pair_of_types, _unstructure_fixed)
    made.register_structure_hook_factory(_is_object, _structure_object)
    made.register_unstructure_hook_factory(_is_object, _unstructure_object)
    made.register_structure_hook_factory(_is_set, _no_sets_in)
    made.register_unstructure_hook_factory(_is_set, _no_sets_out)
    made.register_structure_hook_factory(_is_enum, _structure_enum)
    made.register_structure_hook_factory(_is_literal, _structure_literal)
    # cattrs looks these up by class, bases included, before any predicate: so enums that are str or int come here too.
    made.register_structure_hook(str, _exactly_in(str, "string_type"))
    made.register_structure_hook(int, _exactly_in(int, "int_type"))
    made.register_structure_hook(bool, _exactly_in(bool, "bool_type"))
    made.register_structure_hook(float, lambda value, _: _float(value))
    made.register_structure_hook(bytes, _no_bytes)
    made.register_structure_hook(Path, lambda value, _: Path(_exact(value, str, "string_type")))
    made.register_unstructure_hook(StrEnum, _enum_value)
    made.register_unstructure_hook(str, _exactly_out(str, "string_type"))
    made.register_unstructure_hook_func(lambda cls: cls is int, _exactly_out(int, "int_type"))
    made.register_unstructure_hook_func(lambda cls: cls is bool, _exactly_out(bool, "bool_type"))
    made.register_unstructure_hook_func(lambda cls: cls is float, _float)
    # An untyped field is plain JSON and goes through as it is; `wire` walks it.
    made.register_unstructure_hook_func(lambda cls: cls is Any or cls is object, _identity)
    made.register_structure_hook_func(lambda cls: cls is object, lambda value, _: value)
    return made


def _identity(value: Any) -> Any:
    return value


def _wrong(value: object, wanted: str, kind: str, mend: str = "") -> WireError:
    return WireError.at((), f"is not {wanted} but {type(value).__name__} ({repr(value)[:60]}){mend}", kind)


# --- primitives


def _exact(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:
        raise _wrong(value, _JSON_NAMES[kind], name)
    return value


def _exactly_in(kind: type, name: str) -> Hook:
    enums: dict[Any, Hook] = {}

    def hook(value: Any, cls: Any) -> Any:
        if cls is not kind and _is_enum(cls):
            if cls not in enums:
                enums[cls] = _structure_enum(cls)
            return enums[cls](value, cls)
        if value.__class__ is not kind:
            raise _wrong(value, _JSON_NAMES[kind], name)
        return value

    return hook


def _enum_value(member: Any) -> Any:
    return member.value


def _exactly_out(kind: type, name: str) -> Out:
    def hook(value: Any) -> Any:
        if value.__class__ is not kind:
            mend = "; make the enum a StrEnum, and declare it" if isinstance(value, Enum) else ""
            raise _wrong(value, _JSON_NAMES[kind], name, mend)
        return value

    return hook


def _float(value: Any) -> Any:
    """A finite float; an integer stands for the float that equals it, if there is one."""
    if value.__class__ is float:
        if not isfinite(value):
            raise WireError.at((), f"{value} is no finite number", "finite_number")
        return value
    if value.__class__ is int and -(1 << 1023) < value < (1 << 1023) and int(float(value)) == value:
        return float(value)
    raise _wrong(value, "a number that a float can hold", "float_type")


def _is_primitive_union(cls: Any) -> bool:
    members = set(get_args(cls))
    return get_origin(cls) in (Union, UnionType) and len(members - {NoneType}) > 1 and members <= _PRIMITIVES


def _structure_primitive_union(cls: Any) -> Hook:
    members = set(get_args(cls))
    names = ", ".join(sorted("null" if kind is NoneType else _JSON_NAMES[kind] for kind in members))

    def hook(value: Any, _: Any) -> Any:
        if type(value) is float or (type(value) is int and int not in members and float in members):
            return _float(value) if float in members else _refuse(value)
        return value if type(value) in members else _refuse(value)

    def _refuse(value: Any) -> Any:
        raise _wrong(value, f"one of {names}", "union_type")

    return hook


def _no_bytes(value: Any, _: Any) -> Any:
    raise WireError.at((), "bytes have no exact form in JSON; declare a str (hex or base64)", "bytes_type")


def _is_enum(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, Enum)


def _structure_enum(cls: Any) -> Hook:
    members = {(type(member.value), member.value): member for member in cls}
    return _one_of(members)


def _is_literal(cls: Any) -> bool:
    return get_origin(cls) is Literal


def _structure_literal(cls: Any) -> Hook:
    values = [(arg.value if isinstance(arg, Enum) else arg, arg) for arg in get_args(cls)]
    return _one_of({(type(value), value): arg for value, arg in values})


def _one_of(members: dict[tuple[type, Any], Any]) -> Hook:
    kinds = {kind for kind, _ in members}
    expected = ", ".join(repr(value) for _, value in members)

    def hook(value: Any, _: Any) -> Any:
        if type(value) in kinds and (type(value), value) in members:
            return members[type(value), value]
        raise _wrong(value, f"one of {expected}", "enum")

    return hook


# --- containers


def _is_array(cls: Any) -> bool:
    kind = get_origin(cls) or cls
    if kind is tuple:
        args = get_args(cls)
        return not args or (len(args) == 2 and args[1] is Ellipsis)
    return kind in (list, collections.abc.Sequence, collections.abc.MutableSequence)


def _is_pair_of_types(cls: Any) -> bool:
    return get_origin(cls) is tuple and not _is_array(cls)


def _is_object(cls: Any) -> bool:
    return (get_origin(cls) or cls) in (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _is_set(cls: Any) -> bool:
    kind = get_origin(cls) or cls
    return kind in (set, frozenset, collections.abc.Set, collections.abc.MutableSet)


def _no_sets_in(cls: Any) -> Hook:
    def hook(value: Any, _: Any) -> Any:
        raise WireError.at((), "a set has no order in JSON; declare a tuple", "set_type")

    return hook


def _no_sets_out(cls: Any) -> Out:
    def hook(value: Any) -> Any:
        raise WireError.at((), "a set has no order in JSON; declare a tuple", "set_type")

    return hook


def _hook_in(made: cattrs.Converter, kind: Any) -> Hook:
    try:
        return made.get_structure_hook(kind)
    except RecursionError:  # a class that holds itself: look the hook up when it is called
        return made.structure


def _hook_out(made: cattrs.Converter, kind: Any) -> Out:
    try:
        return made.get_unstructure_hook(kind)
    except RecursionError:
        return lambda value: made.unstructure(value, unstructure_as=kind)


def _each(pairs: list[tuple[Any, Any, Hook, Any]], cls: Any) -> list[Any]:
    """The structured values of (key, value, hook, type), or all their faults with their places noted."""
    found, faults = [], []
    for key, value, hook, kind in pairs:
        try:
            found.append(hook(value, kind))
        except Exception as fault:
            fault.add_note(IterableValidationNote(f"at {key!r}", key, kind))
            faults.append(fault)
    if faults:
        raise IterableValidationError(f"While structuring {cls!r}", faults, cls)
    return found


def _each_out(pairs: list[tuple[Any, Any, Out]]) -> list[Any]:
    """The unstructured values of (key, value, hook); a fault gets its place put in front."""
    found = []
    for key, value, hook in pairs:
        try:
            found.append(hook(value))
        except WireError as fault:
            raise WireError.at((key, *fault.loc), fault.problem, fault.kind) from None
    return found


def _array_type(cls: Any) -> type:
    return list if (get_origin(cls) or cls) in (list, collections.abc.MutableSequence) else tuple


def _structure_array(cls: Any, made: cattrs.Converter) -> Hook:
    element = (get_args(cls) or (Any,))[0]
    hook = _hook_in(made, element)
    make: Callable[[list[Any]], Any] = _array_type(cls)

    def structure(value: Any, _: Any) -> Any:
        given: list[Any] = _exact(value, list, "list_type")
        return make(_each([(index, each, hook, element) for index, each in enumerate(given)], cls))

    return structure


def _unstructure_array(cls: Any, made: cattrs.Converter) -> Out:
    hook = _hook_out(made, (get_args(cls) or (Any,))[0])
    wanted: Any = _array_type(cls)

    def unstructure(value: Any) -> Any:
        if value.__class__ is not wanted:
            raise _wrong(value, f"a {wanted.__name__}", f"{wanted.__name__}_type")
        return _each_out([(index, each, hook) for index, each in enumerate(value)])

    return unstructure


def _structure_fixed(cls: Any, made: cattrs.Converter) -> Hook:
    kinds = [(kind, _hook_in(made, kind)) for kind in get_args(cls)]

    def structure(value: Any, _: Any) -> Any:
        given: list[Any] = _exact(value, list, "list_type")
        if len(given) != len(kinds):
            name = "too_short" if len(given) < len(kinds) else "too_long"
            raise WireError.at((), f"has {len(given)} items, not {len(kinds)}", name)
        return tuple(_each([(index, given[index], hook, kind) for index, (kind, hook) in enumerate(kinds)], cls))

    return structure


def _unstructure_fixed(cls: Any, made: cattrs.Converter) -> Out:
    hooks = [_hook_out(made, kind) for kind in get_args(cls)]

    def unstructure(value: Any) -> Any:
        if value.__class__ is not tuple or len(value) != len(hooks):
            raise _wrong(value, f"a tuple of {len(hooks)}", "tuple_type")
        return _each_out([(index, value[index], hook) for index, hook in enumerate(hooks)])

    return unstructure


def _structure_object(cls: Any, made: cattrs.Converter) -> Hook:
    key_kind, kind = get_args(cls) or (str, Any)
    key_hook, hook = _hook_in(made, key_kind), _hook_in(made, kind)

    def structure(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(value, "an object", "dict_type")
        keys = _each([(key, key, key_hook, key_kind) for key in value], cls)
        values = _each([(key, each, hook, kind) for key, each in value.items()], cls)
        return dict(zip(keys, values, strict=True))

    return structure


def _unstructure_object(cls: Any, made: cattrs.Converter) -> Out:
    key_kind, kind = get_args(cls) or (str, Any)
    key_hook, hook = _hook_out(made, key_kind), _hook_out(made, kind)

    def unstructure(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(value, "a dict", "dict_type")
        keys = _each_out([(str(key), key, key_hook) for key in value])
        return dict(zip(keys, _each_out([(str(key), each, hook) for key, each in value.items()]), strict=True))

    return unstructure


# --- classes


def _is_class(cls: Any) -> bool:
    kind = get_origin(cls) or cls
    return isinstance(kind, type) and (attrs.has(kind) or is_dataclass(kind))


def _resolve(cls: Any) -> Any:
    """The class itself, of which `cls` may be a parametrised form, its annotations evaluated (cattrs 24.1 cannot)."""
    kind = get_origin(cls) or cls
    if attrs.has(kind) and any(isinstance(field.type, str) for field in attrs.fields(kind)):
        attrs.resolve_types(kind)
    return kind


def _structure_class(cls: Any, made: cattrs.Converter) -> Hook:
    _resolve(cls)
    inner = made.gen_structure_attrs_fromdict(cls)

    def structure(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(value, "an object", "model_attributes_type")
        return inner(value, cls)

    return structure


def _unstructure_class(cls: Any, made: cattrs.Converter) -> Out:
    kind = _resolve(cls)
    inner = made.gen_unstructure_attrs_fromdict(cls)

    def unstructure(value: Any) -> Any:
        if value.__class__ is not kind:  # a subclass would silently lose its own fields
            raise _wrong(value, f"exactly a {kind.__name__}", "is_instance_of")
        try:
            return inner(value)
        except WireError:
            for name, declared in get_type_hints(kind).items():  # which field was it
                _each_out([(name, getattr(value, name), _hook_out(made, declared))])
            raise

    return unstructure
