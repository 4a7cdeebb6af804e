"""The lease timer: something happens by itself when nothing was heard in time.

Armed with a wall-clock time, it waits on the monotonic clock, so that a stepped wall clock neither fires it early nor
keeps it from firing (docs/reference/protocol.md section 5; S30).
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from statecore.seams import Clock


class Lease:
    """One timer. `ended` is called when it runs out; if that, or the timer, fails, `broke` is told."""

    def __init__(self, clock: Clock, ended: Callable[[], None], broke: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._ended = ended
        self._broke = broke
        self._moved = anyio.Event()
        self._at: float | None = None  # monotonic seconds

    def arm(self, until: float) -> None:
        """It ends at wall-clock time `until`, whatever it was armed for before."""
        self._move(self._clock.monotonic() + max(0.0, until - self._clock.time()))

    def disarm(self) -> None:
        self._move(None)

    def _move(self, at: float | None) -> None:
        self._at = at
        self._moved.set()
        self._moved = anyio.Event()

    async def watch(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                moved, at = self._moved, self._at
                if at is None:
                    await moved.wait()
                    continue
                left = at - self._clock.monotonic()
                if left > 0:
                    with anyio.move_on_after(left):
                        await moved.wait()
                    continue
                self._at = None
                self._ended()
        except Exception as error:
            self._broke(error)
            raise
