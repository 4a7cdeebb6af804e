"""Asks `statecore doctor` about real servers of the Gym that is installed here: `python -m gym_tests.compatibility`.

Every component that is known (`participants/gym/components.py`) is started embedded and by itself, and a model server
and a few that nobody has looked at besides; the doctor says what a crash would mean for their rollouts. All others of
the package are not tried. The answers go into a file by the version of Gym, beside those of other versions, and
`make docs` makes the page of it, which needs no Gym.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from participants.commands import doctor
from participants.gym.components import AGENTS, ENVIRONMENTS, RESOURCES
from participants.gym.configuration import KINDS
from participants.gym.fleet import CONFIG_VARIABLE, PROCESS, READY_TIMEOUT_S, STOP_TIMEOUT_S
from participants.serving.launcher import ProcessLauncher, ServerSpec, StartupFailed
from statecore import StatecoreError

from .fleet import COMPONENTS, SITE, TOKEN, configuration

DATA: Final = Path(__file__).resolve().parent.parent / "docs" / "generators" / "gym_compatibility.json"
ABSENT, NOT_UP = "absent", "not up"
TOLD: Final = 160
AT_ONCE: Final = 3
NOBODY: Final = "http://127.0.0.1:1/v1"
"""Where the model would be: nobody asks it anything."""


class NotTried(StatecoreError):
    """A component that is known and that nothing here can start."""


def tried() -> dict[str, str]:
    """The components that are started, as Gym's folders name them, with the server of COMPONENTS that each is.

    Raises NotTried when a known one is none of these.
    """
    found = {f"{each.kind}/{each.impl}": name for name, each in COMPONENTS.items()}
    modules = [name.partition(":")[0] for table in (RESOURCES, AGENTS, ENVIRONMENTS) for name in table]
    known = {each.removesuffix(".app").replace(".", "/") for each in modules}
    if missing := sorted(known - found.keys()):
        raise NotTried(f"known and not tried: {', '.join(missing)}")
    return dict(sorted(found.items(), key=lambda each: (KINDS.index(each[0].partition("/")[0]), each[0])))


async def asked(component: str, name: str, folder: Path) -> dict[str, str]:
    """What the doctor says of a server of this component, and its mode; or why there is none."""
    if not (SITE / component / "app.py").exists():
        return {"outlook": ABSENT}
    await trio.Path(folder).mkdir(parents=True)
    environment = {
        CONFIG_VARIABLE: json.dumps(configuration([name], NOBODY)),
        "STATECORE_ENABLED": "true",
        "STATECORE_ROOT": str(folder),
    }
    spec = ServerSpec(name, component, environment, PROCESS)
    launcher = ProcessLauncher(
        [spec],
        folder / "logs",
        token=TOKEN,
        ready_timeout_s=READY_TIMEOUT_S,
        stop_timeout_s=STOP_TIMEOUT_S,
        lifeline=True,
    )
    try:
        urls = await launcher.start(1)
        diagnosis = await doctor.asked(doctor.Question(urls=(urls[name],), token=TOKEN, timeout_s=60.0))
    except StartupFailed as error:
        return {"outlook": NOT_UP, "why": str(error).strip().splitlines()[-1][:TOLD]}
    finally:
        await launcher.stop()
    (server,) = diagnosis.servers
    return {"outlook": server.outlook.value, "mode": server.mode or "", "why": server.reason}


async def all_asked(version: str, servers: Mapping[str, str], folder: Path) -> dict[str, dict[str, str]]:
    """The same of these components, a few at a time."""
    found: dict[str, dict[str, str]] = {}
    limit = trio.CapacityLimiter(AT_ONCE)

    async def ask(component: str, name: str) -> None:
        async with limit:
            found[component] = await asked(component, name, folder / name)
        said = ", ".join(filter(None, found[component].values()))
        print(f"{version} {component}: {said}", flush=True)

    async with trio.open_nursery() as nursery:
        for component, name in servers.items():
            nursery.start_soon(ask, component, name)
    return found


def shipped(site: Path = SITE) -> dict[str, int]:
    """How many components of each kind the package has."""
    return {kind: len(list((site / kind).glob("*/app.py"))) for kind in KINDS}


def with_answers(
    known: Mapping[str, Any], version: str, answers: Mapping[str, Any], number: Mapping[str, int]
) -> bytes:
    """The file with these answers of a version that ships so many; what it says of others stays."""
    before = known.get(version, {"components": {}})["components"]
    together = {**known, version: {"components": {**before, **answers}, "shipped": number}}
    return json.dumps(dict(sorted(together.items())), indent=1, sort_keys=True).encode() + b"\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gym_tests.compatibility")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help="the file of the answers")
    parser.add_argument("--only", action="append", metavar="COMPONENT", help="ask about this one alone")
    args = parser.parse_args(argv)
    servers = tried()
    if unknown := sorted(set(args.only or ()) - servers.keys()):
        parser.error(f"--only {unknown[0]}: one of {', '.join(servers)}")
    version = importlib.metadata.version("nemo-gym")
    with tempfile.TemporaryDirectory(prefix="gym-compatibility-") as folder:
        wanted = {component: servers[component] for component in args.only or servers}
        answers = trio.run(all_asked, version, wanted, Path(folder))
    known = json.loads(args.data.read_bytes()) if args.data.exists() else {}
    args.data.write_bytes(with_answers(known, version, answers, shipped()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
