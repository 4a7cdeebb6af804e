"""Faults of the coordinator, the trainer and the files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from participants.coordination.coordinator import Coordinator
from participants.coordination.dispatch import Dispatcher
from participants.coordination.ledger import Ledger
from participants.coordination.outcomes import Batch, Recovered
from participants.demo.faults import ForgetfulTrainer, HastyTrainer
from participants.files.draft import Draft
from participants.files.store import Publication, Store
from participants.records.records import Disposition, Receipt
from participants.simulation import life
from statecore.simulate import ProcessDisk
from stateful_tests.planted.fault import Fault, Patch, Weapon, replaces


class Forgetful(ForgetfulTrainer, life.SlowTrainer):
    """It does not say what it has consumed."""


class Hasty(HastyTrainer, life.SlowTrainer):
    """Its cursor runs ahead of its dispatches."""


def files_not_synced(patch: Patch) -> None:
    sync = ProcessDisk.sync

    def only_directories(self: ProcessDisk, operation: str, path: Any, done: Callable[[], None]) -> None:
        sync(self, operation, path, done if operation == "fsync_dir" else lambda: None)

    patch.setattr(ProcessDisk, "sync", only_directories)


def _publish_unsynced(store: Store, draft: Draft) -> Publication:
    final = store.path(draft.checkpoint_id)
    store._disk.rename(draft.directory, final)
    return Publication(draft.checkpoint_id, final, None)


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
            raise RuntimeError(outcome.story())
        return counted(self, outcome)

    patch.setattr(Coordinator, "_counted", or_else)


looks_at_nobody = replaces(Store, "overtaken_by", lambda *_: ())
GOES_ON: Final = "an overtaken coordinator goes on"

FAULTS: Final = (
    Fault("S3", "a checkpoint that fails ends the run", ends_the_run, Weapon.SIMULATION, ["exception"], 4),
    Fault(
        "S34",
        "directories are not synced",
        replaces(ProcessDisk, "fsync_dir", lambda *_: None),
        Weapon.SIMULATION,
        ["I10", "I85", "I96"],
        2,
    ),
    Fault("S34", "files are not synced", files_not_synced, Weapon.SIMULATION, ["I20", "I44"], 2),
    Fault(
        "S34",
        "the name of a published checkpoint is not synced",
        replaces(Store, "publish", _publish_unsynced),
        Weapon.JOB,
        ["I43", "I44", "I65", "I96"],
        58,
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
    Fault("S62", GOES_ON, looks_at_nobody, Weapon.JOB, ["S62"], 18),
)
