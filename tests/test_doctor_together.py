"""`statecore doctor` on the servers of one deployment, on whatever strangers say, and as a command."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from participants.commands.diagnosis import diagnose
from participants.commands.doctor import as_json, checked_urls, found_token, register
from participants.commands.examination import Answers
from participants.commands.server_view import Outlook
from participants.coordination.cut import read_blockers
from participants.coordination.introduction import ClockReading, Introduction, Role
from participants.net.client import ControlError
from statecore.cli import UsageError
from tests.doctored import (
    IDLE,
    NOW,
    REPORT,
    TOOLS,
    Json,
    doctor,
    put,
    status_of,
    text,
    told,
)
from tests.served_kinds import Fleet, run
from tests.small_job import TOKEN, WALL

ROOT = Path(__file__).parent.parent


# --- all servers together


async def three(fleet: Fleet, **changes: Json) -> None:
    """Environment, policy and tools, each with an incarnation of its own, and with `changes` in what it says."""
    for name, kind, role in (
        ("env", "environment", "environment"), ("policy", "model", "policy"), ("tools", "resources", "resources"),
    ):  # fmt: skip
        own = NOW | {"incarnation": name * 8} | changes.get(name, {})
        said = {"kind": kind, "instance": name, "instance_role": role}
        said |= {"checkpoint_mode": "exported"}
        await put(fleet, name, status_of(kind, name) | own, said | own)


@pytest.mark.parametrize(
    ("changes", "asked_of", "wrong", "mend"),
    [
        ({"tools": {"epoch": 2}}, (), "different lives (epoch 1: env, policy; epoch 2: tools)", "started together"),
        (
            {"env": {"checkpoint_id": "ck-1"}, "tools": {"checkpoint_id": "ck-2"}}, (),
            "different checkpoints are open (ck-1: env; ck-2: tools)", "two coordinators",
        ),
        ({}, ("env", "tools"), "no policy model is among them: nobody knows", "role policy"),
        ({}, ("policy", "tools"), "neither an environment nor an agent is among them", "address"),
    ],
)  # fmt: skip
def test_servers_that_do_not_fit_together(
    changes: dict[str, Json], asked_of: tuple[str, ...], wrong: str, mend: str
) -> None:
    """Each is well by itself, and all the same no checkpoint of them can be relied on."""

    async def test(fleet: Fleet) -> None:
        await three(fleet, **changes)
        diagnosis = await doctor(fleet, *(asked_of or ("env", "policy", "tools")))
        assert {each.outlook for each in diagnosis.servers} == {Outlook.CONTINUES}
        assert (diagnosis.healthy, diagnosis.outlook) == (False, Outlook.CANNOT_TAKE_PART)
        (finding,) = diagnosis.findings
        assert wrong in finding.problem
        assert mend in finding.mend
        assert finding.problem in told(diagnosis)

    run(test)


def test_two_servers_of_one_kind_and_name_would_share_a_part() -> None:
    """They are named with their addresses; one process under two addresses is another mistake. Covers: I46"""

    async def test(fleet: Fleet) -> None:
        await three(fleet)
        own = NOW | {"incarnation": "other"}
        await put(fleet, "second", status_of("resources", "tools") | own, TOOLS | own)
        (finding,) = (await doctor(fleet, "env", "policy", "tools", "second")).findings
        assert finding.problem == (
            "http://tools.local, http://second.local are both resources 'tools' and would share a part (I46)"
        )
        own = NOW | {"incarnation": "tools" * 8}
        await put(fleet, "second", status_of("resources", "tools") | own, TOOLS | own)
        (finding,) = (await doctor(fleet, "env", "policy", "tools", "second")).findings
        assert "are one and the same process, resources 'tools'" in finding.problem

    run(test)


def test_no_policy_is_claimed_missing_while_somebody_did_not_say_what_they_are() -> None:
    """A server that cannot be reached may be the policy; the only model being a judge is said."""

    async def test(fleet: Fleet) -> None:
        await three(fleet)
        assert (await doctor(fleet, "env", "tools", "gone")).findings == ()
        await put(fleet, "judge", None, {"kind": "model", "instance": "judge", "instance_role": "auxiliary"})
        (finding,) = (await doctor(fleet, "env", "tools", "judge")).findings
        assert "(judge is auxiliary)" in finding.problem

    run(test)


def test_one_server_that_exports_nothing_makes_its_rollouts_start_over() -> None:
    """The others continue; the first line names the one, the exit code says it."""

    async def test(fleet: Fleet) -> None:
        await three(fleet, tools={"checkpoint_mode": "restart_only"})
        diagnosis = await doctor(fleet, "env", "policy", "tools")
        assert [each.outlook.value for each in diagnosis.servers] == ["continues", "continues", "starts_over"]
        assert text(diagnosis).splitlines()[0] == (
            "3 servers: rollouts that touch tools would start over after a crash"
        )
        assert not diagnosis.healthy

    run(test)


def test_a_checkpoint_that_is_open_on_some_only_is_worth_a_note() -> None:
    """It may be on its way, or have been left; no fault."""

    async def test(fleet: Fleet) -> None:
        await three(fleet, tools={"checkpoint_id": "ck-1"})
        diagnosis = await doctor(fleet, "env", "policy", "tools")
        assert diagnosis.healthy
        assert "checkpoint ck-1 is open on tools only" in diagnosis.notes[0]

    run(test)


# --- whatever strangers say


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
    | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
REPORTS = JSON | st.fixed_dictionaries({name: JSON for name in [*REPORT, "blocker_details", "retained"]})
FIELDS = [*IDLE, "kind", "instance", "mode", "state", "workers", "expected_workers", "accepting"]
STATUSES = st.fixed_dictionaries({name: JSON for name in FIELDS} | {"report": REPORTS})


@hypothesis_settings(max_examples=40)
@given(
    st.sampled_from(Role), st.text(max_size=9), st.text(max_size=9), st.booleans(), STATUSES, JSON, JSON,
    st.none() | st.just(ClockReading(1e9, 0.5)),
)  # fmt: skip
def test_no_status_breaks_the_report(
    role: Role,
    name: str,
    mode: str,
    capable: bool,
    status: Json,
    workers: Any,
    versions: Any,
    clock: ClockReading | None,
) -> None:
    """Any JSON in any field: a report, in text that a terminal can be shown, and in JSON."""
    said = {**status, "workers": workers, "schema_versions": versions}
    found = Introduction(
        role=role, kind=name, instance=name, mode=mode, clock=clock, has_capabilities=capable, said=said
    )  # fmt: skip
    answers = Answers(url="http://x", asked_ts=WALL, introduction=found, status=status, clock=clock, server_ts=WALL)
    diagnosis = diagnose([answers, evolve(answers, url="http://y")], 5)
    assert all(line.isprintable() for line in text(diagnosis).splitlines())
    assert json.loads(json.dumps(as_json(diagnosis)))["servers"][1]["url"] == "http://y"


def test_a_waited_time_that_no_float_holds_is_not_told() -> None:
    """An integer of any size is valid JSON."""
    report = {"blocker_details": [{"rollout_id": "r1", "attempt": 0, "reason": "runs", "waited_s": 10**400}]}
    (blocker,) = read_blockers("env", report)
    assert blocker.waited_s is None


def test_what_a_terminal_would_obey_is_escaped() -> None:
    """A server's words do not move the cursor of whoever reads them."""
    error = ControlError(500, "\x1b[2J", "\r\nall is well\x07", transport=True, server="x", verb="status")
    diagnosis = diagnose([Answers(url="http://x", asked_ts=WALL, error=error)], 5)
    assert r"\x1b[2J: \r\nall is well\x07" in text(diagnosis)


