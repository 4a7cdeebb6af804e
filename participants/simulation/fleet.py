"""The servers of one start, as processes of a simulation; and the launcher that a coordinator has.

Servers of an older start live on beside a newer one if nobody ends them. In some jobs each start has addresses of its
own, in others it has those of an older start all of whose servers are gone: what was sent to them, and comes late,
reaches their successors. If a launcher's coordinator dies in the middle of a start, what it has started stays, as
processes do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define, field, frozen

from statecore.journal import Journal
from statecore.simulate import Dice, Process, ProcessEnded, Simulation

from ..demo.agent_server import agent_app
from ..demo.counting import held_by
from ..demo.environment_server import environment_app
from ..demo.lines import ServerJournal
from ..demo.model_servers import judge_app, policy_app
from ..demo.plan import Plan
from ..demo.servers import Place
from ..files.store import Store
from ..machines.control import Phase
from ..net.http import ASGIApp
from ..servers.server import Server
from ..serving.lifespan import StartupFailed
from ..settings import Seams, Settings
from ..telemetry import NoTelemetry
from .game import game_app
from .network import SimulatedNetwork
from .plan import MAX_DRIFT, MAX_SKEW_S, MISTAKES, Mistake, Supervision
from .truth import Begun, Truth

if TYPE_CHECKING:
    from ..demo.trainer import DemoTrainer

TOKEN: Final = "token-of-this-job"
ROOT: Final = Path("/job")
JUDGE: Final = "judge"
HOUR_S: Final = 3600.0
GRACE_S: Final = 3.0
DEADLINE_S: Final = 12.0
"""Of every checkpoint and every restore."""
STARTS_S: Final = (0.05, 1.5)
BROUGHT_BACK_S: Final = (0.2, 20.0)

Maker = Callable[[Place], ASGIApp]
SERVERS: Final[Mapping[str, Maker]] = {
    "policy": policy_app,
    "judge": judge_app,
    "agent": agent_app,
    "game": game_app,
    "environment": environment_app,
}


@frozen(kw_only=True)
class SimulatedPlace(Place):
    """Where a server of a simulation is made: its journal is the truth."""

    truth: Truth
    process: Process

    def journal(self, server: str) -> ServerJournal:
        return self.truth.journal(self.process, server, self.settings.epoch or 0)


@define(eq=False)
class Site:
    """What all starts of a job share. `makers` may be changed to simulate other servers.

    `brought_back` are the processes that somebody else started, with the settings of one that had died.
    """

    simulation: Simulation
    network: SimulatedNetwork
    truth: Truth
    plan: Plan
    supervision: Supervision
    nursery: trio.Nursery
    makers: dict[str, Maker] = field(factory=lambda: dict(SERVERS))
    fleets: list[Fleet] = field(factory=list)
    brought_back: set[str] = field(factory=set)
    dice: Dice = field(init=False)
    addresses_again: bool = field(init=False)
    mistake: Mistake | None = field(init=False)
    mistaken: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.dice = self.simulation.dice.of("site")
        mistakes = self.simulation.dice.of("what is wrong at first")
        self.mistake = mistakes.pick(MISTAKES)
        self.mistaken = mistakes.pick([name for name in self.makers if name != JUDGE])
        self.addresses_again = self.simulation.dice.of("addresses").chance(0.5)

    def place(self) -> int:
        """Which addresses the next start has, counted from 1."""
        if not self.addresses_again:
            return len(self.fleets) + 1
        taken = {each.place for each in self.fleets if not each.over or each.alive}
        return next(number for number in count(1) if number not in taken)

    def mistakes(self, name: str, number: int) -> Mistake | None:
        """What is wrong with that server of the `number`th start."""
        return self.mistake if number == 1 and name == self.mistaken else None

    def process(self, name: str, *, off_s: float = 0.0) -> Process:
        """A process on a machine whose clock is a little off, or also by `off_s`."""
        dice = self.simulation.dice.of(f"clock of {name}")
        offset_s, drift = off_s + dice.between(-MAX_SKEW_S, MAX_SKEW_S), dice.between(-MAX_DRIFT, MAX_DRIFT)
        self.simulation.history.tell(name, "begins", offset_s=round(offset_s, 6), drift=round(drift, 9))
        return self.simulation.process(name, offset_s=offset_s, drift=drift)

    def seams(self, process: Process, heard: Callable[[bytes], None] | None = None) -> Seams:
        """Through which this process reaches the world. Its journal is in the history; `heard` is given each line."""
        write = self.simulation.history.journal(process.name)

        def written(line: bytes) -> None:
            if process.alive:
                write(line)
                if heard is not None:
                    heard(line)

        return Seams(
            clock=process.clock,
            disk=self.simulation.disk.view(process),
            entropy=process.entropy,
            telemetry=NoTelemetry(),
            journal=Journal(written, process.clock),
        )

    def reader(self) -> Store:
        """The store as somebody sees it whom no fault reaches."""
        dice = self.simulation.dice.of("reader")
        process = self.simulation.process("reader")
        return Store(ROOT, self.simulation.disk.now, dice.entropy, process.clock)


@define(eq=False)
class Member:
    """One server of a fleet: its process and its application, the newest if it was brought back."""

    name: str
    address: str
    process: Process
    app: ASGIApp

    @property
    def server(self) -> Server | None:
        found: Any = getattr(self.app, "server", None)
        return found if isinstance(found, Server) else None

    @property
    def closed(self) -> str:
        """The phase in which it does not accept; "" if it accepts, or was never opened by anybody."""
        participant = None if self.server is None else self.server.participant
        if participant is None or participant.born_closed or participant.phase is Phase.IDLE:
            return ""
        return participant.phase.value


@define(eq=False)
class Fleet:
    """The servers of one start, the `number`th of the job, at addresses number `place`."""

    site: Site
    number: int
    place: int
    epoch: int
    urls: Mapping[str, str]
    members: dict[str, Member] = field(factory=dict)
    exited: dict[str, int] = field(factory=dict)
    over: bool = False

    def address(self, name: str) -> str:
        return f"{name}-{self.place}"

    async def start(self, name: str, suffix: str = "") -> None:
        """The server is up. Raises StartupFailed."""
        site, address = self.site, self.address(name)
        mistake = site.mistakes(name, self.number)
        off_s = HOUR_S if mistake is Mistake.CLOCK else 0.0
        process = site.process(f"{name}-{self.number}{suffix}", off_s=off_s)
        settings = Settings(
            enabled=True,
            control_auth_token=None if mistake is Mistake.NO_TOKEN else TOKEN,
            lease_grace_seconds=GRACE_S,
            root=ROOT,
            epoch=self.epoch,
            epoch_required=True,
            servers=dict(self.urls),
        )
        place = SimulatedPlace(
            plan=site.plan,
            settings=settings,
            seams=site.seams(process),
            journals=ROOT,
            transport=site.network.transport(process, address + suffix),
            truth=site.truth,
            process=process,
        )
        member = Member(name, address, process, site.makers[name](place))
        process.at_end.append(lambda: self._ended(member))
        self.members[name] = member
        await site.network.inner.start(address, member.app)

    def _ended(self, member: Member) -> None:
        self.site.simulation.history.tell(member.process.name, "dies")
        if member.address in self.site.network.inner.up:
            self.site.network.inner.kill(member.address)
        if self.site.addresses_again:
            self.site.network.left_over(member.address)
        if self.members.get(member.name) is member and not self.over:
            self.exited[member.name] = -9
            if self.site.supervision is Supervision.BROUGHT_BACK:
                self.site.nursery.start_soon(self._bring_back, member)

    async def _bring_back(self, member: Member) -> None:
        """Somebody starts it again at its old address, with its old settings, and it knows nothing."""
        await trio.sleep(self.site.dice.between(*BROUGHT_BACK_S))
        if self.over or self.members[member.name] is not member:
            return
        self.site.simulation.count("brought back")
        suffix = f".{self.site.simulation.counts['brought back']}"
        self.site.brought_back.add(f"{member.name}-{self.number}{suffix}")
        try:
            await self.start(member.name, suffix)
        except (StartupFailed, ProcessEnded):  # struck again meanwhile: then it is not there
            self.site.simulation.history.tell(member.address, "is not brought back")

    @property
    def alive(self) -> list[Member]:
        return [each for each in self.members.values() if each.process.alive]

    def kill(self) -> None:
        """Nothing of it runs, and nobody brings anything of it back."""
        self.over = True
        for each in self.alive:
            each.process.kill()

    async def stop(self) -> None:
        """As SIGTERM to all."""
        self.over = True
        async with trio.open_nursery() as nursery:
            for each in self.alive:
                nursery.start_soon(self._stop, each)

    async def _stop(self, member: Member) -> None:
        if member.address in self.site.network.inner.up:
            await self.site.network.inner.stop(member.address)
        if member.process.alive:
            member.process.kill()


@define(eq=False)
class SilentLauncher:
    """A launcher that starts and stops, and tells nobody of ends. `owner` is the coordinator's process."""

    site: Site
    owner: Process
    trainer: DemoTrainer
    fleet: Fleet | None = None

    async def start(self, epoch: int) -> Mapping[str, str]:
        site = self.site
        await self._note(epoch)
        number, place = len(site.fleets) + 1, site.place()
        urls = {name: site.network.inner.url(f"{name}-{place}") for name in site.makers}
        self.fleet = fleet = Fleet(site, number, place, epoch, urls)
        site.fleets.append(fleet)
        try:
            for name in site.makers:
                await trio.sleep(site.simulation.due_in(site.dice.between(*STARTS_S) / len(site.makers)))
                await fleet.start(name)
        except BaseException:
            if self.owner.alive:
                fleet.kill()
            raise
        return urls

    async def _note(self, epoch: int) -> None:
        store = self.site.reader()
        base = store.claims()[epoch].base
        assert base is not None, "the base is recorded before anything is started"
        held = held_by(None if base.start is None else store.read(base.start))
        self.site.truth.begun(
            Begun(
                epoch=epoch,
                life=self.owner.name,
                start=None if base.start is None else str(base.start),
                turns=dict(held.turns),
                consumed=frozenset(await self.trainer.consumed()),
                calm=self.site.network.calm,
            )
        )

    async def stop(self) -> None:
        if self.fleet is not None:
            await self.fleet.stop()


class TellingLauncher(SilentLauncher):
    """A launcher that also knows which of its servers have ended."""

    @property
    def exited(self) -> Mapping[str, int]:
        return {} if self.fleet is None else dict(self.fleet.exited)
