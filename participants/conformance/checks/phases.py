"""Every verb in every phase is answered as the table says, code by code.

Each call is made on a shadow of the server first: the PARTICIPANT table itself, so that a cell that changes there is
asked for anew here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from attrs import define, frozen

from ...identity import INCARNATION_HEADER
from ...servers.calls import VERBS
from ..check import Group, check
from ..prediction import Shadow
from ..said import NotConforming, Said, shown
from ..subject import AHEAD_S, CHECKPOINT, PAST_S, Subject

WRITTEN: Final = "machines/participant.md"
REPORT: Final = {"ready": bool, "blockers": list, "blocker_count": int, "counts": dict, "restarts": list}
STATUS: Final = {
    "kind": str,
    "instance": str,
    "phase": str,
    "checkpoint_id": str | None,
    "lease_expires_at": int | float | None,
    "retired_rollouts": int,
    "report": dict,
}
NOBODY: Final = {"rollout_id": "nobody", "attempt": 0}
NOWHERE: Final = "nowhere"
"""A directory that no server has, so that a restore from it fails."""
STRANGER: Final = "0" * 32


@frozen
class Way:
    """One way in which a verb is called: with the open id or another, in time or late, for this process or another."""

    name: str
    which: str = "own"
    late: bool = False
    stranger: bool = False


OWN: Final = Way("own id")
LATE: Final = Way("own id, late", late=True)
WAYS: Final = (
    OWN,
    LATE,
    Way("another id", which="other"),
    Way("an id that has ended", which="ended"),
    Way("own id, for another process", stranger=True),
)


@define(eq=False)
class Walk:
    """A server and its shadow side by side, and what calls are made with."""

    server: Subject
    shadow: Shadow
    ids: dict[str, str]
    folder: str = NOWHERE

    @classmethod
    async def begin(cls, server: Subject) -> Walk:
        """Both are idle, and one id has ended, before it was ever seen."""
        made = cls(server, server.shadow(await server.lease_grace_s()), {})
        made.renew("own", "other", "ended")
        await made.say("resume", Way("an id that was never seen", which="ended"))
        return made

    def renew(self, *which: str) -> None:
        self.ids |= {each: self.server.new_id() for each in which}

    async def say(self, verb: str, way: Way = OWN) -> Said:
        """The verb, said to both: the server's answer and status are as the shadow has them. Raises NotConforming."""
        server = self.server
        waits = verb == "prepare" and not self.shadow.quiet
        within_s = -PAST_S if way.late else server.rules.moment_s if waits else AHEAD_S
        body = server.body(self.ids[way.which], within_s, **self._more(verb))
        predicted = self.shadow.asked(
            verb,
            body,
            now=server.clock_now,
            incarnation=STRANGER if way.stranger else server.incarnation,
            epoch=server.epoch,
        )
        said = await server.post(verb, body, headers={INCARNATION_HEADER: STRANGER} if way.stranger else None)
        if predicted.code:
            said.refused(predicted.code)
        else:
            said.ok(**predicted.fields)
            if predicted.replay and said.answer != predicted.fields:
                raise said.differs(f"the answer to the same call before: {shown(predicted.fields)}")
            self.shadow.answered(said.answer)
        await server.stands(
            f"{said.sent} ({way.name})",
            phase=self.shadow.phase,
            checkpoint_id=self.shadow.checkpoint_id,
            lease_until=self.shadow.lease_until,
        )
        return said

    def _more(self, verb: str) -> dict[str, Any]:
        if verb in ("commit", "restore"):
            return {"checkpoint_dir": self.folder, "episode_ids": []}
        if verb == "retire":
            return {"episode_ids": [NOBODY]}
        return {"rollout_ids": [NOBODY["rollout_id"]]} if verb == "forget" else {}

    async def leave(self) -> None:
        """Whatever is open is resumed."""
        for which, checkpoint_id in self.ids.items():
            if checkpoint_id == self.shadow.checkpoint_id:
                await self.say("resume", Way("at the end", which=which))
                break


Reach = Callable[[Walk], Awaitable[object]]


async def every_call(here: Walk, reach: Reach, *, but: tuple[tuple[str, Way], ...] = ()) -> None:
    """Each verb in each way in the phase that `reach` leads to, which is reached again where a call has left it."""
    await reach(here)
    phase = here.shadow.phase
    for verb in VERBS:
        for way in WAYS:
            if (verb, way) in but or (way.stranger and here.server.incarnation is None):
                continue
            await here.say(verb, way)
            if here.shadow.phase != phase or verb == "resume":
                await here.leave()
                here.renew("own", "other")
                await reach(here)
    await here.leave()


