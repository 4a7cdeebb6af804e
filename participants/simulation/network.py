"""The network of a simulation: every message takes its time, and some are lost, late, doubled or cut off.

It is the in-memory network of the tests with dice: each sending has a delay of its own, so that no two messages arrive
at one moment and their order is the seed's. Pairs of processes, or one process and all others, can be cut off. What was
sent to a process that is gone may come to its successor.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

import httpx
import trio
from attrs import frozen

from statecore.simulate import Dice, Process, Simulation

from ..identity import MODEL_CALL_HEADER, RUN_PREFIX
from ..serving.exchange import Exchange
from ..serving.testing import Call, Fault, InMemoryNetwork

USUAL_S: Final = (0.0005, 0.02)
SLOW_S: Final = (0.3, 9.0)
BREAKS_S: Final = (0.1, 5.0)
AGAIN_S: Final = (0.001, 6.0)
LATE_S: Final = (0.1, 7.0)
LAST: Final = 8
EVERYBODY: Final = "*"


@frozen(kw_only=True)
class Weather:
    """How often something happens to a message, as a share of all messages."""

    lost: float = 0.0
    unanswered: float = 0.0
    slow: float = 0.0
    doubled: float = 0.0
    refused: float = 0.0

    @classmethod
    def drawn(cls, dice: Dice) -> Weather:
        """Calm days are as common as rough ones."""
        rough = dice.pick((0.0, 0.003, 0.01, 0.03))
        return cls(**{name: rough * dice.pick((0.0, 0.5, 1.0, 2.0)) for name in cls.__annotations__})


class SimulatedNetwork:
    """`inner` is where servers are started and killed. `disturbed` are the executions (by key) of whose calls to other
    servers one got no answer, `heard` the model calls whose reply has come to somebody.
    """

    def __init__(self, simulation: Simulation, weather: Weather) -> None:
        self.inner = InMemoryNetwork(self._fate)
        self.inner.watch = self._saw
        self.inner.sent = self._remember
        self.weather = weather
        self.calm = False
        self.disturbed: set[str] = set()
        self.heard: set[str] = set()
        self.on_send: Callable[[Call], None] = lambda call: None
        self._simulation = simulation
        self._dice = simulation.dice.of("network")
        self._cuts: dict[tuple[str, str], float] = {}
        self._last: defaultdict[str, deque[tuple[Call, Exchange]]] = defaultdict(lambda: deque(maxlen=LAST))
        self._late = simulation.dice.of("late messages")
        self._over = False

    def transport(self, process: Process, address: str = "") -> httpx.AsyncBaseTransport:
        """What this process sends with, from that address or its name; nothing leaves it any more when it has ended."""
        return _OwnTransport(process, self.inner.transport(address or process.name), self.heard)

    def cut(self, one: str, other: str, seconds: float) -> None:
        """Nothing that is sent between them arrives for so long; `EVERYBODY` is all but the first."""
        self._simulation.history.tell("network", "cut", between=[one, other], seconds=round(seconds, 3))
        self._simulation.count("cuts")
        self._cuts[one, other] = trio.current_time() + seconds
        self.inner.break_off(self._is_cut)

    def heal(self) -> None:
        """From now on every message arrives, once and soon; some to who is gone come late to its successor."""
        self.calm = True
        self._cuts.clear()
        self._simulation.history.tell("network", "calm")

    def end(self) -> None:
        """The job is over: nothing comes any more."""
        self._over = True

    def left_over(self, address: str) -> None:
        """The server there is gone. Some of what was sent to it last still comes, and whoever is there then has it."""
        for call, exchange in self._last.pop(address, ()):
            if not self._over and self._late.chance(0.75):
                self._simulation.count("messages left over")
                self.inner.send_again(call, exchange, self._simulation.due_in(self._late.between(*LATE_S)))

    def _remember(self, call: Call, exchange: Exchange) -> None:
        if call.request.method == "POST":
            self._last[call.server].append((call, exchange))

    def _is_cut(self, source: str, server: str) -> bool:
        now = trio.current_time()
        self._cuts = {pair: until for pair, until in self._cuts.items() if until > now}
        return any(
            pair in ((source, server), (server, source)) or (pair[1] == EVERYBODY and pair[0] in (source, server))
            for pair in self._cuts
        )

    def _fate(self, call: Call) -> Fault:
        self.on_send(call)
        self._simulation.count("messages")
        fault, what = self._drawn(call)
        more = {"fault": what} if what else {}
        if what:
            self._simulation.count(f"messages {what}")
        self._simulation.history.tell(
            call.source, "sends", to=call.server, call=call.number, path=f"{call.request.method} {call.path}", **more
        )
        return fault

    def _drawn(self, call: Call) -> tuple[Fault, str]:
        dice, weather, due = self._dice, self.weather, self._simulation.due_in
        there, back = due(dice.between(*USUAL_S)), due(dice.between(*USUAL_S))
        if not self.calm:
            if self._is_cut(call.source, call.server):
                if dice.chance(0.5):
                    return Fault(refuse=True, connect_s=there), "cut off"
                return Fault(lose_request=True, connect_s=due(dice.between(*BREAKS_S))), "cut off"
            if dice.chance(weather.refused):
                return Fault(refuse=True, connect_s=there), "refused"
            if dice.chance(weather.lost):
                return Fault(lose_request=True, connect_s=due(dice.between(*BREAKS_S))), "lost"
            if dice.chance(weather.unanswered):
                return Fault(request_s=there, reply_s=due(dice.between(*BREAKS_S)), lose_reply=True), "unanswered"
            if dice.chance(weather.doubled):
                return Fault(request_s=there, repeat_s=due(dice.between(*AGAIN_S)), reply_s=back), "doubled"
            if dice.chance(weather.slow):
                slow = due(dice.between(*SLOW_S))
                if dice.chance(0.5):
                    return Fault(request_s=slow, reply_s=back), "slow to arrive"
                return Fault(request_s=there, reply_s=slow), "slow to answer"
        return Fault(request_s=there, reply_s=back), ""

    def _saw(self, call: Call, what: str) -> None:
        if what == "breaks" and call.path.startswith(RUN_PREFIX):
            self.disturbed.add(call.path.removeprefix(RUN_PREFIX).partition("/")[0])
        self._simulation.history.tell(call.server, what, source=call.source, call=call.number)


class _OwnTransport(httpx.AsyncBaseTransport):
    """The transport of one process; model calls of which it gets a reply are `heard`."""

    def __init__(self, process: Process, inner: httpx.AsyncBaseTransport, heard: set[str]) -> None:
        self._process, self._inner, self._heard = process, inner, heard

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not self._process.alive:
            await trio.lowlevel.checkpoint()
            raise httpx.ConnectError(f"{self._process.name} has ended")
        response = await self._inner.handle_async_request(request)
        if MODEL_CALL_HEADER in response.headers:
            self._heard.add(response.headers[MODEL_CALL_HEADER])
        return response
