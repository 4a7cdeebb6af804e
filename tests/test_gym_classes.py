"""How a Gym server class becomes one that takes part, shown on classes in Gym's manner; on real ones: gym_tests."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette

from participants.gym.command import run_serve, server_class
from participants.gym.components import known_of
from participants.gym.embedding import addresses, checkpointable, kind_of, participant_of, settings_of
from participants.gym.environment import Deadline
from participants.gym.held import held_in
from participants.gym.models import is_policy
from participants.servers.codecs import json_codec
from participants.servers.modes import Mode
from participants.settings import Settings, SettingsError
from statecore import DefinitionError
from statecore.cli import UsageError

CONFIG = {
    "head_server": {"host": "h", "port": 1},
    "policy_model": {"responses_api_models": {"openai_model": {"host": "h", "port": 2}}},
    "tools": {"resources_servers": {"counter": {"host": "h", "port": 3, "domain": "agent"}}},
    "judge": {"responses_api_models": {"other": {"entrypoint": "app.py"}}},
    "limit": 5,
}
ON = Settings(enabled=True, control_auth_token="t", root=Path("/root"))


class SimpleResourcesServer:
    """In the manner of Gym's base class of that name."""

    __module__ = "nemo_gym.base_resources_server"

    def __init__(self, **config: Any) -> None:
        self.config = SimpleNamespace(name="tools", num_workers=None, **config)
        self.server_client = SimpleNamespace(global_config_dict=dict(CONFIG))
        self.counts: dict[str, int] = {}
        self.made = Starlette()

    def setup_webserver(self) -> Starlette:
        return self.made

    def get_session_middleware_key(self) -> str:
        return f"{type(self).__name__}___{self.config.name}"


class Counter(SimpleResourcesServer):
    """A server of somebody's own."""


class SimpleResponsesAPIModel(SimpleResourcesServer):
    __module__ = "nemo_gym.base_responses_api_model"


COUNTS = held_in("counts", json_codec())


def test_a_subclass_is_what_gym_takes_it_for() -> None:
    """It has the name of its base, on which Gym's cookie and its secret depend, and is a server of the same kind."""
    embedded = checkpointable(Counter, codec=COUNTS)
    assert issubclass(embedded, Counter) and kind_of(embedded) == "resources_servers"
    assert (embedded.__name__, embedded.__module__) == (Counter.__name__, Counter.__module__)
    assert embedded().get_session_middleware_key() == "Counter___tools"


def test_off_is_the_application_that_gym_made() -> None:
    """Nothing is added to it. Covers: I76."""
    server = checkpointable(Counter, codec=COUNTS, settings=Settings())()
    assert server.setup_webserver() is server.made
    assert server.made.user_middleware == []


def test_on_adds_one_layer_outside_of_gyms() -> None:
    """The layer is added to Gym's application, which stays the one that Gym serves."""
    server = checkpointable(Counter, codec=COUNTS, settings=ON)()
    assert server.setup_webserver() is server.made
    assert len(server.made.user_middleware) == 1


def test_several_workers_are_refused_where_checkpoints_are_on() -> None:
    """One hold would reach one of them."""
    server = checkpointable(Counter, codec=COUNTS, settings=ON)()
    server.config.num_workers = 4
    with pytest.raises(SettingsError, match="tools: checkpointing needs one worker, not 4"):
        server.setup_webserver()
    off = checkpointable(Counter, codec=COUNTS, settings=Settings())()
    off.config.num_workers = 4
    assert off.setup_webserver() is off.made


def test_what_cannot_be_embedded_is_refused_by_name() -> None:
    """A class that is none of Gym's, and a codec for a kind that has no sessions to carry."""
    with pytest.raises(DefinitionError, match="int is no server class of NeMo Gym"):
        checkpointable(int)
    with pytest.raises(DefinitionError, match="only a resources server has a codec"):
        checkpointable(SimpleResponsesAPIModel, codec=COUNTS)


def test_nothing_is_guessed_of_what_nobody_knows() -> None:
    """A server that is not listed is restart_only, and so is a subclass of a listed one."""
    assert known_of(Counter).mode is Mode.RESTART_ONLY


