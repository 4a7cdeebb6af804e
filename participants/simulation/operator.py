"""Who runs a simulated job: starts the next coordinator when one is gone, and deals the blows of its adversity.

Between two blows there is weather. When all blows are dealt, the weather turns calm, disks no longer fail, and the job
has to come to its end.
"""

from __future__ import annotations

from collections import deque
from pathlib import PurePath
from typing import Final

import trio
from attrs import define, field

from statecore.simulate import Dice, Process
from statecore.wire import parse

from ..coordination.trainer import Result
from ..demo.moments import Moment
from ..files.store import SET_ASIDE
from ..records.manifests import CheckpointId
from ..servers.asgi import ACKNOWLEDGE
from ..serving.testing import Call
from .fleet import DEADLINE_S, GRACE_S, JUDGE, Fleet, Member, Site
from .life import End, Life
from .network import EVERYBODY
from .plan import CRASHES, MAX_SKEW_S, Adversity, Blow, Strike, Supervision, Trigger

LIVES: Final = 40
CALM_AT_S: Final = 400.0
"""Blows that have found no occasion by then are not dealt any more."""
LAST_S: Final = (0.0, 20.0)
ENDS_S: Final = 2000.0
ORPHANED_S: Final = DEADLINE_S + GRACE_S + 4 * MAX_SKEW_S + 2.0
ZOMBIES_S: Final = 400.0
FAULTS: Final = ("EIO", "ENOSPC")
PREPARE: Final = "/checkpoint/prepare"
AFTER_PUBLICATION: Final = (ACKNOWLEDGE, "/checkpoint/resume", "/checkpoint/retire", "/checkpoint/forget")


