"""The journal of a simulated run: everything that happened, in order, as one JSON line each.

A line is canonical JSON with `at` (virtual seconds since the start), `who` and `what`, and whatever else belongs to it.
A line of a process's own journal (`statecore.journal`) stands in it as it was written, under `line`. Two runs of one
seed have equal histories, byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ..errors import StatecoreError
from ..wire import canonical, parse

MAX_LINES: Final = 200_000
"""A run that has more to tell goes round in circles."""
JOURNAL: Final = "journal"


class EndlessRun(StatecoreError):
    """So much has happened that the run will not come to an end."""


class History:
    """The lines of one run; `now` tells the virtual time.

    `counts` says how often each `what` came, `journals` what each process wrote into its own journal.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self.journals: dict[str, list[bytes]] = {}
        self._now = now
        self._lines: list[bytes] = []

    def tell(self, who: str, what: str, **more: Any) -> None:
        """One line more."""
        self._append(self._line(who, what, more))

    def conclude(self, who: str, what: str, **more: Any) -> None:
        """One line more, also where there is no room for others: why the run ends."""
        self._lines.append(self._line(who, what, more))

    def journal(self, who: str) -> Callable[[bytes], None]:
        """Takes the lines of this process's own journal: the `write` of a `Journal`."""
        name = canonical(who)
        written = self.journals.setdefault(who, [])

        def write(line: bytes) -> None:
            written.append(line)
            at = canonical(round(self._now(), 6))
            self._append(b'{"at":%b,"line":%b,"what":"journal","who":%b}' % (at, line.rstrip(b"\n"), name))

        return write

    def _line(self, who: str, what: str, more: Mapping[str, Any]) -> bytes:
        self.counts[what] += 1
        return canonical({"at": round(self._now(), 6), "who": who, "what": what, **more})

    def _append(self, line: bytes) -> None:
        if len(self._lines) >= MAX_LINES:
            raise EndlessRun(f"more than {MAX_LINES} lines by {self._now():.3f} s")
        self._lines.append(line)

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def data(self) -> bytes:
        """All lines, each with its newline."""
        return b"".join(line + b"\n" for line in self._lines)


def lines_of(data: bytes) -> Iterator[dict[str, Any]]:
    """The lines of a history, read back."""
    for line in data.splitlines():
        value: Any = parse(line)
        yield value


def journals_in(data: bytes) -> dict[str, bytes]:
    """The journals that the processes themselves wrote, by process, as they wrote them."""
    found: dict[str, list[bytes]] = {}
    for line in lines_of(data):
        if line["what"] == JOURNAL:
            found.setdefault(line["who"], []).append(canonical(line["line"]) + b"\n")
    return {who: b"".join(written) for who, written in found.items()}