# --- the command


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    args = parser.parse_args(["doctor", *arguments])
    return int(args.run(args))


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:8000", "ftp://h", "http://", "http://h:x", "http://h:0", "http://h:99999", "http://[::1",
        "http://[1::2::3]", "http://a b", "http://a..b", "http://" + "a" * 64, "http://xn--", "http://u:p@h",
        "http://h?x=1", "http://h#x", "http://h/\0",
    ],
)  # fmt: skip
def test_what_is_no_base_address_is_refused(url: str) -> None:
    """By name, before anybody is asked."""
    with pytest.raises(UsageError, match=r"URL|address|port"):
        checked_urls([url])


def test_addresses_are_taken_as_they_are_given() -> None:
    """Names, numbers, IPv6, a path in front; a slash at the end is none, and twice is a mistake."""
    urls = ["http://h", "https://h.example:8443/", "http://127.0.0.1:80", "http://[::1]:9", "http://a_b/base/"]
    assert checked_urls(urls) == tuple(url.rstrip("/") for url in urls)
    with pytest.raises(UsageError, match="http://h is given twice"):
        checked_urls(["http://h/", "http://h"])


def test_the_token_is_found_where_servers_find_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line first, a named variable, the servers' own two; without one the command is wrong."""
    for name in ("NEMO_GYM_CHECKPOINT_CONTROL_TOKEN", "STATECORE_CONTROL_AUTH_TOKEN", "MY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match=r"no control token in NEMO_GYM_CHECKPOINT_CONTROL_TOKEN \(or STATECORE_"):
        found_token(None, None)
    with pytest.raises(UsageError, match="no control token in MY_TOKEN"):
        found_token(None, "MY_TOKEN")
    monkeypatch.setenv("NEMO_GYM_CHECKPOINT_CONTROL_TOKEN", "gym")
    assert found_token(None, None) == "gym"
    monkeypatch.setenv("STATECORE_CONTROL_AUTH_TOKEN", "ours")
    monkeypatch.setenv("MY_TOKEN", "mine")
    assert (found_token(None, None), found_token(None, "MY_TOKEN"), found_token("given", None)) == (
        "ours", "mine", "given",
    )  # fmt: skip
    for wrong in ("", "tök", "a\nb", " a"):
        with pytest.raises(UsageError, match="token"):
            found_token(wrong, None)


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["http://h", "--token", "a", "--token-env", "B"], ["http://h", "--timeout", "0"],
        ["http://h", "--timeout", "nan"], ["http://h", "--max-clock-skew", "-1"], ["http://h", "--max-clock-skew", "x"],
    ],
)  # fmt: skip
def test_a_command_line_that_is_wrong_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Usage, status 2."""
    with pytest.raises(SystemExit) as exit_:
        command(*arguments)
    assert exit_.value.code == 2
    assert "doctor: error:" in capsys.readouterr().err


@contextmanager
def served(tmp_path: Path, factory: str) -> Iterator[str]:
    """The URL of a server in a process of its own, on hypercorn."""
    ready = tmp_path / "ready"
    environ = {
        "PYTHONPATH": str(ROOT),
        "STATECORE_ENABLED": "true",
        "STATECORE_CONTROL_AUTH_TOKEN": TOKEN,
        "STATECORE_ROOT": str(tmp_path),
    }
    arguments = [sys.executable, "-m", "participants.serving", factory, "--ready-file", str(ready)]
    with subprocess.Popen(arguments, cwd=ROOT, env=environ) as process:
        try:
            while not ready.exists() and process.poll() is None:
                time.sleep(0.01)
            yield ready.read_text().strip()
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_real_servers_are_asked_by_the_real_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On sockets: text and JSON, exit codes 0, 1 and 2, as a user types it."""
    with served(tmp_path, "tests.uvicorn_apps:tools") as url:
        assert command(url, "--token", TOKEN) == 0
        told_text = capsys.readouterr().out
        assert told_text.startswith("1 server: rollouts would continue after a crash\n")
        assert f"tools at {url}: its rollouts would continue" in told_text
        assert command(url, "--token", TOKEN, "--json") == 0
        value = json.loads(capsys.readouterr().out)
        assert (value["type"], value["healthy"], value["outlook"]) == ("doctor", True, "continues")
        (server,) = value["servers"]
        assert (server["kind"], server["mode"], server["token"], server["workers"], server["outlook"]) == (
            "resources", "export_restore", "accepted", 1, "continues",
        )  # fmt: skip
        assert abs(server["clock_offset_s"]) < 5
        assert command(url, "--token", "another") == 1
        assert "it refuses this control token" in capsys.readouterr().out
        main = "import sys; from statecore.cli import main; sys.exit(main())"
        typed = [sys.executable, "-c", main, "doctor", url, "--token-env", "GYM_TOKEN"]
        for environ, code in (({"GYM_TOKEN": TOKEN}, 0), ({}, 2)):
            environ |= {"PYTHONPATH": str(ROOT)}
            ended = subprocess.run(typed, cwd=ROOT, env=environ, capture_output=True, check=False)
            assert ended.returncode == code, ended.stderr
    assert command(url, "--token", TOKEN) == 1
    assert "it cannot be reached" in capsys.readouterr().out
