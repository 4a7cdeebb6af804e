"""A Gym server class made checkpointable: a subclass of it that is used wherever Gym uses the class itself.

Gym calls `setup_webserver` once, before its own outermost layers; there our layer is added to Gym's application. The
subclass has the name of its base, since Gym's session cookie, its secret and its log lines are made of that name. With
checkpointing off the application is the one that Gym made, untouched (I76). docs/reference/gym-embedding.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeVar

from attrs import evolve

from statecore import DefinitionError

from ..net.transport import FreeListTransport
from ..servers.modes import Mode
from ..servers.resources import Verify
from ..servers.server import Server
from ..settings import Seams, Settings, SettingsError
from .agent import GymAgent
from .client import recording
from .components import Known, known_of
from .configuration import servers_in
from .environment import GymEnvironment, episodes_stand_still
from .held import Held
from .models import GymAuxiliary, GymPolicy, is_policy
from .resources import GymResources

C = TypeVar("C", bound="type[Any]")

KINDS: Final[Mapping[str, str]] = {
    "SimpleResourcesServer": "resources_servers",
    "SimpleResponsesAPIAgent": "responses_api_agents",
    "SimpleResponsesAPIModel": "responses_api_models",
    "BaseEnvironmentServer": "environment_servers",
}
"""Gym's base classes, and the kind of server that each makes, as Gym's configuration names it."""


def kind_of(cls: type[Any]) -> str:
    """The kind of a Gym server class, as Gym's configuration names it; DefinitionError for another class."""
    for base in cls.__mro__:
        if base.__name__ in KINDS and base.__module__.startswith("nemo_gym."):
            return KINDS[base.__name__]
    raise DefinitionError(f"{cls.__name__} is no server class of NeMo Gym: none of {', '.join(KINDS)} is a base of it")


def checkpointable(
    cls: C,
    *,
    codec: Held | None = None,
    mode: Mode | None = None,
    verify: Verify | None = None,
    settings: Settings | None = None,
    seams: Seams | None = None,
) -> C:
    """A subclass of a Gym server class that takes part in checkpoints when they are switched on.

    `codec` says where a resources server keeps its sessions and how they are carried (`held_in`); with one the mode is
    export_restore unless `mode` says otherwise. What is not given is taken from what is known of Gym's own components;
    of others nothing is known, so they are restart_only. `settings` are otherwise those of the section `checkpoint` of
    Gym's global configuration, with ``STATECORE_*`` of the environment over them.
    """
    kind = kind_of(cls)
    known = known_of(cls)
    if codec is not None:
        known = evolve(known, held=codec, mode=Mode.EXPORT_RESTORE)
    if mode is not None:
        known = evolve(known, mode=mode)
    if verify is not None:
        known = evolve(known, verify=verify)
    if codec is not None and kind != "resources_servers":
        raise DefinitionError(f"{cls.__name__}: only a resources server has a codec")
    base: Any = cls

    class Embedded(base):  # type: ignore[misc]
        __statecore__: ClassVar[bool] = True

        def setup_webserver(self) -> Any:
            found = settings_of(self) if settings is None else settings
            if not found.enabled:
                return super().setup_webserver()
            participant = participant_of(self, kind, known, found, seams)
            if participant is None:
                return super().setup_webserver()
            if kind in CALLING:
                record_calls(self)
            app = super().setup_webserver()
            app.add_middleware(participant.wrap)
            return app

    if kind == "environment_servers":
        episodes_stand_still(Embedded)
    Embedded.__name__, Embedded.__qualname__, Embedded.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    Embedded.__doc__ = cls.__doc__
    return Embedded  # type: ignore[return-value]


GYM_KEEPALIVE_S: Final = 30.0
"""So long Gym's servers keep a connection on which nothing comes."""
CALLING: Final = frozenset({"responses_api_agents", "environment_servers"})
"""Kinds whose handlers call other servers."""


def participant_of(server: Any, kind: str, known: Known, settings: Settings, seams: Seams | None) -> Server | None:
    """The participant around an instance of a Gym server; None for a relay, which has nothing of its own."""
    name = str(server.config.name)
    workers = getattr(server.config, "num_workers", None)
    if workers not in (None, 1):
        raise SettingsError(
            f"{name}: checkpointing needs one worker, not {workers}: Gym's workers load the component's own module, "
            "which is not embedded, and a checkpoint would reach one of them"
        )
    cookie = server.get_session_middleware_key()
    if kind == "resources_servers":
        return GymResources(
            name, settings, server, held=known.held, cookie=cookie, mode=known.mode, verify=known.verify, seams=seams
        )
    if kind == "responses_api_agents":
        return GymAgent(name, settings, cookie=cookie, mode=known.mode, seams=seams, transport=to_gym())
    if kind == "responses_api_models":
        kind_of_model = GymPolicy if is_policy(name, configuration(server)) else GymAuxiliary
        return kind_of_model(name, settings, seams=seams)
    if known.mode is Mode.STATELESS:
        return None
    limit_s, server.config.default_episode_timeout_seconds = server.config.default_episode_timeout_seconds, None
    return GymEnvironment(name, settings, mode=known.mode, limit_s=limit_s, seams=seams, transport=to_gym())


def to_gym() -> FreeListTransport:
    """Connections to Gym's servers, none of them kept for so long that its server may be closing it."""
    return FreeListTransport(keepalive_expiry_s=GYM_KEEPALIVE_S / 2)


def record_calls(server: Any) -> None:
    """The server's own client is one whose calls the loops see."""
    server.server_client = recording(server.server_client)


def settings_of(server: Any) -> Settings:
    """The settings of a server: of Gym's global configuration, of the environment, and all servers' addresses."""
    config = getattr(server.server_client, "global_config_dict", None)
    section = _plain(config.get("checkpoint")) if isinstance(config, Mapping) else {}
    found = Settings.from_env(base=Settings.from_mapping(section))
    if not found.enabled:
        return found  # and nothing else of the configuration was looked at
    return evolve(found, servers={**addresses(configuration(server)), **found.servers})


def configuration(server: Any) -> Mapping[str, Any]:
    """Gym's global configuration, as the server has it."""
    return _plain(getattr(server.server_client, "global_config_dict", None))


def addresses(config: Mapping[str, Any]) -> dict[str, str]:
    """The URL of every server that Gym's global configuration has an address for."""
    return {
        name: f"http://{server['host']}:{server['port']}"
        for name, _, _, server in servers_in(config)
        if isinstance(server, Mapping) and server.get("host") and server.get("port")
    }


def _plain(config: Any) -> Mapping[str, Any]:
    """Gym's configuration without the types of the library that it is read with; empty where there is none."""
    if not isinstance(config, Mapping):
        return {}
    if type(config) is dict:
        return config
    omegaconf: Any = importlib.import_module("omegaconf")
    found: Mapping[str, Any] = omegaconf.OmegaConf.to_container(config, resolve=True)
    return found
