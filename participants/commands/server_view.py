"""What the answers of one running server mean: would its rollouts continue after a crash, and why not. Pure.

Rules (docs/reference/protocol.md section 2): by its mode a server's rollouts continue or start over; undeclared means
restart_only; with something wrong (findings.py) it cannot take part at all. A judge or simulator is no participant and
is never paused (I73); a server without control routes is none either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum, auto
from typing import Any, Final

from attrs import evolve, field, frozen

from ..coordination.cut import read_blockers
from ..coordination.introduction import Introduction, Role
from ..coordination.outcomes import Blocker
from ..net.replies import MAX_TS
from .examination import Answers
from .findings import UNAUTHORIZED, Finding, count, items, mapping, of_error, of_introduction, of_process, text, workers

EXPORTING: Final = frozenset({"exported", "export_restore"})
STATELESS: Final = "stateless"


class Outlook(StrEnum):
    """What a crash would mean for a server's rollouts, if a checkpoint were taken now."""

    CONTINUES = auto()
    STARTS_OVER = auto()
    NO_PARTICIPANT = auto()
    CANNOT_TAKE_PART = auto()


class Token(StrEnum):
    """What became of the token: NOT_ASKED where no route that wants it was reached."""

    ACCEPTED = auto()
    REFUSED = auto()
    NOT_ASKED = auto()


@frozen(kw_only=True)
class ServerView:
    """One server. Fields are None where it does not say; times are in seconds; `clock_offset_s` is how far it is ahead.

    `state` is `phase` in its own words (`born`: closed since its start). `restarts` are the capture keys of live
    executions that start over, `retained` those of results that nobody has acknowledged yet. `lease_left_s` is by the
    server's own clock. `notes` are worth knowing and not wrong.
    """

    url: str
    outlook: Outlook
    reason: str
    mend: str = ""
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    kind: str | None = None
    role: Role | None = None
    instance: str | None = None
    mode: str | None = None
    token: Token = Token.NOT_ASKED
    clock_offset_s: float | None = None
    clock_uncertainty_s: float | None = None
    workers: int | None = None
    expected_workers: int | None = None
    phase: str | None = None
    state: str | None = None
    checkpoint_id: str | None = None
    lease_left_s: float | None = None
    blocker_count: int = 0
    blockers: tuple[Blocker, ...] = ()
    counts: Mapping[str, int] = field(factory=dict)
    restarts: tuple[str, ...] = ()
    retained: tuple[str, ...] = ()
    incarnation: str | None = None
    epoch: int | None = None

    @property
    def name(self) -> str:
        """What it calls itself; its address where it does not."""
        return self.instance or self.url

    @property
    def takes_part(self) -> bool:
        return self.role is not None and self.role is not Role.AUXILIARY


def view(answers: Answers, max_clock_skew_s: float) -> ServerView:
    """What one server's answers mean by themselves."""
    found = answers.introduction
    if found is None:
        return _unintroduced(answers)
    if found.role is Role.AUXILIARY:
        return _auxiliary(answers, found)
    status = answers.status or {}
    mode = mode_of(found, status)
    outlook, reason, mend = by_mode(found.role, mode)
    findings = (*of_introduction(found, status), *of_process(answers, found, max_clock_skew_s))
    if findings:
        outlook, reason, mend = Outlook.CANNOT_TAKE_PART, findings[0].problem, findings[0].mend
    said = ServerView(
        url=answers.url,
        outlook=outlook,
        reason=reason,
        mend=mend,
        findings=findings,
        notes=tuple(_notes(answers, found)),
        mode=mode or None,
    )
    return _with_status(_introduced(said, answers, found), answers, found.instance)


def _introduced(said: ServerView, answers: Answers, found: Introduction) -> ServerView:
    """With what every server says that has a control plane."""
    clock = answers.clock
    here, expected = workers(found, answers.status or {})
    return evolve(
        said,
        kind=found.kind,
        role=found.role,
        instance=found.instance,
        token=Token.ACCEPTED,
        clock_offset_s=None if clock is None else clock.offset_s,
        clock_uncertainty_s=None if clock is None else clock.uncertainty_s,
        workers=here,
        expected_workers=expected,
        incarnation=_single(answers),
        epoch=answers.epoch,
    )


def _with_status(said: ServerView, answers: Answers, name: str) -> ServerView:
    """With what is going on in it now."""
    status = answers.status or {}
    report = mapping(status, "report")
    blocked = report.get("ready") is False
    blockers = read_blockers(name, report) if blocked else ()
    return evolve(
        said,
        phase=text(status, "phase"),
        state=text(status, "state"),
        checkpoint_id=text(status, "checkpoint_id"),
        lease_left_s=_lease_left(answers, status),
        blocker_count=(count(report, "blocker_count") or len(blockers)) if blocked else 0,
        blockers=blockers,
        counts={name: each for name, each in mapping(report, "counts").items() if type(each) is int},
        restarts=tuple(each for each in items(report, "restarts") if isinstance(each, str)),
        retained=tuple(_receipt_key(each) for each in items(report, "retained") if isinstance(each, dict)),
    )


