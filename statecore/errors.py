"""The errors of statecore: one root, one class for each kind of fault.

`DefinitionError` is a mistake in a declaration and is raised when it is defined. `Refused` is an answer, not a bug: the
event may not happen in this state, nothing changed, and the shell encodes it. `InvariantBroken` carries a trace that
breaks a property. `WireError` is bad input at a border and names the place in it. `JournalError` names the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

__all__ = [
    "DefinitionError",
    "InvariantBroken",
    "JournalError",
    "Refused",
    "StatecoreError",
    "WireError",
    "WireErrors",
    "path_of",
]


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")


class StatecoreError(Exception):
    """Root of everything that statecore raises on purpose."""


class DefinitionError(StatecoreError):
    """A declaration is wrong; the message names the culprit and the mend."""


class Refused(StatecoreError):
    """The event is not allowed in this state, and nothing changed.

    `code` is the table's code, `state` the state it was tried in, `event` the event itself, `allowed` the names of the
    events that have a way forward from there, `detail` the reason in words (may be empty). protocol.md section 4.
    """

    def __init__(self, code: str, state: object, event: object, allowed: Sequence[str] = (), detail: str = "") -> None:
        super().__init__(code, state, event, tuple(allowed), detail)
        self.code = code
        self.state = state
        self.event = event
        self.allowed = tuple(allowed)
        self.detail = detail

    @property
    def event_name(self) -> str:
        """The name of the event's class (or the event itself where it is given as a name)."""
        return self.event if isinstance(self.event, str) else type(self.event).__name__

    def __str__(self) -> str:
        allowed = ", ".join(self.allowed) or "nothing"
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.code}: {self.event_name} refused in state {self.state}{detail} (allowed here: {allowed})"


class InvariantBroken(StatecoreError):
    """A property does not hold; `trace` is what led there, as whoever found it gives it (steps, journal lines)."""

    def __init__(self, property_name: str, trace: object = ()) -> None:
        super().__init__(property_name, trace)
        self.property_name = property_name
        self.trace = trace

    def __str__(self) -> str:
        return f"{self.property_name} is broken by:\n{self.trace}"


class JournalError(StatecoreError):
    """A journal is damaged, over its bound, or holds a line that no table allows; the message names the line."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(line, problem)
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}" if self.line else self.problem


def path_of(loc: Sequence[str | int]) -> str:
    """The place as text: `("episode_ids", 0, "rollout_id")` is `$.episode_ids[0].rollout_id`; odd names are quoted."""
    return "$" + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" if _NAME.match(part) else f"[{json.dumps(part)}]"
        for part in loc
    )


class WireError(StatecoreError):
    """Bad input at a border, at one place.

    `path` is the place as text (`$.episode_ids[0]`), `loc` the same as a tuple, `problem` what is wrong with it, `kind`
    a short type name (`missing`, `extra_forbidden`, `int_type`, `json_invalid`, ...).
    """

    def __init__(self, path: str, problem: str, kind: str = "value_error", loc: Sequence[str | int] = ()) -> None:
        super().__init__(path, problem, kind, tuple(loc))
        self.path = path
        self.problem = problem
        self.kind = kind
        self.loc: tuple[str | int, ...] = tuple(loc)

    @classmethod
    def at(cls, loc: Sequence[str | int], problem: str, kind: str = "value_error") -> WireError:
        """A WireError whose `path` is written from `loc`."""
        return cls(path_of(loc), problem, kind, loc)

    @property
    def errors(self) -> tuple[WireError, ...]:
        """This error alone, so that one and several are read in the same way."""
        return (self,)

    def __str__(self) -> str:
        return f"{self.path}: {self.problem} ({self.kind})"


class WireErrors(StatecoreError):
    """Bad input at several places: `errors`, in the order they were found."""

    def __init__(self, errors: Sequence[WireError]) -> None:
        super().__init__(tuple(errors))
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "; ".join(str(error) for error in self.errors)
