"""Failing twins of the world of units: each without one protective rule, each with a counterexample."""

from __future__ import annotations

from models.units import UnitsWorld
from participants.coordination.recovery import Settled, Verdict
from participants.records.records import RegistryRow
from statecore.properties import always


class DecidedOneByOne(UnitsWorld):
    """S69: each rollout is decided by itself, by the registry and by the restart (either of the two is enough)."""

    def _decide(self, settled: dict[str, Settled], units: dict[str, str | None]) -> dict[str, Settled]:
        return settled

    def _judge(self, verdicts: list[Verdict], rows: tuple[RegistryRow, ...]) -> tuple[Verdict, ...]:
        return tuple(verdicts)


class LeftOutAlone(DecidedOneByOne):
    """S69: a straggler is left out without its unit, whose other members are saved and continued. Here nobody touches
    what cannot be exported, and then whole units left out are enough: no member is fresh alone. Where a unit is decided
    as one, leaving out the straggler alone costs the others their turns just the same, and saves in vain.
    """

    def _with_its_unit(self, name: str) -> frozenset[str]:
        return frozenset({name})


class DecidedOneByOneSeenByItsHarm(DecidedOneByOne):
    """S69 once more, with nothing said about what a restart puts on the board: a turn is played twice."""

    @always
    def a_board_has_the_turns_of_those_who_play_on_it(self) -> bool:
        return True


TWINS = (DecidedOneByOne, DecidedOneByOneSeenByItsHarm, LeftOutAlone)
