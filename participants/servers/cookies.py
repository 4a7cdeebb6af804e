"""The signed cookie that binds a client to its session: name and secret are configuration, stable over restarts.

The value is the session id with a signature; a cookie that was not signed here names nothing
(docs/reference/protocol.md section 3).
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import Final

from itsdangerous import BadSignature, Signer

SALT: Final = "statecore.session"
REMEMBERED: Final = 16_384
"""So many cookie headers are remembered with what they name: a client sends the same one at every call."""


class SessionCookies:
    """Reads and writes the session cookie of one server."""

    def __init__(self, server: str, secret: str | None) -> None:
        self.name = f"statecore_{server}"
        # a secret that depends on nothing but the name survives a restart; set one where clients are not trusted
        self._signer = Signer(secret or f"statecore.{server}", salt=SALT)
        self._remembered: dict[str, str | None] = {}

    def write(self, session_id: str) -> str:
        """The value of a `set-cookie` header."""
        return f"{self.name}={self._signer.sign(session_id).decode()}; Path=/; HttpOnly; SameSite=Lax"

    def read(self, header: str | None) -> str | None:
        """The session id in a `cookie` header; None when there is none, or none that was signed here."""
        if not header or self.name not in header:
            return None
        if header not in self._remembered:
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            self._remembered[header] = self._read(header)
        return self._remembered[header]

    def _read(self, header: str) -> str | None:
        try:
            morsel = SimpleCookie(header).get(self.name)
            return None if morsel is None else self._signer.unsign(morsel.value).decode()
        except (CookieError, BadSignature):
            return None
