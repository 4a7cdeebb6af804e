"""What the answers of several running servers mean together: would their rollouts continue after a crash? Pure.

Rules (docs/reference/protocol.md sections 2, 5, 6 and 11): a coordinator drives all of its servers or none, so one that
cannot take part stops every checkpoint; two servers never share a part (I46); servers of one deployment are of one
epoch, and one checkpoint is open at a time (I13); a rollout is continued only if each part of it can be, so one server
that exports nothing makes every rollout that touches it start over. What is missing (a policy, somebody who answers
`/run`) is said only where several servers were asked: one alone is looked at for itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeVar

from attrs import frozen

from ..coordination.introduction import Role
from .examination import Answers
from .findings import Finding
from .server_view import Outlook, ServerView, view

K = TypeVar("K", bound=Hashable)

NAMED: Final = 5
"""How many names a sentence holds."""


@frozen(kw_only=True)
class Diagnosis:
    """All servers together. `story` is the outlook in one line; `notes` are worth knowing and not wrong."""

    outlook: Outlook
    story: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    servers: tuple[ServerView, ...]

    @property
    def healthy(self) -> bool:
        """Every participant can take part, and every rollout would continue. True for judges alone, too."""
        return self.outlook is Outlook.CONTINUES or (
            self.outlook is Outlook.NO_PARTICIPANT and all(each.role is Role.AUXILIARY for each in self.servers)
        )


def diagnose(answers: Iterable[Answers], max_clock_skew_s: float) -> Diagnosis:
    """The diagnosis of servers that belong to one deployment."""
    servers = tuple(view(each, max_clock_skew_s) for each in answers)
    members = tuple(each for each in servers if each.takes_part)
    findings = (
        *_shared_parts(members),
        *_different_epochs(members),
        *_different_checkpoints(members),
        *_missing_roles(servers),
    )
    outlook, story = _together(servers, members, findings)
    return Diagnosis(outlook=outlook, story=story, findings=findings, notes=tuple(_notes(members)), servers=servers)


def _together(
    servers: Sequence[ServerView], members: Sequence[ServerView], findings: Sequence[Finding]
) -> tuple[Outlook, str]:
    cannot = [each.name for each in servers if each.outlook is Outlook.CANNOT_TAKE_PART]
    if cannot:
        return Outlook.CANNOT_TAKE_PART, f"no checkpoint can be taken: {names(cannot)} cannot take part"
    if findings:
        return Outlook.CANNOT_TAKE_PART, "no checkpoint that can be relied on: these servers do not fit together"
    if not members:
        return Outlook.NO_PARTICIPANT, "nothing here takes part in checkpoints"
    over = [each.name for each in members if each.outlook is Outlook.STARTS_OVER]
    if over:
        return Outlook.STARTS_OVER, f"rollouts that touch {names(over)} would start over after a crash"
    restarts = sorted({key for each in members for key in each.restarts})
    if restarts:
        return Outlook.STARTS_OVER, f"{names(restarts)} would start over after a crash; other rollouts would continue"
    return Outlook.CONTINUES, "rollouts would continue after a crash"


def names(each: Sequence[str]) -> str:
    """The first names of a list, and how many more there are."""
    shown = ", ".join(each[:NAMED])
    return shown if len(each) <= NAMED else f"{shown} and {len(each) - NAMED} more"


# --- what does not fit together


def _shared_parts(members: Iterable[ServerView]) -> Iterable[Finding]:
    for (kind, instance), same in _grouped(members, lambda each: (each.kind, each.instance)).items():
        if len(same) < 2:
            continue
        at = names([each.url for each in same])
        processes = {each.incarnation for each in same}
        if len(processes) == 1 and None not in processes:
            yield Finding(f"{at} are one and the same process, {kind} {instance!r}", "give each server once")
        else:
            yield Finding(f"{at} are both {kind} {instance!r} and would share a part (I46)", "name them apart")


def _different_epochs(members: Iterable[ServerView]) -> Iterable[Finding]:
    epochs = _grouped((each for each in members if each.epoch is not None), lambda each: each.epoch or 0)
    if len(epochs) > 1:
        told = "; ".join(f"epoch {epoch}: {names([each.name for each in epochs[epoch]])}" for epoch in sorted(epochs))
        mend = "servers of one deployment are started together: stop them all, and let a coordinator start them anew"
        yield Finding(f"they belong to different lives ({told})", mend)


def _different_checkpoints(members: Iterable[ServerView]) -> Iterable[Finding]:
    by_id = _grouped((each for each in members if each.checkpoint_id), lambda each: each.checkpoint_id or "")
    if len(by_id) > 1:
        told = "; ".join(f"{open_id}: {names([each.name for each in by_id[open_id]])}" for open_id in sorted(by_id))
        mend = "two coordinators drive them, or one has died: its checkpoint ends with its servers' leases"
        yield Finding(f"different checkpoints are open ({told})", mend)


def _missing_roles(servers: Sequence[ServerView]) -> Iterable[Finding]:
    """Only where several were asked, and all of them said what they are."""
    if len(servers) < 2 or any(each.role is None and each.outlook is Outlook.CANNOT_TAKE_PART for each in servers):
        return
    roles = {each.role for each in servers}
    if roles <= {Role.AUXILIARY, None}:
        return
    if Role.POLICY not in roles:
        judges = [each.name for each in servers if each.role is Role.AUXILIARY]
        but = f" ({names(judges)} is auxiliary)" if judges else ""
        mend = "give its address too; its server must declare the role policy, with checkpointing on"
        yield Finding(f"no policy model is among them{but}: nobody knows which calls are behind which turn", mend)
    if not roles & {Role.ENVIRONMENT, Role.AGENT}:
        yield Finding("neither an environment nor an agent is among them: nobody answers /run", "give its address too")


def _notes(members: Sequence[ServerView]) -> Iterable[str]:
    born = [each.name for each in members if each.state == "born"]
    if born:
        yield f"{names(born)}: closed since the start; a coordinator opens them by a restore or a resume"
    inside = [each for each in members if each.checkpoint_id]
    if inside and len(inside) < len(members) and len({each.checkpoint_id for each in inside}) == 1:
        of = names([each.name for each in inside])
        yield f"checkpoint {inside[0].checkpoint_id} is open on {of} only: it is just beginning or ending, or was left"


def _grouped(views: Iterable[ServerView], key: Callable[[ServerView], K]) -> dict[K, list[ServerView]]:
    found: dict[K, list[ServerView]] = defaultdict(list)
    for each in views:
        found[key(each)].append(each)
    return found
