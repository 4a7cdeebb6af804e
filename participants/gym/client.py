"""Gym's client to other servers, with each call of a recorded handler taken to its loop.

Calls outside of one (metrics, health) are made as ever.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from .answer import GymAnswer
from .handlers import handler_under_way


def recording(client: Any) -> Any:
    """A client like `client`, an instance of Gym's ServerClient, whose calls the loops see."""
    gym: Any = importlib.import_module("nemo_gym.server_utils")
    orjson: Any = importlib.import_module("orjson")
    base: Any = gym.ServerClient

    class RecordingClient(base):  # type: ignore[misc]
        """Gym's client; a handler's POST with a body is its loop's."""

        async def request(self, server_name: str, url_path: str, method: str, **options: Any) -> Any:
            handler = handler_under_way()
            if handler is None:
                return await super().request(server_name, url_path, method, **options)
            if method != "POST" or set(options) - {"json", "data", "cookies", "headers"}:
                handler.start_over()  # a call that the transcript cannot hold
                return await super().request(server_name, url_path, method, **options)
            said: Any = options.get("json")
            if hasattr(said, "model_dump"):
                said = said.model_dump(exclude_unset=True)
            body = orjson.dumps(said) if said is not None else options.get("data") or b""
            response = await handler.post(server_name, url_path, body, plain(options.get("cookies")))
            return GymAnswer(server_name, url_path, response)

    return RecordingClient(head_server_config=client.head_server_config, global_config_dict=client.global_config_dict)


def plain(cookies: Any) -> Mapping[str, str]:
    """Cookies by name: Gym hands over dictionaries of strings, or of what a reply's cookies hold."""
    return {str(name): str(getattr(each, "value", each)) for name, each in dict(cookies or {}).items()}
