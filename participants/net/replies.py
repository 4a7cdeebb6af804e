"""What a control reply means: pure, from a status, headers and bytes to one value.

Rules (docs/reference/protocol.md sections 5 and 7): 200 with a JSON object is the only good answer; 502-504 may be
tried again; a 5xx without our body (an error code, and an incarnation in body or header) says nothing of the server's
state and is a transport error; everything else is final. A foreign server's reply has no incarnation, epoch or time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum, auto
from typing import Any, Final

from attrs import evolve, frozen

from statecore.errors import WireError
from statecore.wire import parse

from ..identity import INCARNATION_HEADER

EXCERPT: Final = 200
MAX_TS: Final = 1e15
"""Unix seconds beyond this are no time of anything, and may be an integer that no float can hold."""
_INCARNATION = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_GATEWAY: Final = frozenset({502, 503, 504})


class Verdict(StrEnum):
    """What a caller may do with an answer."""

    ACCEPTED = auto()
    REFUSED = auto()
    TRY_AGAIN = auto()


@frozen
class Answer:
    """One sending's outcome. `body` is set when accepted; `code` and `detail` when not; `status` None: nothing came.

    `transport`: the server itself is in doubt. `incarnation`, `epoch`, `server_ts` (Unix seconds): as the reply shows.
    """

    verdict: Verdict
    status: int | None
    body: dict[str, Any] | None = None
    code: str = ""
    detail: str = ""
    transport: bool = False
    incarnation: str | None = None
    epoch: int | None = None
    server_ts: float | None = None

    @classmethod
    def garbage(cls, status: int, came: str) -> Answer:
        """A reply that no server of this protocol sends; `came` says what it was."""
        return cls(Verdict.REFUSED, status, code="garbage_reply", detail=came)


def no_answer(code: str, detail: str) -> Answer:
    """No reply came; whether the call was carried out is not known."""
    return Answer(Verdict.TRY_AGAIN, None, code=code, detail=detail, transport=True)


def read_reply(status: int, headers: Mapping[str, str], content: bytes) -> Answer:
    """The meaning of one HTTP reply; `headers` by lower-case name. Never raises for what a server may send."""
    try:
        parsed = parse(content) if content else None
    except WireError as error:
        parsed, problem = None, f"is not JSON: {error}"
    else:
        problem = "is empty" if not content else f"is a JSON {_json_name(parsed)} and not an object"
    body = parsed if isinstance(parsed, dict) else None
    shown = _shown(body or {}, headers)
    if isinstance(shown, str):
        problem = shown
        body, shown = None, Answer(Verdict.REFUSED, status)
    came = f"the body {problem}: {_excerpt(content)}"
    if status == 200:
        if body is None:
            return evolve(Answer.garbage(status, came), incarnation=shown.incarnation)
        return evolve(shown, verdict=Verdict.ACCEPTED, status=status, body=body)
    code, detail = _error(body)
    if code is None:
        detail = came if body is None else _excerpt(content)
    ours = code is not None and shown.incarnation is not None
    transport = status >= 500 and not ours
    return evolve(
        shown,
        verdict=Verdict.TRY_AGAIN if transport or status in _GATEWAY else Verdict.REFUSED,
        status=status,
        code=code or f"http_{status}",
        detail=detail,
        transport=transport,
    )


def _error(body: dict[str, Any] | None) -> tuple[str | None, str]:
    """The code and detail of ``{"error": {"code", "detail"}}``; no code where the body has another shape."""
    error = (body or {}).get("error")
    if not isinstance(error, dict) or not isinstance(error.get("code"), str) or not error["code"]:
        return None, ""
    detail = error.get("detail")
    return error["code"], detail if isinstance(detail, str) else ""


def _shown(body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer | str:
    """An answer that holds what the server shows of itself, or what is wrong with that."""
    incarnation = body.get("incarnation", headers.get(INCARNATION_HEADER))
    if incarnation is not None and not (isinstance(incarnation, str) and _INCARNATION.match(incarnation)):
        return "has an incarnation that is none"
    epoch = body.get("epoch")
    if epoch is not None and type(epoch) is not int:
        return "has an epoch that is no integer"
    server_ts = body.get("server_ts")
    if server_ts is not None and (type(server_ts) not in (int, float) or not -MAX_TS < server_ts < MAX_TS):
        return "has a server_ts that is no number"
    return Answer(
        Verdict.REFUSED,
        None,
        incarnation=incarnation,
        epoch=epoch,
        server_ts=None if server_ts is None else float(server_ts),
    )


def _json_name(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "literal"
    return "array" if isinstance(value, list) else "string" if isinstance(value, str) else "number"


def _excerpt(content: bytes) -> str:
    text = repr(content[:EXCERPT].decode("utf-8", "replace"))
    return text if len(content) <= EXCERPT else f"{text}... ({len(content)} bytes)"