# --- servers that take no part, or do not answer


def _unintroduced(answers: Answers) -> ServerView:
    if answers.error is None and not answers.unknown_role:
        return ServerView(
            url=answers.url,
            outlook=Outlook.NO_PARTICIPANT,
            reason="it has no control routes: nothing that it holds of a rollout is in any checkpoint",
            mend="none for a server that holds nothing of rollouts; else switch checkpointing on there "
            "(checkpoint.enabled, or STATECORE_ENABLED=true)",
        )
    token = Token.ACCEPTED
    if answers.error is not None:
        finding = of_error(answers.error)
        token = Token.REFUSED if answers.error.status in UNAUTHORIZED else Token.NOT_ASKED
    else:
        mend = "declare instance_role in its capabilities: policy, auxiliary, agent, resources or environment"
        finding = Finding(answers.unknown_role, mend)
    return ServerView(
        url=answers.url,
        outlook=Outlook.CANNOT_TAKE_PART,
        reason=finding.problem,
        mend=finding.mend,
        findings=(finding,),
        token=token,
        incarnation=_single(answers),
        epoch=answers.epoch,
    )


def _auxiliary(answers: Answers, found: Introduction) -> ServerView:
    """A judge or a simulator. One that has checkpoint routes all the same is a trap for who does not know roles."""
    trap = "it serves checkpoint routes all the same: a coordinator that knows no roles would pause it (S1)"
    said = ServerView(
        url=answers.url,
        outlook=Outlook.NO_PARTICIPANT,
        reason="it is auxiliary (a judge or a simulator): never paused, and nothing of it is saved",
        notes=() if answers.status is None else (trap,),
    )
    return _introduced(said, answers, found)


def _notes(answers: Answers, found: Introduction) -> Iterable[str]:
    if not found.has_capabilities:
        yield "it speaks the plain wire form, without capabilities, and is taken for what its kind says"
    if not answers.incarnations:
        yield "its replies show no incarnation: a restart is noticed late, and the proof before publishing is weak"
    journal = mapping(answers.status or {}, "journal")
    if lost := count(journal, "lost"):
        why = text(journal, "problem") or "they could not be written"
        yield f"its journal has lost {lost} of {count(journal, 'lines') or 0} lines: {why}"


# --- modes


def mode_of(found: Introduction, status: Mapping[str, Any]) -> str:
    """The mode as it declares it, or as the wire form of its kind has it; "" is undeclared."""
    if found.has_capabilities:
        return found.mode
    if found.role is Role.AGENT:
        return "exported" if "accepting" in status else "restart_only"
    return found.mode if found.role is Role.RESOURCES else "exported"


_SAVED: Final = {
    Role.ENVIRONMENT: "its episodes are saved at a step boundary and go on from there",
    Role.POLICY: "the calls behind each turn are saved, so that no finished one is generated again",
    Role.AGENT: "its sessions are saved at a turn boundary and go on from there",
    Role.RESOURCES: "its sessions' state is saved and put back as it was",
}
_HOW: Final = {
    Role.RESOURCES: "declare mode export_restore and give it a codec, or stateless if it keeps nothing of a rollout",
    Role.AGENT: "declare mode export_restore, and pass a boundary after each turn",
}
_DECLARE: Final = "declare a checkpoint_mode that exports in its capabilities"


def by_mode(role: Role, mode: str) -> tuple[Outlook, str, str]:
    """(outlook, why, mend) of a participant with nothing wrong, as its mode has it."""
    if mode in EXPORTING:
        return Outlook.CONTINUES, _SAVED[role], ""
    if mode == STATELESS and role is not Role.AGENT:
        return Outlook.CONTINUES, "it keeps nothing of a rollout between calls, so there is nothing to lose", ""
    told = {
        "": "it declares no mode, which means restart_only",
        STATELESS: "an agent holds the conversation, and this one is stateless, so it exports nothing",
        "drain_only": "it lets its calls end and exports nothing (drain_only)",
        "restart_only": "it exports nothing (restart_only)",
    }.get(mode, f"its mode {mode!r} is none that is known, which counts as restart_only")
    return Outlook.STARTS_OVER, f"{told}: every rollout that touches it starts over", _HOW.get(role, _DECLARE)


# --- small readings


def _lease_left(answers: Answers, status: Mapping[str, Any]) -> float | None:
    expires: Any = status.get("lease_expires_at")
    if type(expires) not in (int, float) or abs(expires) > MAX_TS:
        return None
    return float(expires - (answers.asked_ts if answers.server_ts is None else answers.server_ts))


def _receipt_key(receipt: Mapping[str, Any]) -> str:
    attempt = receipt.get("attempt", 0)
    return f"{receipt.get('rollout_id', '?')}" + (f"-a{attempt}" if attempt else "")


def _single(answers: Answers) -> str | None:
    return next(iter(answers.incarnations)) if len(answers.incarnations) == 1 else None
