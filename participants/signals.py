"""What is measured, under which names: every span and every metric, with unit and attributes. Values only.

The page docs/reference/telemetry.md is written from here, and whoever measures names one of these, so nothing is
emitted that is not on the page. Names have few forms: whatever differs from call to call is an attribute, and no
attribute of a metric names a rollout, a checkpoint or a process, of which there are ever more.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final

from attrs import frozen


class Kind(StrEnum):
    """Where a span stands towards others: inside one process, or at either end of a call."""

    INTERNAL = auto()
    CLIENT = auto()
    SERVER = auto()


@frozen(kw_only=True)
class SpanName:
    """A kind of span. `alone`: it may begin a trace; otherwise it is there only below another span.

    `encloses`: what happens while it lasts is below it.
    """

    name: str
    says: str
    attributes: tuple[str, ...] = ()
    kind: Kind = Kind.INTERNAL
    alone: bool = True
    encloses: bool = True


@frozen(kw_only=True)
class Metric:
    """A kind of number, `unit` as UCUM writes it. A counter is added up, of everything else the distribution is kept.

    `bounds` are the upper bounds of a histogram's buckets, those of its reader where there are none.
    """

    name: str
    unit: str
    says: str
    attributes: tuple[str, ...] = ()
    counter: bool = False
    bounds: tuple[float, ...] = ()


# --- attributes

ERROR: Final = "error.type"
CHECKPOINT_ID: Final = "statecore.checkpoint.id"
EPOCH: Final = "statecore.epoch"
SERVER: Final = "statecore.server"
VERB: Final = "statecore.verb"
OUTCOME: Final = "statecore.outcome"
PHASE: Final = "statecore.phase"
STEP: Final = "statecore.step"
DISPOSITION: Final = "statecore.disposition"
CAUSE: Final = "statecore.cause"
RECORDS: Final = "statecore.records"
SIZE: Final = "statecore.size"
BLOCKERS: Final = "statecore.blockers"
TRIES: Final = "statecore.tries"
STATUS: Final = "http.response.status_code"

CANCELLED: Final = "cancelled"
"""The `error.type` of what nobody waited for any more."""

ATTRIBUTES: Final = {
    ERROR: "why it failed: a code, the type of an exception, `cancelled`, `aborted`, or `given_up`",
    CHECKPOINT_ID: "the checkpoint, or the restore, that a call is of",
    EPOCH: "the life of the deployment",
    SERVER: "the server: at a coordinator the launcher's name for it, at a server its own",
    VERB: "the control call",
    OUTCOME: "`published`, `aborted`, `overtaken`, `cancelled`, `failed`; of a recovery `restored`, `fresh`, `failed`",
    PHASE: "the phase of a checkpoint",
    STEP: "what a server does for a call: `wait`, `export`, `write`, `read`, `install`",
    DISPOSITION: "`continue`, `completed`, `fresh`, `queued`",
    CAUSE: "`start` of a coordinator, or the `death` of a server",
    RECORDS: "how many records",
    SIZE: "how many bytes they have in the file",
    BLOCKERS: "how many executions it waited for: at a server when it closed, at a coordinator when it gave up",
    TRIES: "how often the call was sent",
    STATUS: "the status of the answer",
}

# --- spans

PHASES: Final = {
    name: SpanName(name=f"statecore.checkpoint.{name}", says=says, attributes=(ERROR, CHECKPOINT_ID))
    for name, says in {
        "freeze": "no rollout is dispatched any more",
        "prepare": "every server is closed and quiet",
        "commit": "every server has written its part",
        "settle": "the parts are read here, and results that are on their way have come",
        "save": "the trainer has saved its half",
        "validate": "everything is on the disk and was read back",
        "prove": "every server has answered that it still stands in this checkpoint",
        "publish": "the checkpoint is in force, by one rename",
        "claims": "nobody else has claimed the root",
        "acknowledge": "results that are saved are released at the servers",
        "resume": "the servers are open again",
    }.items()
}
RECOVERY_STEPS: Final = {
    name: SpanName(name=f"statecore.recovery.{name}", says=says, attributes=(ERROR,))
    for name, says in {
        "stop": "the servers that are left are stopped, after a death",
        "claim": "an epoch is claimed; at a start the base is chosen as well",
        "launch": "the servers are started",
        "discover": "it is known who takes part, and whose clock is off",
        "plan": "it is known what becomes of each rollout",
        "restore": "old attempts are fenced, the parts installed, the servers open",
        "deliver": "results that the trainer's state lacks are handed over again",
    }.items()
}
NAMES_NO_CHECKPOINT: Final = frozenset({"status", "capabilities", "results", "acknowledge"})
CALLS: Final = {
    verb: SpanName(
        name=f"statecore.control.{verb}",
        says=says,
        attributes=(ERROR, VERB, SERVER, TRIES, *(() if verb in NAMES_NO_CHECKPOINT else (CHECKPOINT_ID,))),
        kind=Kind.CLIENT,
        alone=verb not in ("status", "capabilities", "results"),
    )
    for verb, says in {
        "prepare": "close, and answer when nothing moves",
        "commit": "write your part",
        "restore": "read your part and install it",
        "resume": "open",
        "renew": "stay closed for longer",
        "retire": "these attempts are over",
        "forget": "keep nothing of these rollouts",
        "status": "say where you stand",
        "capabilities": "say what you can do",
        "results": "list the results that you keep",
        "acknowledge": "let go of these results",
    }.items()
}
SERVED: Final = {
    verb: SpanName(
        name=call.name,
        says=call.says,
        attributes=(*(name for name in call.attributes if name != TRIES), STATUS),
        kind=Kind.SERVER,
        alone=call.alone,
    )
    for verb, call in CALLS.items()
}

CHECKPOINT: Final = SpanName(
    name="statecore.checkpoint",
    says="one call of `checkpoint()`: the root of a trace, unless the trainer has a span of its own around it",
    attributes=(ERROR, CHECKPOINT_ID, EPOCH, OUTCOME, BLOCKERS),
)
RECOVERY: Final = SpanName(
    name="statecore.recovery",
    says="a life begins: one call of `recover()`, or one restart of all servers since one of them had died",
    attributes=(ERROR, CHECKPOINT_ID, EPOCH, OUTCOME, CAUSE),
)
WAIT: Final = SpanName(
    name="statecore.participant.wait",
    says="from the closing of the gate until nothing moves, or until the deadline",
    attributes=(ERROR, SERVER, BLOCKERS),
)
EXPORT: Final = SpanName(
    name="statecore.participant.export",
    says="from the first record to the last, each of them written before the next is made",
    attributes=(ERROR, SERVER, RECORDS),
    encloses=False,  # a generator's: it must not change what its reader is inside of
)
WRITE: Final = SpanName(
    name="statecore.participant.write",
    says="the whole writing of a part: its export, then what makes it durable. It may outlast a call that was given up",
    attributes=(ERROR, SERVER, RECORDS, SIZE),
)
READ: Final = SpanName(
    name="statecore.participant.read",
    says="a part is read and every byte of it checked",
    attributes=(ERROR, SERVER, RECORDS),
)
INSTALL: Final = SpanName(
    name="statecore.participant.install",
    says="the records are validated, and installed in one piece",
    attributes=(ERROR, SERVER, RECORDS),
)

SPANS: Final = (
    CHECKPOINT,
    *PHASES.values(),
    RECOVERY,
    *RECOVERY_STEPS.values(),
    *CALLS.values(),
    *SERVED.values(),
    WAIT,
    EXPORT,
    WRITE,
    READ,
    INSTALL,
)

# --- metrics

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
COUNTS: Final = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5)
BYTES: Final = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10)

CHECKPOINT_SECONDS: Final = Metric(
    name="statecore.checkpoint.duration",
    unit="s",
    says="of one call of `checkpoint()`, by how it ended",
    attributes=(OUTCOME,),
    bounds=SECONDS,
)
PHASE_SECONDS: Final = Metric(
    name="statecore.checkpoint.phase.duration",
    unit="s",
    says="of each phase, also of one that failed",
    attributes=(PHASE,),
    bounds=SECONDS,
)
CHECKPOINT_ROLLOUTS: Final = Metric(
    name="statecore.checkpoint.rollouts",
    unit="{rollout}",
    says="in a checkpoint that was published, by what would become of them",
    attributes=(DISPOSITION,),
    bounds=COUNTS,
)
CHECKPOINT_TURNS: Final = Metric(
    name="statecore.checkpoint.turns",
    unit="{turn}",
    says="held: finished turns that a published checkpoint holds, of rollouts that it continues",
    bounds=COUNTS,
)
CHECKPOINT_BLOCKERS: Final = Metric(
    name="statecore.checkpoint.blockers",
    unit="{blocker}",
    says="who kept a server from being ready when a checkpoint was given up for it",
    attributes=(SERVER,),
    counter=True,
)
CALL_SECONDS: Final = Metric(
    name="statecore.control.duration",
    unit="s",
    says="of a control call as the coordinator sees it, all its sendings together; probes count here as well",
    attributes=(VERB, SERVER, ERROR),
    bounds=SECONDS,
)
RECOVERY_SECONDS: Final = Metric(
    name="statecore.recovery.duration",
    unit="s",
    says="from the call of `recover()`, or from a server's death, until the servers are open",
    attributes=(CAUSE, OUTCOME),
    bounds=SECONDS,
)
RECOVERY_ROLLOUTS: Final = Metric(
    name="statecore.recovery.rollouts",
    unit="{rollout}",
    says="known at a recovery, by what became of them",
    attributes=(DISPOSITION,),
    counter=True,
)
RECOVERY_TURNS: Final = Metric(
    name="statecore.recovery.turns",
    unit="{turn}",
    says="that the restored checkpoint holds: `continue` are held and not run again, `fresh` are redone although it "
    "holds them. What was finished after it is in no count here, since whoever knew of it has died",
    attributes=(DISPOSITION,),
    counter=True,
)
TURNS: Final = Metric(
    name="statecore.agent.turns",
    unit="{turn}",
    says="that ended in a boundary, those that run again included",
    attributes=(SERVER,),
    counter=True,
)
STEP_SECONDS: Final = Metric(
    name="statecore.participant.duration",
    unit="s",
    says="of what a server does for a call",
    attributes=(STEP, SERVER),
    bounds=SECONDS,
)
PART_RECORDS: Final = Metric(
    name="statecore.part.records",
    unit="{record}",
    says="in a part that was written, or read for a restore",
    attributes=(STEP, SERVER),
    bounds=COUNTS,
)
PART_BYTES: Final = Metric(
    name="statecore.part.size",
    unit="By",
    says="of the records of a part that was written",
    attributes=(SERVER,),
    bounds=BYTES,
)
REFUSALS: Final = Metric(
    name="statecore.refusals",
    unit="{refusal}",
    says="requests that a server refused, of control and of data alike; not what a `/run` of its own ends with",
    attributes=(ERROR, SERVER),
    counter=True,
)
HOLDS: Final = Metric(
    name="statecore.holds",
    unit="{request}",
    says="requests that came while the gate was closed, and wait",
    attributes=(SERVER,),
    counter=True,
)
HOLD_SECONDS: Final = Metric(
    name="statecore.hold.duration",
    unit="s",
    says="how long such a request waited, until it was admitted or gave up",
    attributes=(SERVER,),
    bounds=SECONDS,
)
LEASES: Final = Metric(
    name="statecore.lease.expiries",
    unit="{expiry}",
    says="a server heard nothing in time, opened by itself and fenced the checkpoint",
    attributes=(SERVER,),
    counter=True,
)

METRICS: Final = (
    CHECKPOINT_SECONDS,
    PHASE_SECONDS,
    CHECKPOINT_ROLLOUTS,
    CHECKPOINT_TURNS,
    CHECKPOINT_BLOCKERS,
    CALL_SECONDS,
    RECOVERY_SECONDS,
    RECOVERY_ROLLOUTS,
    RECOVERY_TURNS,
    TURNS,
    STEP_SECONDS,
    PART_RECORDS,
    PART_BYTES,
    REFUSALS,
    HOLDS,
    HOLD_SECONDS,
    LEASES,
)
