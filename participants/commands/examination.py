"""Asking running servers what `statecore doctor` wants to know: only GET, so that nothing is changed anywhere. trio.

Each server is asked for its capabilities, as a coordinator does at its start, and then several times at once for its
status: connections of their own, so that two processes behind one address show themselves by two incarnations. All
waits are bounded; a server that does not answer is an answer. docs/reference/protocol.md sections 2 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import httpx
import trio
from attrs import evolve, field, frozen

from ..coordination.introduction import ClockReading, Introduction, Role, UnknownRole, introduce, timed
from ..net.client import ControlClient, ControlError, Reply, Retries
from ..settings import Seams

STATUS_CALLS: Final = 4
"""How often the status is asked for at once; the more, the surer a second process behind the address is seen."""
NO_ROUTE: Final = 404
AT_ONCE: Final = 32
"""How many servers are asked at the same time."""


@frozen(kw_only=True)
class Answers:
    """What one server answered; `asked_ts` is our wall clock afterwards (Unix seconds).

    `introduction` is None for a server without a control plane, and where `error` (no good answer) or `unknown_role`
    says why there is none. `status` is None where it was not given; `incarnations` are those of all replies.
    """

    url: str
    asked_ts: float
    introduction: Introduction | None = None
    status: Reply | None = None
    clock: ClockReading | None = None
    incarnations: frozenset[str] = field(default=frozenset())
    epoch: int | None = None
    server_ts: float | None = None
    error: ControlError | None = None
    unknown_role: str = ""


async def examine(
    urls: Iterable[str], *, token: str, client: httpx.AsyncClient, seams: Seams, timeout_s: float
) -> tuple[Answers, ...]:
    """The answers of all servers, in the order of `urls`; no call takes longer than `timeout_s`, none is repeated."""
    urls = tuple(urls)
    found: dict[str, Answers] = {}
    gate = trio.CapacityLimiter(AT_ONCE)
    once = Retries(tries=1, grace_s=timeout_s)  # the grace is all that a single sending has
    control = partial(
        ControlClient, client, token=token, clock=seams.clock, entropy=seams.entropy, timeout_s=0.0, retries=once
    )

    async def ask(url: str) -> None:
        async with gate:
            found[url] = await _examined(url, partial(control, url), seams)

    async with trio.open_nursery() as nursery:
        for url in urls:
            nursery.start_soon(ask, url)
    return tuple(found[url] for url in urls)


async def _examined(url: str, control: partial[ControlClient], seams: Seams) -> Answers:
    first = control()
    answers = Answers(url=url, asked_ts=seams.clock.time())
    try:
        found = await introduce(first, seams.clock)
    except ControlError as error:
        return _noted(evolve(answers, error=error), first, seams)
    except UnknownRole as unknown:
        return _noted(evolve(answers, unknown_role=str(unknown)), first, seams)
    answers = _noted(evolve(answers, introduction=found), first, seams)
    return answers if found is None else await _with_status(answers, found, control, seams)


async def _with_status(answers: Answers, found: Introduction, control: partial[ControlClient], seams: Seams) -> Answers:
    """The answers with a status, and with what all the replies show; the auxiliary has no status, and should not."""
    answers = evolve(answers, clock=found.clock)
    several: list[Answers] = []

    async def ask() -> None:
        one = control()
        try:
            status, clock = await timed(one.status, one, seams.clock)
            several.append(_noted(evolve(answers, status=status, clock=clock), one, seams))
        except ControlError as error:
            several.append(_noted(evolve(answers, error=error), one, seams))

    async with trio.open_nursery() as nursery:
        for _ in range(1 if found.role is Role.AUXILIARY else STATUS_CALLS):
            nursery.start_soon(ask)
    best = next((each for each in several if each.error is None), several[0])
    if found.role is Role.AUXILIARY and best.error is not None and best.error.status == NO_ROUTE:
        best = evolve(best, error=None)
    readings = [each.clock for each in (answers, *several) if each.clock is not None]
    return evolve(
        best,
        clock=min(readings, key=lambda reading: reading.uncertainty_s, default=None),
        incarnations=frozenset().union(*(each.incarnations for each in several)),
    )


def _noted(answers: Answers, control: ControlClient, seams: Seams) -> Answers:
    """The answers with what the newest reply of `control` shows of the process behind it."""
    seen = control.seen_incarnation
    return evolve(
        answers,
        asked_ts=seams.clock.time(),
        incarnations=answers.incarnations if seen is None else answers.incarnations | {seen},
        epoch=answers.epoch if control.server_epoch is None else control.server_epoch,
        server_ts=answers.server_ts if control.server_ts is None else control.server_ts,
    )