@check(Group.PHASES, WRITTEN, "I13", "I14")
async def idle(server: Subject) -> None:
    """An idle server answers each verb as the table says: with an id of its own, an ended one, late, for another
    process; a restore of nothing fails and leaves it open.
    """

    async def reach(_here: Walk) -> None:
        return

    # a first prepare that is late has a lease that may be over at once: it is asked for with the deadlines
    await every_call(await Walk.begin(server), reach, but=(("prepare", LATE),))


@check(Group.PHASES, WRITTEN, "I13", "I14")
async def preparing(server: Subject) -> None:
    """A server that waits for something answers each verb as the table says, and stays closed behind the deadline."""

    async def reach(here: Walk) -> None:
        await here.say("prepare")
        await here.say("renew")

    here = await Walk.begin(server)
    here.shadow.quiet = False
    async with server.blocking():
        await every_call(here, reach)


@check(Group.PHASES, WRITTEN, "I13", "I14", "I17")
async def prepared(server: Subject) -> None:
    """A prepared server answers each verb as the table says; what is written is asked of a committed one."""

    async def reach(here: Walk) -> None:
        await here.say("prepare")

    await every_call(await Walk.begin(server), reach, but=(("commit", OWN),))


@check(Group.PHASES, WRITTEN, "I13", "I14", "I15", "I17")
async def committed(server: Subject) -> None:
    """A server that has written its part answers each verb as the table says."""

    async def reach(here: Walk) -> None:
        here.folder = str(server.folder())
        await here.say("prepare")
        await here.say("commit")

    server.folder()
    await every_call(await Walk.begin(server), reach)


@check(Group.PHASES, WRITTEN, "I13", "I14", "I15", "I17")
async def restored(server: Subject) -> None:
    """A server that was restored answers each verb as the table says, and is closed until a resume."""
    folder = str(server.folder())
    checkpoint_id = server.new_id()
    await server.prepared(checkpoint_id)
    (await server.call("commit", checkpoint_id, checkpoint_dir=folder, episode_ids=[])).ok(phase="committed")
    await server.resumed(checkpoint_id)
    tried = server.new_id()
    said = await server.call("restore", tried, checkpoint_dir=folder, episode_ids=[])
    if said.code == "checkpoint_error":  # it has served
        async with server.another() as other:
            await _restored(other, folder)
    else:
        said.ok(phase="restored", restored=[])
        await server.resumed(tried)
        await _restored(server, folder)


async def _restored(server: Subject, folder: str) -> None:
    here = await Walk.begin(server)
    here.folder = folder
    here.shadow.readable = True

    async def reach(here: Walk) -> None:
        await here.say("restore")

    await every_call(here, reach)


@check(Group.PHASES, "protocol.md sections 6 and 12", "I16", "I17", "I24")
async def closed_until_the_resume(server: Subject) -> None:
    """From prepare to resume no request of a rollout is served: it is held or refused, and served afterwards."""
    episode = server.episode()
    await server.accepted(episode)
    checkpoint_id = server.new_id()
    await server.prepared(checkpoint_id)
    await server.not_served(server.episode())
    if server.target.root is not None:
        more: dict[str, Any] = {"checkpoint_dir": str(server.folder()), "episode_ids": []}
        if server.kind == "model":
            more["episode_ids"] = [{"rollout_id": episode.rollout_id, "attempt": episode.attempt}]
        (await server.call("commit", checkpoint_id, **more)).ok(phase="committed")
        await server.not_served(server.episode())
    await server.resumed(checkpoint_id)
    await server.accepted(server.episode())


@check(Group.PHASES, "routes.md section 2")
async def what_a_status_says(server: Subject) -> None:
    """A status has every field with its type, and is given in every phase; other methods are 405."""
    checkpoint_id = server.new_id()
    for phase in ("idle", "prepared"):
        if phase == "prepared":
            await server.prepared(checkpoint_id)
        said = (await server.status()).ok(phase=phase)
        _has(said, said.body, STATUS)
        _has(said, said.body["report"], REPORT)
    await server.resumed(checkpoint_id)
    for method, path in (("POST", f"{CHECKPOINT}/status"), *(("GET", f"{CHECKPOINT}/{verb}") for verb in VERBS)):
        headers = {"authorization": f"Bearer {server.target.token}"}
        wrong = await server.raw(method, path, headers=headers)
        if wrong.status != 405:
            raise NotConforming(wrong.sent, str(wrong), "405")


def _has(said: Said, value: dict[str, Any], fields: dict[str, Any]) -> None:
    for name, kind in fields.items():
        there = value.get(name)
        if name not in value or not isinstance(there, kind) or (isinstance(there, bool) and kind is not bool):
            raise NotConforming(said.sent, f"{name}: {shown(there)}", f"a field {name} of its type")
