"""What a server under test answered, and what comes of a check that looks at it. Values only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from attrs import field, frozen

from statecore.errors import StatecoreError

from ..net.http import STATUS

EXCERPT: Final = 300
STAMPS: Final = frozenset({"server_ts", "incarnation", "epoch"})
"""What every reply carries beside its answer: it says when and by whom, and may differ between equal answers."""


class NotConforming(StatecoreError):
    """The server does not do what is written: what was sent, what came, and what should have come."""

    def __init__(self, sent: str, came: str, expected: str) -> None:
        super().__init__(sent, came, expected)
        self.sent = sent
        self.came = came
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.sent}: expected {self.expected}, came {self.came}"


class NotTried(StatecoreError):
    """The check could not be made; `str()` says what it needs. Nothing is known of the server then."""


class DoesNotApply(StatecoreError):
    """The check asks for what this server does not claim; `str()` says why."""


@frozen
class Said:
    """One answer: `body` is its JSON value, or its text where it is none; header names are in lower case."""

    sent: str
    status: int
    body: Any
    headers: Mapping[str, str] = field(factory=dict)

    @property
    def code(self) -> str:
        """The code of a refusal in the form of a control error, "" without one."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        return code if isinstance(code, str) else ""

    @property
    def answer(self) -> dict[str, Any]:
        """The body without its stamps: what must be equal when the same call is made again."""
        body = self.body if isinstance(self.body, dict) else {}
        return {name: value for name, value in body.items() if name not in STAMPS}

    def __str__(self) -> str:
        return f"{self.status} {shown(self.body)}"

    def differs(self, expected: str) -> NotConforming:
        """The finding that this is not what was expected."""
        return NotConforming(self.sent, str(self), expected)

    def ok(self, **fields: Any) -> Said:
        """Itself: it is a 200 with a JSON object that has these fields. Raises NotConforming."""
        there = self.body if isinstance(self.body, dict) else {}
        equal = all(name in there and there[name] == value for name, value in fields.items())
        if self.status != 200 or not isinstance(self.body, dict) or not equal:
            raise self.differs(f"200 with {shown(fields)}" if fields else "200 with a JSON object")
        return self

    def refused(self, *codes: str) -> Said:
        """Itself: it is a refusal with one of these codes and that code's status. Raises NotConforming."""
        if self.code not in codes or self.status != status_of(self.code):
            raise self.differs(" or ".join(f"{status_of(code)} {code}" for code in codes))
        return self

    def again(self, first: Said) -> Said:
        """Itself: it says what the first answer to the same call said (I15). Raises NotConforming."""
        if (self.status, self.answer) != (first.status, first.answer):
            raise self.differs(f"the same answer again: {first.status} {shown(first.answer)}")
        return self


def status_of(code: str) -> int:
    """The HTTP status that belongs to a code."""
    return STATUS.get(code, 409)


def shown(value: Any) -> str:
    """A JSON value in one short line."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}... ({len(text)} characters)"
