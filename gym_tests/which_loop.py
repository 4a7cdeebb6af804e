"""Gym's servers with a route more, which tells what loop they run on."""

from __future__ import annotations

import importlib
from typing import Any

import sniffio

from participants import Mode, json_codec
from participants.gym.embedding import checkpointable
from participants.gym.held import held_in


def telling(module: str, name: str) -> Any:
    """A subclass of a component's server class that answers ``GET /which_loop``; its name is its base's."""
    base: Any = getattr(importlib.import_module(module), name)

    def setup_webserver(self: Any) -> Any:
        app = super(made, self).setup_webserver()

        async def which_loop() -> str:
            return sniffio.current_async_library()

        app.get("/which_loop")(which_loop)
        return app

    made: Any = type(name, (base,), {"setup_webserver": setup_webserver, "__module__": __name__})
    return made


Counter = checkpointable(
    telling("resources_servers.example_session_state_mgmt.app", "StatefulCounterResourcesServer"),
    codec=held_in("session_id_to_counter", json_codec()),
)
Agent = checkpointable(telling("responses_api_agents.simple_agent.app", "SimpleAgent"), mode=Mode.EXPORT_RESTORE)
Model = checkpointable(telling("responses_api_models.openai_model.app", "SimpleModelServer"))
