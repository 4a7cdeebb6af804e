"""The codec of the workplace, on the real one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

from participants.gym.codecs import FRAMES, frames_of, workplace_sessions
from participants.servers.codecs import CodecError, check_codec

TOOLKITS = [each for each in FRAMES if each != "company_directory"]
PLOT = {"time_min": "2023-10-01", "time_max": "2023-11-01", "value_to_plot": "total_visits", "plot_type": "bar"}
WHEN = {"event_start": "2023-12-01 10:00:00", "duration": "30"}
EVENT = {"event_name": "x", "participant_email": "nina@atlas.com", **WHEN}
CUSTOMER = {"customer_name": "A B", "assigned_to_email": "nina@atlas.com", "status": "Lead"}
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("email_send_email", {"recipient": "nina@atlas.com", "subject": "a", "body": "b"}),
    ("email_delete_email", {"email_id": "00000057"}),
    ("calendar_create_event", EVENT),
    ("calendar_delete_event", {"event_id": "00000013"}),
    ("analytics_create_plot", PLOT),
    ("project_management_delete_task", {"task_id": "00000025"}),
    ("customer_relationship_manager_add_customer", CUSTOMER),
]


def workplace() -> Any:
    """A server with one session, `a`."""
    utils: Any = importlib.import_module("resources_servers.workplace_assistant.utils")
    return SimpleNamespace(session_id_to_tool_env={"a": utils.get_tools(TOOLKITS)})


@pytest.mark.parametrize(("tool", "arguments"), CHANGES)
def test_a_change_of_any_table_comes_back(tool: str, arguments: dict[str, Any]) -> None:
    """The tables are the same afterwards, kinds of columns and labels of rows too, and so is the next change."""
    held, server = workplace_sessions(), workplace()
    functions = server.session_id_to_tool_env["a"]["functions"]
    before = held.codec.export(held.get(server, "a"))
    functions[tool](**arguments)
    state = held.get(server, "a")
    check_codec(held.codec, state)
    data = held.codec.export(state)
    assert len(data["state"]["frames"]) == len(before["state"]["frames"]) + 1
    held.put(server, "b", held.codec.load(data))
    again = server.session_id_to_tool_env["b"]["functions"]
    assert functions["calendar_create_event"](**EVENT) == again["calendar_create_event"](**EVENT)
    ours, theirs = (frames_of(each) for each in server.session_id_to_tool_env.values())
    for name, frame in ours.items():
        assert frame.equals(theirs[name]) and list(frame.dtypes) == list(theirs[name].dtypes), name
        assert list(frame.index) == list(theirs[name].index), name


def test_what_the_workplace_ships_is_not_written() -> None:
    """A session that has changed nothing is small, and stands on the same data only."""
    held = workplace_sessions()
    data = held.codec.export(held.get(workplace(), "a"))
    assert data["state"]["frames"] == {}
    with pytest.raises(CodecError, match="ships other data"):
        held.codec.load({"state": data["state"] | {"shipped": "0" * 64}})


@pytest.mark.parametrize(
    "damage",
    [
        lambda frames: frames.update(strange={}),
        lambda frames: frames["email._emails"].pop("rows"),
        lambda frames: frames["email._emails"]["rows"].append("one"),
        lambda frames: frames["email._emails"]["columns"][0]["values"].pop(),
        lambda frames: frames["email._emails"]["columns"][0].update(name=5),
        lambda frames: frames["email._emails"]["columns"][0].update(dtype="no kind"),
    ],
)
def test_data_that_is_no_workplace_is_refused(damage: Callable[[Any], Any]) -> None:
    """Nothing is made of a table that does not fit together."""
    held, server = workplace_sessions(), workplace()
    server.session_id_to_tool_env["a"]["functions"]["email_delete_email"](email_id="00000057")
    data = deepcopy(held.codec.export(held.get(server, "a")))
    damage(data["state"]["frames"])
    with pytest.raises(CodecError):
        held.codec.load(data)


def test_a_tool_that_keeps_more_than_its_tables_is_refused() -> None:
    """What the codec does not know it does not drop."""
    server = workplace()
    server.session_id_to_tool_env["a"]["containers"]["email"].drafts = []
    with pytest.raises(CodecError, match="drafts"):
        workplace_sessions().get(server, "a")
