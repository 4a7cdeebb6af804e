"""The servers of one deployment, as their coordinator knows them: who takes part, and calls to many of them at once.

Rules (docs/reference/protocol.md sections 2, 5 and 6): a role is declared, never guessed: a server that serves
capabilities without one is refused by name (S1); an auxiliary server is never paused (I73); a clock that is off by more
than a stated bound refuses the start (S30); two servers never share a part (I46). Calls of one stage run at once, every
one of them bounded by its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import httpx
import trio
from attrs import frozen

from statecore.errors import StatecoreError

from ..net.client import ControlClient, ControlError, Reply, Retries
from ..settings import Seams
from .introduction import Role, UnknownRole, introduce
from .outcomes import CoordinatorError
from .recovery import Server
from .units import Sharing, widest

PREPARE_ORDER: Final = (Role.ENVIRONMENT, Role.POLICY, Role.AGENT, Role.RESOURCES)
RESUME_ORDER: Final = (Role.RESOURCES, Role.POLICY, Role.AGENT, Role.ENVIRONMENT)
RETIRE_ORDER: Final = ((Role.ENVIRONMENT,), (Role.AGENT,), (Role.POLICY, Role.RESOURCES))


class DiscoveryFailed(CoordinatorError):
    """The deployment cannot be driven; `problems` names each server that is wrong and why."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "; ".join(self.problems)


@frozen(eq=False)
class Member:
    """One participant. `name` is the launcher's; `kind` and `instance` name its part; `mode` is what it can export.

    `sharing` is among whom it shares mutable state, in its own word; "" where it says none. `features` are what it can
    do beyond the common protocol.
    """

    name: str
    role: Role
    kind: str
    instance: str
    mode: str
    control: ControlClient
    sharing: str = ""
    features: frozenset[str] = frozenset()

    @property
    def incarnation(self) -> str:
        """The process that calls are meant for; "" for a peer that has none."""
        return self.control.incarnation or ""

    @property
    def server(self) -> Server:
        return Server(self.kind, self.instance, self.mode)