@define(eq=False)
class Operator:
    """`run` is the whole job. `lives` are all coordinators there were; `current` is the one that is meant to run."""

    site: Site
    adversity: Adversity
    lives: list[Life] = field(factory=list)
    calm: bool = False
    _dice: Dice = field(init=False)
    _strikes: deque[Strike] = field(init=False)
    _since: dict[Trigger, int] = field(factory=lambda: dict.fromkeys(Trigger, 0))
    _kept: dict[str, Result] = field(factory=dict)
    _nursery: trio.Nursery = field(init=False)
    _dealt: trio.Event = field(factory=trio.Event)
    _calm_now: trio.Event = field(factory=trio.Event)
    _orphans: trio.Nursery = field(init=False)

    def __attrs_post_init__(self) -> None:
        simulation = self.site.simulation
        self._dice = simulation.dice.of("operator")
        self._strikes = deque(self.adversity.strikes)
        simulation.disk.trouble = self._on_disk
        self.site.network.on_send = self._on_message

    @property
    def current(self) -> Life | None:
        """The coordinator that is meant to run, if one does."""
        return self.lives[-1] if self.lives and not self.lives[-1].gone.is_set() else None

    @property
    def fleet(self) -> Fleet | None:
        """Its servers."""
        return None if self.current is None else self.current.launcher.fleet

    async def run(self) -> None:
        """The job has ended, and nothing of it runs any more."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._calm_in_the_end)
            nursery.start_soon(self._ends_in_calm)
            async with trio.open_nursery() as self._orphans:  # waited for: nothing is over while somebody is watched
                await self._live()
                await self._zombies_end()
            nursery.cancel_scope.cancel()
        self.site.network.end()
        for each in self.site.fleets:
            each.kill()

    async def _live(self) -> None:
        """One coordinator after the other, until one finishes the job, or shows that none will."""
        simulation = self.site.simulation
        for number in range(1, LIVES + 1):
            life = Life(self.site, self.adversity, number, self._kept, self._on_moment, self._may_end)
            self.lives.append(life)
            self._nursery.start_soon(life.run)
            await life.gone.wait()
            if life.end in (End.FINISHED, End.STUCK):
                return
            if life.end is End.FAILED and self.calm:
                simulation.count("failed in calm")
            await trio.sleep(simulation.due_in(self._dice.between(0.1, 5.0)))
            if life.launcher.fleet is not None and self._dice.chance(0.5):
                self._nursery.start_soon(self._clear_away, life.launcher.fleet)
        simulation.violated("I20", f"the job has not come to its end in {LIVES} lives")

    async def _clear_away(self, fleet: Fleet) -> None:
        """Servers of a life that is over are ended, some time later."""
        await trio.sleep(self._dice.between(0.0, 120.0))
        fleet.kill()

    async def _zombies_end(self) -> None:
        """Whoever was overtaken finds out, and stops."""
        with trio.move_on_after(ZOMBIES_S):
            for each in self.lives:
                await each.ended.wait()
        for each in self.lives:
            if each.end is End.NOT_THERE:
                self.site.simulation.violated("I98", f"{each.process.name} was overtaken and goes on")
                each.process.kill()

    # --- when faults end

    async def _calm_in_the_end(self) -> None:
        with trio.move_on_after(CALM_AT_S):
            await self._dealt.wait()
            await trio.sleep(self._dice.between(*LAST_S))
        self._be_calm()

    async def _ends_in_calm(self) -> None:
        """Without faults the job ends; one that does not is stopped."""
        await self._calm_now.wait()
        await trio.sleep(self.site.simulation.due_in(ENDS_S))
        self.site.simulation.violated("I20", f"{ENDS_S:g} s without faults, and the job has not come to its end")
        self._nursery.cancel_scope.cancel()

    def _be_calm(self) -> None:
        if not self.calm and self.site.simulation.counts["crashes"]:
            self.calm = True
            self._calm_now.set()
            self._strikes.clear()
            self.site.network.heal()

    def _may_end(self) -> None:
        """A job that came through without any crash has one now."""
        if not self.site.simulation.counts["crashes"]:
            self._deal(Strike(blow=Blow.ALL, trigger=Trigger.MESSAGES, number=0), None)
        self._be_calm()

    # --- when blows fall

    def _on_message(self, call: Call) -> None:
        if call.path.endswith(ACKNOWLEDGE):
            self._check_saved(call)
        if call.path.endswith(AFTER_PUBLICATION):
            self._check_not_overtaken(call)
        if call.path.endswith(PREPARE) and call.server.startswith(f"{JUDGE}-"):
            self.site.simulation.violated("I73", f"{call.source} closes {call.server}, which is no participant")
        self._happened(Trigger.MESSAGES, None)

    def _check_not_overtaken(self, call: Call) -> None:
        """Whoever was overtaken before a publication neither acknowledges nor resumes after it (I98)."""
        for life in self.lives:
            if life.process.name == call.source and life.published in self.site.truth.too_late:
                self.site.simulation.violated("I98", f"{call.source} was overtaken, and sends {call.path}")

    def _check_saved(self, call: Call) -> None:
        """A result is acknowledged only when a durable copy of it exists outside of the server (I67)."""
        for receipt in parse(call.request.content)["receipts"]:
            rollout = receipt["rollout_id"]
            saved = rollout in self.site.truth.saved or rollout in self._kept
            told = f"{call.source} releases the result of {rollout}, which nobody has saved"
            self.site.simulation.check(saved, "I67", lambda told=told: told)  # type: ignore[misc]

    def _check_not_needed(self, process: Process, name: str) -> None:
        """What a life sets aside, no other one stands on (I77)."""
        checkpoint_id = CheckpointId.parse(name)
        if checkpoint_id is not None and process.alive:
            self.site.truth.set_aside(process.name, checkpoint_id, self.site.reader())

    def _on_moment(self, moment: Moment) -> None:
        strike = self._strikes[0] if self._strikes else None
        if strike is not None and strike.trigger is Trigger.MOMENT and strike.moment is moment:
            self._happened(Trigger.MOMENT, None)

    def _on_disk(self, process: Process, operation: str, path: str) -> str | None:
        self._happened(Trigger.DISK, process)
        if operation == "rename" and (given_up := SET_ASIDE.match(PurePath(path).name)):
            self._check_not_needed(process, given_up[1])
        if self.calm or not self._dice.chance(self.adversity.disk_fails):
            return None
        fault = "EIO" if "fsync" in operation else self._dice.pick(FAULTS)
        self.site.simulation.count("disk faults")
        self.site.simulation.history.tell(process.name, operation, path=path, fault=fault)
        return fault

    def _happened(self, trigger: Trigger, process: Process | None) -> None:
        self._since[trigger] += 1
        if not self._strikes:
            return
        strike = self._strikes[0]
        if strike.trigger is trigger and self._since[trigger] >= strike.number and self._deal(strike, process):
            self._strikes.popleft()
            if not self._strikes:
                self._dealt.set()
            self._since = dict.fromkeys(Trigger, 0)

    def _deal(self, strike: Strike, process: Process | None) -> bool:
        """It was dealt; false if there is nobody whom it could meet. `process` is whose operation it falls into."""
        life = self.current
        if life is None or not life.process.alive:
            return False
        simulation, blow = self.site.simulation, strike.blow
        members = self._members()
        if blow in (Blow.SERVER, Blow.CUT, Blow.ALONE) and not members:
            return False
        simulation.history.tell("operator", "blow", blow=blow.value, trigger=strike.trigger.value)
        simulation.count(f"blows: {blow.value}")
        if blow in CRASHES:
            simulation.count("crashes")
        if blow is Blow.ALL:
            self._power_cut()
        elif blow is Blow.COORDINATOR:
            life.process.kill()
            self._watch_orphans(life)
        elif blow is Blow.SERVER:
            struck = next((each for each in members if each.process is process), None)
            (struck or self._dice.pick(members)).process.kill()
        elif blow is Blow.ZOMBIE:
            self.site.network.cut(life.process.name, EVERYBODY, strike.seconds)
            self._nursery.start_soon(self._presume_dead, life, self._dice.between(0.0, strike.seconds))
        elif blow is Blow.CUT:
            names = [life.process.name, *(each.address for each in members)]
            one = self._dice.pick(names)
            self.site.network.cut(one, self._dice.pick([each for each in names if each != one]), strike.seconds)
        else:
            self.site.network.cut(self._dice.pick(members).address, EVERYBODY, strike.seconds)
        return True

    def _members(self) -> list[Member]:
        """Whom a blow may meet. Nobody asks a judge whether it lives: only who is told of ends sees its end."""
        told = self.site.supervision is not Supervision.SILENT
        return [] if self.fleet is None else [each for each in self.fleet.alive if told or each.name != JUDGE]

    def _power_cut(self) -> None:
        for fleet in self.site.fleets:
            fleet.kill()
        for life in self.lives:
            life.process.kill()
        self.site.simulation.lose_power()

    async def _presume_dead(self, life: Life, seconds: float) -> None:
        await trio.sleep(seconds)
        if not life.gone.is_set():
            self.site.simulation.history.tell("operator", "takes for dead", who_is=life.process.name)
            life.gone.set()

    def _watch_orphans(self, life: Life) -> None:
        if life.launcher.fleet is not None:
            self._orphans.start_soon(self._orphans_open, life.launcher.fleet)

    async def _orphans_open(self, fleet: Fleet) -> None:
        """Without their coordinator, servers accept again when deadline and grace are over (I21)."""
        await trio.sleep(ORPHANED_S)
        for each in fleet.alive:
            if each.closed:
                self.site.simulation.violated("I21", f"{each.process.name} is still {each.closed}, without coordinator")
