"""The whole job for a coordinator that lives in a thread: its network and its servers are in that thread as well.

In real time: worker threads are not seen by a clock that jumps. Tests wait for events, never for a time to pass.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from participants import BlockingCoordinator, CoordinatorSettings, Dispatch, Disposition, Result
from participants.serving.testing import Fault, InMemoryLauncher, InMemoryNetwork
from statecore.seams import MemoryDisk
from tests.small_job import TOKEN
from tests.whole_job import ROOT, WholeJob

WITHIN_S = 60.0
"""How long a test waits for what must come; only a broken one waits that long."""


@define(eq=False)
class PlainHooks:
    """A trainer of plain functions: a state under a lock. `during` is called in each hook, by its name."""

    disk: MemoryDisk
    accepted: dict[str, Any] = field(factory=dict)
    lock: threading.Lock = field(factory=threading.Lock)
    during: dict[str, Callable[[], Any]] = field(factory=dict)
    calls: list[str] = field(factory=list)
    threads: set[str] = field(factory=set)
    overlaps: int = 0
    _inside: threading.Lock = field(factory=threading.Lock)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self.threads.add(threading.current_thread().name)
        if not self._inside.acquire(blocking=False):
            self.overlaps += 1
            return
        try:
            if name in self.during:
                self.during[name]()
        finally:
            self._inside.release()

    def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        self._called("save")
        with self.lock, self.disk.create(directory / "state.json") as file:
            file.write(json.dumps(self.accepted).encode())

    def load(self, directory: Path) -> None:
        self._called("load")
        with self.lock:
            self.accepted = json.loads(self.disk.read(directory / "state.json"))

    def accept(self, result: Result) -> None:
        self._called("accept")
        with self.lock:
            assert result.rollout_id not in self.accepted
            self.accepted[result.rollout_id] = result.body

    def consumed(self) -> Set[str]:
        self._called("consumed")
        with self.lock:
            return set(self.accepted)

    @property
    def policy_version(self) -> tuple[int, int]:
        with self.lock:
            return 1, len(self.accepted)


@define(eq=False)
class InThatThread:
    """A launcher that opens the network in the coordinator's thread, and lets other threads act there."""

    network: InMemoryNetwork
    inner: InMemoryLauncher
    token: trio.lowlevel.TrioToken | None = None
    stopped: int = 0
    _over: trio.Event = field(factory=trio.Event)

    async def start(self, epoch: int) -> Mapping[str, str]:
        self.token = trio.lowlevel.current_trio_token()
        up = trio.Event()
        trio.lowlevel.spawn_system_task(self._hold, up)
        await up.wait()
        return await self.inner.start(epoch)

    async def _hold(self, up: trio.Event) -> None:
        async with self.network:
            up.set()
            await self._over.wait()

    async def stop(self) -> None:
        self.stopped += 1
        self.inner.kill()
        self._over.set()


@define(eq=False)
class ThreadedJob:
    """One life of the whole job; several over one `disk` follow each other."""

    disk: MemoryDisk = field(factory=MemoryDisk)
    seen: list[str] = field(factory=list)
    on_call: Callable[[str], None] | None = None
    whole: WholeJob = field(init=False)
    trainer: PlainHooks = field(init=False)
    launcher: InThatThread = field(init=False)

    def __attrs_post_init__(self) -> None:
        network = InMemoryNetwork(self._saw)
        self.whole = WholeJob(network, disk=self.disk)
        self.whole.coordinator()  # makes the launcher, which is all that is used of it
        assert self.whole.launcher is not None
        self.launcher = InThatThread(network, self.whole.launcher)
        self.trainer = PlainHooks(self.disk)

    def _saw(self, call: Any) -> Fault | None:
        self.seen.append(f"{call.server} {call.path}")
        if self.on_call is not None:
            self.on_call(self.seen[-1])
        return None

    def coordinator(self, *, launcher: Any = None, trainer: Any = None, **settings: Any) -> BlockingCoordinator:
        return BlockingCoordinator(
            ROOT,
            launcher or self.launcher,
            trainer or self.trainer,
            token=TOKEN,
            settings=CoordinatorSettings(**settings),
            seams=self.whole._seams("coordinator"),
            transport=lambda: self.whole.network.transport("coordinator"),
        )

    def allow(self, rollout: str, turns: int) -> None:
        """As the turnstile's, from any thread, once the servers are up."""
        trio.from_thread.run_sync(self.whole.turnstile.allow, rollout, turns, trio_token=self.launcher.token)

    def until_called(self, call: str) -> None:
        """Such a call has been made, like `env /run`."""
        for _ in range(int(WITHIN_S * 1000)):
            if call in self.seen:
                return
            threading.Event().wait(0.001)
        raise AssertionError(f"no {call} came")

    def dispatches(self, turns: int, *rollouts: str, free: bool = True) -> list[Dispatch]:
        """Rollouts to run; `free` ones need not be let through the turnstile."""
        if free:
            self.whole.turnstile.allowed.update(dict.fromkeys(rollouts, turns))
        return self.whole.dispatches(turns, *rollouts)


class Thread:
    """A call in a thread of its own; `result` waits for what it returned or raised."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._outcome: list[Any] = []
        self._error: list[BaseException] = []

        def run() -> None:
            try:
                self._outcome.append(function(*args))
            except BaseException as error:
                self._error.append(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "the call has not ended"
        if self._error:
            raise self._error[0]
        return self._outcome[0]


def awaited(event: threading.Event) -> None:
    """The event came."""
    assert event.wait(WITHIN_S), "it did not come"
