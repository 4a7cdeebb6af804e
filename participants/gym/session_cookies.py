"""The cookie in which Gym keeps a session, as Gym writes it: name and secret are both ``<Class>___<name>``.

The value is signed anew in every reply, so sessions are told apart by what is inside. A cookie that was not signed with
that secret, or is too old for Gym, names nothing.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final

from itsdangerous import BadSignature, TimestampSigner

from ..servers.cookies import SessionCookies

SESSION_ID: Final = "session_id"
AGENT_SESSION_ID: Final = "agent_session_id"
MAX_AGE_S: Final = 14 * 24 * 3600
"""As long a session cookie lives that Starlette's middleware has made, which is Gym's."""


class GymCookies(SessionCookies):
    """Reads the session id under `field` of one server's cookie; only Gym writes it."""

    def __init__(self, key: str, field: str = SESSION_ID) -> None:
        super().__init__(key, None)
        self.name = key
        self._field = field
        self._timed = TimestampSigner(key)

    def write(self, session_id: str) -> str:
        raise NotImplementedError("Gym writes its own cookie")

    def set_in(self, headers: Iterable[tuple[str, str]]) -> str | None:
        """The session id that a reply's cookies name."""
        found = (self._read(value) for name, value in headers if name.lower() == "set-cookie")
        return next((each for each in found if each is not None), None)

    def _read(self, header: str) -> str | None:
        try:
            morsel = SimpleCookie(header).get(self.name)
            if morsel is None:
                return None
            value = json.loads(b64decode(self._timed.unsign(morsel.value, max_age=MAX_AGE_S)))
        except (CookieError, BadSignature, ValueError):
            return None
        session_id = value.get(self._field) if isinstance(value, dict) else None
        return session_id if isinstance(session_id, str) else None
