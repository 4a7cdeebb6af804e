"""Faults of the coordinator, of the trainer, and of what they take servers for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import trio
from attrs import asdict

from participants.coordination import coordinator
from participants.coordination import life as coordination_life
from participants.coordination.coordinator import Coordinator
from participants.coordination.dispatch import Dispatcher
from participants.coordination.ledger import Ledger
from participants.coordination.life import CoordinatorSettings, Life
from participants.coordination.outcomes import Batch, CoordinatorError, Recovered
from participants.coordination.phases import COMMITTED, Phases
from participants.coordination.supervisor import Supervisor
from participants.coordination.transaction_shell import CheckpointRun
from participants.demo import environment_server
from participants.demo.faults import ForgetfulTrainer, HastyTrainer
from participants.files.store import Publication, Store
from participants.identity import EpisodeId
from participants.machines.deployment import StartServers
from participants.records.records import Disposition, Receipt
from participants.servers.environment import Environment
from participants.servers.executions import Execution
from participants.servers.server import Server
from participants.serving.launcher import Launcher
from participants.simulation import life
from statecore.wire import sha256_hex
from stateful_tests.planted.fault import Fault, Patch, Weapon, replaces


class Forgetful(ForgetfulTrainer, life.SlowTrainer):
    """It does not say what it has consumed."""


class Hasty(HastyTrainer, life.SlowTrainer):
    """Its cursor runs ahead of its dispatches."""


def fresh_dropped(patch: Patch) -> None:
    def runnable(self: Recovered, new: Any = ()) -> Batch:
        continued = {each.rollout_id for each in self.verdicts if each.disposition is Disposition.CONTINUE}
        return Batch(tuple(each for each in self.runnable_(new).episodes if each.rollout_id in continued))

    patch.setattr(Recovered, "runnable", runnable)


def released_early(patch: Patch) -> None:
    deliver = Dispatcher._deliver

    async def and_release(self: Dispatcher, receipt: Receipt, body: Any) -> None:
        await deliver(self, receipt, body)
        await self._acknowledge(self._life.ledger[receipt.rollout_id].dispatch.target)

    patch.setattr(Ledger, "is_saved", lambda self, rollout_id: self.rollouts[rollout_id].has_result)
    patch.setattr(Dispatcher, "_deliver", and_release)


def ends_the_run(patch: Patch) -> None:
    counted = Coordinator._counted

    def or_else(self: Coordinator, outcome: Any) -> Any:
        if not outcome.published:
            raise CoordinatorError(outcome.story())
        return counted(self, outcome)

    patch.setattr(Coordinator, "_counted", or_else)


# --- S2


class KeptLive(Environment):
    """A rollout counts as running until its result is acknowledged."""

    def ended(self, execution: Execution) -> None:
        if not execution.retained:
            super().ended(execution)

    def acknowledge(self, value: Any) -> Any:
        answer = super().acknowledge(value)
        for receipt in answer["acknowledged"]:
            live = self._episodes.pop(EpisodeId(receipt["rollout_id"], receipt["attempt"]), None)
            if live is not None:
                live.end()
        return answer


# --- S6


class Swapped(Receipt):
    """Identity and digest in each other's place."""

    def to_json(self) -> dict[str, Any]:
        value = super().to_json()
        return value | {"result_identity": value["result_sha256"], "result_sha256": value["result_identity"]}


def receipts_swapped(patch: Patch) -> None:
    """A server that is given one refuses it, and keeps the result."""
    listed = coordination_life._receipts
    patch.setattr(
        coordination_life, "_receipts", lambda said: [Swapped(**asdict(each, recurse=False)) for each in listed(said)]
    )


# --- S32


class VerySlow(life.SlowTrainer):
    """Its save may take longer than any lease."""

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        await trio.sleep(5 * self.takes_s)
        await super().save(directory, dispositions)


async def _never_renewed(*_: object) -> None:
    await trio.sleep_forever()


async def _committed_once(run: Phases) -> dict[str, str]:
    await trio.lowlevel.checkpoint()
    return {member.name: COMMITTED for member in run.life.deployment.members}


async def _save_without_end(run: Phases) -> None:
    async with run.life.hooks:
        await run._save()


async def _publish_at_any_time(run: Phases) -> Publication:
    assert run.draft is not None
    return await run.life.disk(partial(run.life.store.publish, run.draft))


def leases_not_asked_about(patch: Patch) -> None:
    """Each alone is enough: leases are renewed meanwhile, the deadline ends a save, every server is asked again."""
    patch.setattr(life, "SlowTrainer", VerySlow)
    patch.setattr(Phases, "_keep_leases", _never_renewed)
    patch.setattr(Phases, "prove", _committed_once)
    patch.setattr(Phases, "save", _save_without_end)
    patch.setattr(Phases, "publish", _publish_at_any_time)


