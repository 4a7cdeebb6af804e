"""A fleet from a Gym configuration: which servers there are, where they are put, and what is no configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from participants.gym.collect import classes_of, only_agent
from participants.gym.fleet import ConfigError, addressed, gym_launcher, relays_of, servers_of
from statecore.cli import UsageError

CONFIG: dict[str, Any] = {
    "head_server": {"host": "127.0.0.1", "port": 11000},
    "counter_agent": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "port": 1}}},
    "counter": {"resources_servers": {"example_session_state_mgmt": {"domain": "agent"}}},
    "policy_model": {"responses_api_models": {"openai_model": {}}},
    "relay": {"environment_servers": {"legacy_agent": {"agent_server": {"name": "counter_agent"}}}},
    "uses_cache": True,
}


def test_servers_are_found_in_the_order_in_which_they_are_called() -> None:
    """Models, resources, agents, environments; a relay is no server of its own, and says whom it stands for."""
    servers = servers_of(CONFIG)
    assert [each.name for each in servers] == ["policy_model", "counter", "counter_agent"]
    assert servers[1].component == "resources_servers/example_session_state_mgmt"
    assert relays_of(CONFIG) == {"relay": "counter_agent"}
    assert only_agent(servers) == "counter_agent"
    assert only_agent([*servers, *servers]) == ""


def test_a_server_may_have_a_class_of_its_own() -> None:
    """It is run instead of the component's; a class for nobody is a mistake."""
    assert servers_of(CONFIG, {"counter": "mine:Counter"})[1].component == "mine:Counter"
    with pytest.raises(ConfigError, match="a class is given for cuonter"):
        servers_of(CONFIG, {"cuonter": "mine:Counter"})
    assert classes_of(["a=b:C"]) == {"a": "b:C"}
    for wrong in ("a", "a=b", "=b:C"):
        with pytest.raises(UsageError, match="NAME=MODULE:CLASS"):
            classes_of([wrong])


@pytest.mark.parametrize(
    "config, problem",
    [
        ({}, "no server"),
        ({"a": {"resources_servers": {}}}, "no server"),
        ({"a": {"resources_servers": {"x": {}, "y": {}}}}, "a is more than one server"),
        ({"a": {"resources_servers": {"x": {}}, "responses_api_agents": {"y": {}}}}, "a is more than one server"),
    ],
)
def test_what_is_no_fleet_is_refused(config: dict[str, Any], problem: str) -> None:
    """Nothing is started."""
    with pytest.raises(ConfigError, match=problem):
        servers_of(config)


def test_every_server_is_put_where_the_launcher_says() -> None:
    """Host and port are replaced, all else stays, and the configuration that was given is as it was."""
    placed = addressed(CONFIG, {"counter_agent": "http://127.0.0.1:4001", "counter": "http://[::1]:4002"})
    assert placed["counter_agent"]["responses_api_agents"]["simple_agent"] == {
        "entrypoint": "app.py",
        "host": "127.0.0.1",
        "port": 4001,
    }
    assert placed["counter"]["resources_servers"]["example_session_state_mgmt"]["host"] == "::1"
    assert placed["policy_model"] is CONFIG["policy_model"]
    assert CONFIG["counter_agent"]["responses_api_agents"]["simple_agent"]["port"] == 1


def test_the_launcher_switches_checkpoints_on(tmp_path: Path) -> None:
    """Each process gets the whole configuration, the root, and what was given besides."""
    launcher = gym_launcher(CONFIG, tmp_path, tmp_path / "logs", token="t", environment={"X": "1"}, lease_grace_s=3.0)
    assert [each.name for each in launcher.specs] == ["policy_model", "counter", "counter_agent"]
    env = launcher.specs[0].env
    assert (env["STATECORE_ENABLED"], env["STATECORE_ROOT"], env["X"]) == ("true", str(tmp_path), "1")
    assert env["STATECORE_LEASE_GRACE_SECONDS"] == "3.0"