class Failure(StatecoreError):
    """Some servers gave no good answer; `errors` by name, in the order of the members."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__(dict(errors))
        self.errors = dict(errors)

    def __str__(self) -> str:
        return "; ".join(self.errors.values())


Check = Callable[[Member, Reply], None]
"""Raises BadReply when a reply does not say what it must."""


class BadReply(StatecoreError):
    """A server answered 200 with something that breaks the protocol: not mended by trying again."""


@frozen
class Deployment:
    """All servers of one start: `urls` of all by name, `members` those that take part, in the order of their names."""

    urls: Mapping[str, str]
    members: tuple[Member, ...]

    def of(self, *roles: Role) -> tuple[Member, ...]:
        """The members with one of these roles."""
        return tuple(member for member in self.members if member.role in roles)

    @property
    def servers(self) -> frozenset[Server]:
        return frozenset(member.server for member in self.members)

    @property
    def sharing(self) -> Sharing:
        """Among whom its servers share mutable state."""
        return widest(member.sharing for member in self.members)

    @property
    def incarnations(self) -> frozenset[tuple[str, str]]:
        """(name, incarnation) of every member."""
        return frozenset((member.name, member.incarnation) for member in self.members)


async def call_all(
    members: Iterable[Member],
    verb: str,
    body: Mapping[str, Any],
    deadline_ts: float,
    *,
    check: Check | None = None,
    more: Callable[[Member], Mapping[str, Any]] | None = None,
    fail_fast: bool = False,
    until_prepared: bool = False,
    retry_until_ts: float | None = None,
) -> dict[str, Reply]:
    """The replies of all members, by name; the calls run at once.

    Raises Failure when any has no good answer: after all have ended, or with `fail_fast` as soon as one has failed, and
    then the others are no longer waited for. BadReply as `check` raises it. `more` are fields for one member alone.
    """
    replies: dict[str, Reply] = {}
    errors: dict[str, str] = {}
    bad: list[BadReply] = []
    members = tuple(members)
    async with trio.open_nursery() as nursery:

        async def call(member: Member) -> None:
            try:
                own = body if more is None else {**body, **more(member)}
                reply = await member.control.call(
                    verb, own, deadline_ts, until_prepared=until_prepared, retry_until_ts=retry_until_ts
                )
                if check is not None:
                    check(member, reply)
                replies[member.name] = reply
                return
            except ControlError as error:
                errors[member.name] = str(error)
            except BadReply as error:
                bad.append(error)
            if fail_fast:
                nursery.cancel_scope.cancel()

        for member in members:
            nursery.start_soon(call, member)
    if bad:
        raise BadReply("; ".join([*map(str, bad), *errors.values()]))
    if errors:
        raise Failure({member.name: errors[member.name] for member in members if member.name in errors})
    return replies


async def resume_all(members: Iterable[Member], checkpoint_id: str, deadline_ts: float) -> tuple[str, ...]:
    """What is called opens before who calls it, going on through failures; returns why some could not be resumed."""
    members = tuple(members)
    failed: list[str] = []
    for role in RESUME_ORDER:
        stage = [member for member in members if member.role is role]
        try:
            await call_all(stage, "resume", {"checkpoint_id": checkpoint_id}, deadline_ts, check=_check_resumed)
        except Failure as failure:
            failed.extend(failure.errors.values())
        except BadReply as bad:
            failed.append(str(bad))
    return tuple(failed)


def _check_resumed(member: Member, reply: Reply) -> None:
    if reply.get("phase") != "idle":
        raise BadReply(f"{member.name}: its resume answered phase {reply.get('phase')!r}"[:300])


async def discover(
    urls: Mapping[str, str],
    *,
    token: str,
    epoch: int,
    client: httpx.AsyncClient,
    seams: Seams,
    retries: Retries,
    timeout_s: float,
    max_clock_skew_s: float,
) -> Deployment:
    """The deployment behind `urls`; DiscoveryFailed with every problem when it cannot be driven."""
    members: dict[str, Member] = {}
    problems: dict[str, str] = {}

    async def ask(name: str, url: str) -> None:
        control = ControlClient(
            client, url, token, clock=seams.clock, entropy=seams.entropy, epoch=epoch, retries=retries, name=name,
            timeout_s=timeout_s, telemetry=seams.telemetry,
        )  # fmt: skip
        try:
            member = await _member(name, control, seams, max_clock_skew_s)
        except (ControlError, DiscoveryFailed) as error:
            problems[name] = str(error)
        else:
            if member is not None:
                members[name] = member

    async with trio.open_nursery() as nursery:
        for name, url in urls.items():
            nursery.start_soon(ask, name, url)
    found = tuple(members[name] for name in sorted(members))
    wrong = [problems[name] for name in sorted(problems)] + _shared_parts(found) + _later_epochs(found, epoch)
    if wrong:
        raise DiscoveryFailed(wrong)
    return Deployment(dict(urls), found)


async def _member(name: str, control: ControlClient, seams: Seams, max_clock_skew_s: float) -> Member | None:
    """The participant of that name, None if it takes no part."""
    try:
        found = await introduce(control, seams.clock)
    except UnknownRole as error:
        raise DiscoveryFailed([f"{name}: {error}"]) from error
    if found is None or found.role is Role.AUXILIARY:
        return None
    _check_clock(name, None if found.clock is None else found.clock.skew_s, max_clock_skew_s)
    return Member(name, found.role, found.kind, found.instance, found.mode, control, found.sharing, found.features)


def _check_clock(name: str, skew_s: float | None, bound_s: float) -> None:
    if skew_s is not None and skew_s > bound_s:
        raise DiscoveryFailed([f"{name}: its clock is off by {skew_s:.1f} s, more than {bound_s:g} s; set the clocks"])


def _shared_parts(members: Iterable[Member]) -> list[str]:
    seen: dict[tuple[str, str], str] = {}
    problems = []
    for member in members:
        other = seen.setdefault((member.kind, member.instance), member.name)
        if other != member.name:
            problems.append(
                f"{other} and {member.name} are both {member.kind} {member.instance!r}: name them apart (I46)"
            )
    return problems


def _later_epochs(members: Iterable[Member], epoch: int) -> list[str]:
    return [
        f"{member.name}: it belongs to epoch {member.control.server_epoch}, this coordinator to {epoch}"
        for member in members
        if member.control.server_epoch is not None and member.control.server_epoch > epoch
    ]