def test_settings_come_from_gyms_configuration_and_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The section `checkpoint`, with STATECORE_* over it; where there is no configuration at all, it is off."""
    server = Counter()
    server.server_client.global_config_dict["checkpoint"] = {
        "enabled": True,
        "control_auth_token": "from the section",
        "lease_grace_seconds": 7,
    }
    monkeypatch.setenv("STATECORE_ROOT", "/from/the/environment")
    found = settings_of(server)
    assert (found.enabled, found.lease_grace_seconds, found.root) == (True, 7.0, Path("/from/the/environment"))
    assert found.servers == {"policy_model": "http://h:2", "tools": "http://h:3"}
    server.server_client.global_config_dict["checkpoint"] = {"enbled": True}
    with pytest.raises(SettingsError, match="enbled"):
        settings_of(server)
    server.server_client = SimpleNamespace()
    assert not settings_of(server).enabled


def test_the_addresses_are_those_that_the_configuration_has() -> None:
    """A server without one is left out, and so is everything that is no server."""
    assert addresses(CONFIG) == {"policy_model": "http://h:2", "tools": "http://h:3"}


@pytest.mark.parametrize(("agents", "policies"), [([], "policy judge"), (["policy"], "policy"), (["judge"], "judge")])
def test_the_policy_is_the_model_server_that_agents_call(agents: list[str], policies: str) -> None:
    """Every other one is a judge; where there are no agents, nobody says so."""
    models = [{"model_server": {"name": name}} for name in agents]
    called = {f"a{i}": {"responses_api_agents": {"x": each}} for i, each in enumerate(models)}
    assert " ".join(name for name in ("policy", "judge") if is_policy(name, CONFIG | called)) == policies


def test_a_judge_is_never_closed() -> None:
    """It declares its role, and has no checkpoint routes. Covers: I73."""
    server = checkpointable(SimpleResponsesAPIModel, settings=ON)()
    server.server_client.global_config_dict["agent"] = {"responses_api_agents": {"x": {"model_server": {"name": "p"}}}}
    participant = participant_of(server, "responses_api_models", known_of(SimpleResponsesAPIModel), ON, None)
    assert participant is not None and participant.participant is None
    assert participant.capabilities()["instance_role"] == "auxiliary"


# --- the command


@pytest.fixture
def component(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a module of these classes importable, as a component's app; returns the component's name."""

    def make(*classes: type[Any]) -> str:
        module = ModuleType("own_component.app")
        for cls in classes:
            cls.__module__ = module.__name__
            setattr(module, cls.__name__, cls)
        monkeypatch.setitem(sys.modules, "own_component", ModuleType("own_component"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return "own_component"

    return make


def test_a_component_is_named_by_its_folder_or_as_a_class(component: Callable[..., str]) -> None:
    """The folder of one server class, or module:Class; a class from which the component derives another is not it."""
    base = type("Base", (SimpleResourcesServer,), {})
    own = type("Own", (base,), {})
    name = component(base, own)
    assert server_class(name) is own
    assert server_class(f"{name}.app:Base") is base


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("no/such/folder", "No module named"),
        ("json:Nobody", "json has no class 'Nobody'"),
        ("json:dumps", "json has no class 'dumps'"),
        ("json:JSONDecoder", "JSONDecoder is no server class of NeMo Gym"),
    ],
)
def test_a_component_that_is_none_is_a_wrong_command_line(named: str, says: str) -> None:
    """The message names what is wrong; the exit status is that of usage."""
    with pytest.raises(UsageError, match=says):
        run_serve(argparse.Namespace(component=named))


def test_a_module_of_several_servers_asks_which(component: Callable[..., str]) -> None:
    """None of them is guessed."""
    name = component(*(type(each, (SimpleResourcesServer,), {}) for each in ("One", "Two")))
    with pytest.raises(UsageError, match="has 2 server classes \\(One, Two\\): name module:Class"):
        server_class(name)


# --- an episode's deadline


class Loop(asyncio.SelectorEventLoop):
    """A loop whose time is the test's."""

    now = 0.0

    def time(self) -> float:
        return self.now


def test_a_deadline_stands_still_while_its_server_is_closed() -> None:
    """Only the time counts for which the server was open, however often it was closed. Covers: I64."""
    loop = Loop()

    async def until(now: float) -> None:
        loop.now = now
        for _ in range(3):
            await asyncio.sleep(0)

    async def main() -> float:
        deadline = Deadline(5.0)
        try:
            async with deadline.timeout:
                for now, is_open in ((0, True), (3, False), (100, True), (101, True), (101.5, False), (300, True)):
                    await until(now)
                    deadline.note(is_open)
                await until(300.4)
                await until(300.6)
        except TimeoutError:
            return loop.now
        raise AssertionError("it did not end")

    try:
        assert loop.run_until_complete(main()) == 300.6  # 3 s, then 1.5 s, then 0.5 s
    finally:
        loop.close()
