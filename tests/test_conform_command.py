"""`statecore conform`: exit codes, what is said in each case, and a whole run against a server on a real socket."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from attrs import evolve
from starlette.applications import Starlette

from participants.conformance import conform
from participants.conformance.command import ask, chosen
from participants.conformance.drivers import ModelDriver, ResourcesDriver, RunDriver
from participants.conformance.report import Report
from participants.net.http import ASGIApp
from statecore import cli
from statecore.targets import UsageError
from tests.conform_broken import AlwaysOpened, behind
from tests.conform_kinds import RULES, standing
from tests.conform_served import REAL, Sockets, sockets
from tests.doctored import TOOLS, foreign
from tests.served_kinds import Fleet, run
from tests.small_job import TOKEN

TOKEN_VARIABLE = "A_TOKEN"
DRIVER = '''
from participants.conformance import Driver
from participants.conformance.drivers import post

class Mine(Driver):
    async def start(self, server, episode):
        await self.touch(server, episode)

    async def touch(self, server, episode):
        await post(server, episode, "/seed_session", {})
        return await post(server, episode, "/increment", {"by": 1})

mine = Mine()
nothing = 7
'''


def commanded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `statecore conform`."""
    entry = EntryPoint("conform", "participants.conformance.command:register", cli.GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda group: [entry])
    code = cli.main(["conform", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


def beside(work: Callable[[Sockets], Any]) -> None:
    """`work` is done beside servers on real sockets."""

    async def both() -> None:
        async with sockets() as fleet:
            await work(fleet)

    trio.run(both)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    return partial(commanded, capsys, monkeypatch)


# --- on a real socket


def test_a_right_server_is_0_and_a_broken_one_1(command: Callable[..., Any], tmp_path: Path) -> None:
    """The table on standard output, a driver of the user's in a file, JSON if it is asked for."""
    (tmp_path / "driver.py").write_text(DRIVER)

    async def asked(*words: str) -> tuple[int, str, str]:
        return await trio.to_thread.run_sync(lambda: command(*words))

    async def work(fleet: Sockets) -> None:
        kind = await standing(fleet, "resources", root=fleet.root)  # type: ignore[arg-type]
        words = [kind.target().url, "--token-env", TOKEN_VARIABLE, "--root", str(fleet.root)]
        driven = ["--driver", f"{tmp_path / 'driver.py'}:Mine"]
        groups = [word for group in ("tombstones", "lost-replies/of-a-commit") for word in ("--only", group)]
        code, out, err = await asked(*words, *driven, *groups, "--verbose")
        assert (code, "resources 'tools' conforms in 4 checks" in out) == (0, True), out + err
        assert "  tombstones         3" in out and "tombstones/are-never-lowered: ok" in err
        builtin = ["--driver", "resources", "--task", '["/increment", {"by": 1}]']
        code, out, err = await asked(*words, *builtin, "--only", "tombstones", "--json")
        said = json.loads(out)
        assert (code, said["conforms"], {each["result"] for each in said["checks"]}) == (0, True, {"ok"}), said
        kind.make = behind(AlwaysOpened)
        await kind.up()
        code, out, err = await asked(*words, "--only", "idempotency")
        assert code == 1 and "FAILED idempotency/resume-again" in out and "expected" in out, out + err
        await fleet.nursery.start(partial(_session, kind.target().url))
        blockers = [*words, "--only", "blockers"]
        code, out, err = await asked(*blockers)
        assert (code, out) == (2, "") and "rollouts are on it (sessions 1)" in err
        code, out, err = await asked(*blockers, "--yes")
        assert code == 0 and "1 check not tried" in out, out + err

    beside(work)


async def _session(url: str, task_status: trio.TaskStatus[None]) -> None:
    """Somebody's session is there."""
    async with httpx.AsyncClient(trust_env=False) as client:
        reply = await client.post(f"{url}/ng-rollout/somebody/seed_session", json={})
        assert reply.status_code == 200, reply.text
    task_status.started()


def test_who_does_not_answer_is_3(command: Callable[..., Any]) -> None:
    """Nobody there, or nobody who takes part."""
    code, out, err = command("http://127.0.0.1:1", "--token-env", TOKEN_VARIABLE)
    assert (code, out) == (3, "") and "it cannot be reached" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--root", "nowhere"], "--root nowhere: name a directory that is there"),
        (["--only", "everything"], "--only everything: there is no such group or check; groups are authentication"),
        (["--task", "1"], "--task is for a driver"),
        (["--driver", "agent"], "the driver of /run needs a task"),
        (["--driver", "model", "--task", "{"], "is not JSON"),
        (["--driver", "resources", "--task", "{}"], "the task of a resources server is a tool call"),
        (["--driver", "no.such.module:Driver"], "cannot import no.such.module"),
        (["--driver", "participants.conformance:conform"], "name a Driver"),
        (["--driver", "participants.conformance"], "name a Driver"),
    ],
)
def test_a_wrong_command_line_is_2(command: Callable[..., Any], words: list[str], says: str) -> None:
    """With what is wrong, before anything is sent."""
    code, out, err = command("http://127.0.0.1:1", "--token", TOKEN, *words)
    assert (code, out) == (2, "") and says in " ".join(err.split())


