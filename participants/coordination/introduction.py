"""How a server introduces itself to whoever drives its control plane: role, kind, name, mode, clock.

Rules (docs/reference/protocol.md section 2): the role is what capabilities declare; a server that serves capabilities
without a role is refused by name (S1); without that route, a status says it by its kind, and kind `model` is the
policy; neither route means no participant. Two users: the coordinator at its start, and `statecore doctor`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from attrs import frozen

from statecore.errors import StatecoreError
from statecore.seams import Clock

from ..net.client import ControlClient, ControlError, Reply


class Role(StrEnum):
    """What a server is in a checkpoint."""

    ENVIRONMENT = "environment"
    POLICY = "policy"
    AGENT = "agent"
    RESOURCES = "resources"
    AUXILIARY = "auxiliary"


ROLE_OF_KIND: Final = {
    "environment": Role.ENVIRONMENT,
    "model": Role.POLICY,
    "agent": Role.AGENT,
    "resources": Role.RESOURCES,
}
KIND_OF_ROLE: Final = {role: kind for kind, role in ROLE_OF_KIND.items()} | {Role.AUXILIARY: "model"}


class UnknownRole(StatecoreError):
    """A server does not say, or not in known words, what it is; the message goes on after its name (S1)."""


@frozen
class ClockReading:
    """A server's clock beside ours, in seconds: ahead by `offset_s`, give or take `uncertainty_s` (half the call)."""

    offset_s: float
    uncertainty_s: float

    @property
    def skew_s(self) -> float:
        """By how much it is off at least, in either direction."""
        return max(abs(self.offset_s) - self.uncertainty_s, 0.0)


@frozen(kw_only=True)
class Introduction:
    """What a server says of itself. `mode` and `sharing` are "" where it says none; `clock` is None without a time.

    `said` is the reply that it was read from: the capabilities, or the status of a server without that route.
    """

    role: Role
    kind: str
    instance: str
    mode: str
    clock: ClockReading | None
    has_capabilities: bool
    said: Reply
    sharing: str = ""
    features: frozenset[str] = frozenset()


def declared_role(capabilities: Reply) -> Role:
    """The role that capabilities declare; UnknownRole where they do not: it is never guessed from a kind (S1)."""
    role = capabilities.get("instance_role")
    if not isinstance(role, str) or role not in set(Role):
        raise UnknownRole(f"its capabilities have no instance_role (got {role!r}); declare one (S1)")
    return Role(role)


def role_of_kind(status: Reply) -> Role:
    """The role of a server that has checkpoint routes and no capabilities: its kind says it. Raises UnknownRole."""
    role = ROLE_OF_KIND.get(str(status.get("kind")))
    if role is None:
        raise UnknownRole(f"its status has an unknown kind {status.get('kind')!r}")
    return role


async def introduce(control: ControlClient, clock: Clock) -> Introduction | None:
    """The introduction of the server behind `control`, None if it has no control plane and so takes no part.

    Raises ControlError, and UnknownRole.
    """
    try:
        said, reading = await timed(control.capabilities, control, clock)
    except ControlError as error:
        if error.status != 404:
            raise
        return await _by_status(control, clock)
    role = declared_role(said)
    return Introduction(
        role=role,
        kind=str(said.get("kind", KIND_OF_ROLE[role])),
        instance=str(said.get("instance", control.name)),
        mode=str(said.get("checkpoint_mode", "")),
        clock=reading,
        has_capabilities=True,
        said=said,
        sharing=str(said.get("sharing", "")),
        features=_features(said.get("features")),
    )


def _features(said: object) -> frozenset[str]:
    """The names in a list of features; what is no name is none."""
    return frozenset(each for each in said if isinstance(each, str)) if isinstance(said, list) else frozenset()


async def _by_status(control: ControlClient, clock: Clock) -> Introduction | None:
    try:
        said, reading = await timed(control.status, control, clock)
    except ControlError as error:
        if error.status == 404:
            return None
        raise
    return Introduction(
        role=role_of_kind(said),
        kind=str(said["kind"]),
        instance=str(said.get("instance", control.name)),
        mode=str(said.get("mode", "")),
        clock=reading,
        has_capabilities=False,
        said=said,
    )


async def timed(
    ask: Callable[[], Awaitable[Reply]], control: ControlClient, clock: Clock
) -> tuple[Reply, ClockReading | None]:
    """The reply to a call of `control`, and where the server's clock stood (None where it does not say)."""
    sent = clock.time()
    reply = await ask()
    came = clock.time()
    if control.server_ts is None:
        return reply, None
    return reply, ClockReading(control.server_ts - (sent + came) / 2, max(came - sent, 0.0) / 2)