# --- S39


def _from_its_name(server: Server) -> str:
    return sha256_hex(f"{server.name} {server.settings.epoch}".encode())[:32]


def known_by_name(patch: Patch) -> None:
    """A server that is started again shows what the one before it has shown."""
    patch.setattr(Server, "incarnation", property(_from_its_name, lambda *_: None), raising=False)


# --- S53


class Before:
    """A life, with its ledger as it was."""

    def __init__(self, now: Life, ledger: Ledger) -> None:
        self._now, self.ledger = now, ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now, name)


def two_readings(patch: Patch) -> None:
    freeze, save = CheckpointRun._freeze, Phases._save

    async def reads_first(self: CheckpointRun) -> Any:
        self.phases.reading = self.life.ledger
        return await freeze(self)

    async def saves_last(self: Phases) -> None:
        now: Any = self.life
        self.life = cast("Life", Before(now, self.reading))
        try:
            await save(self)
        finally:
            self.life = now

    patch.setattr(CheckpointRun, "_freeze", reads_first)
    patch.setattr(Phases, "_save", saves_last)


def two_readings_unnoticed(patch: Patch) -> None:
    """As before, where the two halves are not compared, which ends the checkpoint."""
    two_readings(patch)
    patch.setattr(Ledger, "contradiction", lambda *_: "")


# --- S64


class OneEpoch(Supervisor):
    """A coordinator has one epoch, however often it starts its servers."""

    async def _start(self, effect: StartServers) -> list[object]:
        epoch, launcher, discover = self.life.epoch, self.launcher, self.discover
        self.launcher = cast("Launcher", SimpleNamespace(start=lambda _epoch: launcher.start(epoch)))
        self.discover = lambda urls, _epoch: discover(urls, epoch)
        try:
            return await super()._start(effect)
        finally:
            self.launcher, self.discover, self.life.epoch = launcher, discover, epoch


# --- S66

NEVER_S: Final = 1e9


def nobody_asked(patch: Patch) -> None:
    patch.setattr(life, "CoordinatorSettings", lambda **how: CoordinatorSettings(**how | {"probe_every_s": NEVER_S}))


looks_at_nobody = replaces(Store, "overtaken_by", lambda *_: ())
GOES_ON: Final = "an overtaken coordinator goes on"

TORN: Final = "the ledger of a checkpoint is read when it begins, its trainer's state when it ends"

FAULTS: Final = (
    Fault(
        "S2",
        "a rollout counts as running until its result is acknowledged",
        replaces(environment_server, "Environment", KeptLive),
        Weapon.SIMULATION,
        ["I20"],
        2,
    ),
    Fault("S3", "a checkpoint that fails ends the run", ends_the_run, Weapon.SIMULATION, ["S3"], 4),
    Fault(
        "S6",
        "identity and digest of a receipt are swapped on its way back",
        receipts_swapped,
        Weapon.SIMULATION,
        ["I75"],
        1,
    ),
    Fault(
        "S32",
        "a save that outlasts the leases is published on the word of the commit",
        leases_not_asked_about,
        Weapon.SIMULATION,
        ["I24"],
        13,
    ),
    Fault(
        "S35",
        "a trainer does not say what it has consumed",
        replaces(life, "SlowTrainer", Forgetful),
        Weapon.SIMULATION,
        ["I68"],
        5,
    ),
    Fault("S37", "rollouts without a boundary are not started over", fresh_dropped, Weapon.SIMULATION, ["I11"], 5),
    Fault("S39", "a process is known by its name", known_by_name, Weapon.SIMULATION, ["I34"], 42),
    Fault(
        "S40",
        "a trainer's cursor runs ahead of its dispatches",
        replaces(life, "SlowTrainer", Hasty),
        Weapon.SIMULATION,
        ["I11"],
        7,
    ),
    Fault("S44", GOES_ON, looks_at_nobody, Weapon.SIMULATION, ["I98"], 1),
    Fault("S52", "results are released before they are saved", released_early, Weapon.SIMULATION, ["I67"], 2),
    Fault("S53", TORN, two_readings, Weapon.SIMULATION, ["I35"], 15),
    Fault("S53", f"{TORN}; nobody compares them", two_readings_unnoticed, Weapon.SIMULATION, ["I84"], 15),
    Fault("S62", GOES_ON, looks_at_nobody, Weapon.JOB, ["S62"], 18),
    Fault(
        "S64",
        "a coordinator has one epoch, however often it starts its servers",
        replaces(coordinator, "Supervisor", OneEpoch),
        Weapon.SIMULATION,
        ["I96"],
        4,
    ),
    Fault("S66", "no server is asked whether it lives", nobody_asked, Weapon.SIMULATION, ["I20"], 31),
)