def test_without_a_token_nothing_is_asked(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variable is named."""
    monkeypatch.delenv(TOKEN_VARIABLE)
    code, _, err = command("http://127.0.0.1:1", "--token-env", TOKEN_VARIABLE)
    assert code == 2 and "no control token in A_TOKEN" in err


def test_a_url_that_is_none_is_2(command: Callable[..., Any]) -> None:
    """In the words of the doctor."""
    code, _, err = command("localhost:8000", "--token", TOKEN)
    assert code == 2 and "is no URL" in err


# --- what comes before the checks, in memory


def told(app: ASGIApp | None, token: str = TOKEN) -> Any:
    """What `ask` says of a server in memory."""
    found: list[Any] = []

    async def test(fleet: Fleet) -> None:
        kind = await standing(fleet, "resources")
        if app is not None:
            await fleet.network.restart("tools", app, lifespan=False)
        target = evolve(kind.target(), token=token)
        found.append(await ask(target, kind, rules=RULES, only=["blockers"]))

    run(test)
    return found[0]


def test_who_takes_no_part_is_3() -> None:
    """A server without any route of ours."""
    code, why = told(Starlette())
    assert code == 3 and "takes no part in checkpoints" in why


def test_a_token_that_is_refused_is_2() -> None:
    """It is the command line's to mend."""
    code, why = told(None, token="another")
    assert code == 2 and "it refuses this control token" in why


def test_a_server_that_does_not_say_what_it_is_has_a_finding() -> None:
    """Capabilities without a role are a finding, and nothing more is asked (S1)."""
    code, why = told(foreign(capabilities={name: value for name, value in TOOLS.items() if name != "instance_role"}))
    assert code == 1 and "instance_role" in why


def test_a_server_that_has_capabilities_and_no_status_has_a_finding() -> None:
    """It says that it takes part, and cannot be asked."""
    code, why = told(foreign(capabilities=TOOLS))
    assert code in (1, 3) and "status" in why


def test_all_that_is_right_is_a_report() -> None:
    """With the driver that was given."""
    report = told(None)
    assert isinstance(report, Report) and report.conforms


# --- the drivers of the kinds


def test_the_drivers_of_the_kinds_drive_their_kinds() -> None:
    """Each makes rollouts that come back, on the very servers of the tests."""
    for kind, driver in {
        "policy model": ModelDriver(),
        "resources": ResourcesDriver(["/increment", {"by": 3}]),
    }.items():
        found: list[Report] = []

        async def test(fleet: Fleet, kind: str = kind, driver: Any = driver, found: list[Report] = found) -> None:
            made = await standing(fleet, kind)
            driver.fresh = made.fresh
            only = ["export-restore/comes-back-equal", "tombstones", "phases/closed-until-the-resume"]
            found.append(await conform(made.target(), driver, rules=RULES, only=only))

        run(test)
        assert found[0].conforms and not found[0].untried, found[0]


def test_the_driver_of_run_runs_rollouts() -> None:
    """Of an environment: a rollout of a task that ends; of a server that has no such route the answer is the reason."""
    found: list[Report] = []

    async def test(fleet: Fleet) -> None:
        made = await standing(fleet, "environment")
        driver = RunDriver({"question": "q", "turns": 1})
        found.append(await conform(made.target(), driver, rules=RULES, only=["tombstones/are-never-lowered"]))
        other = (await standing(fleet, "resources")).target()
        found.append(await conform(other, driver, rules=RULES, only=["tombstones/leave-out-nobody-else"]))

    run(test)
    assert found[0].conforms, found[0]
    assert found[1].rows[0].reason.startswith("the driver's rollout was not made: 404"), found[1]


def test_a_driver_may_be_an_object_or_a_class(tmp_path: Path) -> None:
    """In a file or a module."""
    (tmp_path / "driver.py").write_text(DRIVER)
    for name in ("Mine", "mine"):
        assert type(chosen(f"{tmp_path / 'driver.py'}:{name}", None)).__name__ == "Mine"
    with pytest.raises(UsageError, match="name a Driver"):
        chosen(f"{tmp_path / 'driver.py'}:nothing", None)


def test_a_server_on_a_socket_conforms() -> None:
    """A short form of `make conform`, which asks everything of every kind."""

    async def work(fleet: Sockets) -> None:
        made = await standing(fleet, "resources", root=fleet.root)  # type: ignore[arg-type]
        only = ["lost-replies/of-a-commit", "lease/opens-the-gate", "export-restore/comes-back-equal"]
        report = await conform(made.target(), made, rules=REAL, only=only)
        assert report.conforms and len(report.rows) == 3 and not report.untried, report

    beside(work)
