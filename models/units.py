"""Rollouts that share state, over a checkpoint and a restart, by the tables that run. Executable specification.

`a` and `b` play on one board, `c` has one of its own. A turn is a move on the board and a boundary behind it. One of
them may touch a part that cannot be exported, and then starts over; one may not stand in time, and then it is left out
of the checkpoint: its move ends when it likes. A board is exported once, with whoever of its players is saved.

Who is in a unit, who is left out, what is in the scope, what the registry says and what a restart does are the
coordinator's own decisions (`unit_of`, `concerned`, `scope_of`, `settle` and `settle_units`, `classify` and
`classify_units`); who is left out is counted again at the opening as at a server's gate (`counted_again`). Leases and
lost calls are in other worlds. docs/reference/protocol.md sections 6, 7, 12 and 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import evolve, frozen

from models.server import DEADLINE_TS, Server, knock, server, tell
from participants.coordination.agreement import NO_PIECES, Agreed, Pieces
from participants.coordination.cut import scope_of
from participants.coordination.recovery import Settled, Verdict, classify, classify_units, settle, settle_units
from participants.coordination.stragglers import concerned
from participants.coordination.units import Sharing, unit_of
from participants.identity import EpisodeId
from participants.machines.attempt import (
    ATTEMPT,
    AttemptState,
    Completed,
    Dispatched,
    Parked,
    PartWritten,
    Released,
    Restored,
)
from participants.machines.control import (
    PARTICIPANT,
    CommitRequested,
    Control,
    PartInstalled,
    Phase,
    PrepareRequested,
    ReadinessReached,
    RestoreRequested,
    ResumeRequested,
)
from participants.machines.control import PartWritten as ServerPartWritten
from participants.machines.fencing import own_id
from participants.machines.gate import GATE, ArrivedImpatient, Ended, GateData, GateState, Stirred, counted_again
from participants.machines.gate import Settled as Stood
from participants.records.records import AgentRecord, Disposition, LedgerRow, LedgerStatus, Receipt, RegistryRow
from statecore import Snapshot, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import World, action, crash, durable, param, slot, volatile

GROUPS: Mapping[str, str] = {"a": "one", "b": "one", "c": "two"}
NAMES = tuple(GROUPS)
BOARDS = ("one", "two")
RUNNING = (AttemptState.RUNNING, AttemptState.PARKED, AttemptState.COMMITTED)
TASK = "task"
Board = tuple[tuple[str, int], ...]
QUEUED = ATTEMPT.start()
STANDS = Pieces(agents=(("place", AgentRecord(episode_id=EpisodeId("a"), session_key="run", boundary={}, episode={})),))


def _saved(name: str) -> LedgerRow:
    receipt = Receipt(rollout_id=name, attempt=0, result_identity="0" * 32, result_sha256="0" * 64)
    return LedgerRow(rollout_id=name, attempt=0, status=LedgerStatus.SAVED, receipt=receipt, body=0)


SAVED = {name: _saved(name) for name in NAMES}


@frozen(cache_hash=True)
class Player:
    """One rollout: its attempt, how many turns are behind its boundary, whether a move of it is under way.

    `restarts`: it touched what cannot be exported. `counted`: its server waits for it. `record` is the turn of its
    record in the part that is being written.
    """

    attempt: Snapshot[AttemptState, bool] = QUEUED
    turn: int = 0
    moving: bool = False
    restarts: bool = False
    counted: bool = False
    record: int | None = None


@frozen(cache_hash=True)
class Published:
    """The registry, the turns of the records, and the images of both boards."""

    rows: tuple[RegistryRow, ...]
    turns: tuple[int, ...]
    images: tuple[Board, ...]


class UnitsWorld(World):
    """Two boards with their players, one server that holds all of it, and as much of a coordinator as decides."""

    PARTICIPANT: ClassVar[Table[Phase, Control]] = PARTICIPANT
    GATE: ClassVar[Table[GateState, GateData]] = GATE
    ATTEMPT: ClassVar[Table[AttemptState, bool]] = ATTEMPT

    turns = param(2)
    touches = param(1)
    stragglers = param(1)
    crashes = param(1)

    place: Server = volatile(server("place-1"), of="deployment")
    a: Player = volatile(Player(), of="deployment")
    b: Player = volatile(Player(), of="deployment")
    c: Player = volatile(Player(), of="deployment")
    board_one: Board = volatile((), of="deployment")
    board_two: Board = volatile((), of="deployment")
    coordinator: str = slot("idle")  # open, ending, restoring or recovering
    began: bool = durable(False)
    left_out: frozenset[str] = slot(frozenset())
    image_one: Board | None = slot(None)
    image_two: Board | None = slot(None)
    disk: Published | None = durable(None)
    life: int = durable(1)
    touches_left: int = slot(make=lambda w: w.touches)
    stragglers_left: int = slot(make=lambda w: w.stragglers)
    crashes_left: int = slot(make=lambda w: w.crashes)

    # --- the rollouts

    @action(over=NAMES)
    def dispatch(self, name: str) -> object:
        """Its request leaves, while no checkpoint is open."""
        player = self._player(name)
        if self.coordinator != "idle" or player.attempt.state in RUNNING:
            return False
        self.place = knock(self.place, ArrivedImpatient(), self.GATE)
        attempt, _ = self.ATTEMPT.step(player.attempt, Dispatched())
        self._put(name, evolve(player, attempt=attempt, counted=True))
        return None

    @action(over=NAMES)
    def move(self, name: str) -> object:
        """It makes a move on its board; while the server is closed that is held."""
        player = self._player(name)
        if player.attempt.state is not AttemptState.RUNNING or player.moving or not self.place.is_open:
            return False
        self._put(name, evolve(player, moving=True))
        return None

    @action(over=NAMES)
    def end_move(self, name: str) -> object:
        """The move is on the board, a boundary is behind it; the last turn ends the rollout."""
        player = self._player(name)
        if not player.moving:
            return False
        turn = player.turn + 1
        self._set_board(GROUPS[name], (*self._board(GROUPS[name]), (name, turn)))
        player = evolve(player, moving=False, turn=turn)
        if turn == self.turns:
            attempt, _ = self.ATTEMPT.step(player.attempt, Completed())
            player = self._uncounted(evolve(player, attempt=attempt))
        self._put(name, player)
        return None

    @action(over=NAMES)
    def park(self, name: str) -> object:
        """It stands at its boundary while its server is closed."""
        player = self._player(name)
        if self.place.is_open or player.moving or player.attempt.state is not AttemptState.RUNNING:
            return False
        if player.counted:
            self.place = knock(self.place, Stood(), self.GATE)
        attempt, _ = self.ATTEMPT.step(player.attempt, Parked())
        self._put(name, evolve(player, attempt=attempt))
        return None

    @action(over=NAMES)
    def unpark(self, name: str) -> object:
        player = self._player(name)
        if player.attempt.state not in (AttemptState.PARKED, AttemptState.COMMITTED) or not self.place.is_open:
            return False
        if player.counted:
            self.place = knock(self.place, Stirred(), self.GATE)
        attempt, _ = self.ATTEMPT.step(player.attempt, Released())
        self._put(name, evolve(player, attempt=attempt))
        return None

    @action(fault=True, over=NAMES)
    def touch(self, name: str) -> object:
        """It uses a part that cannot be exported: it starts over after a restart, and blocks nothing from here on."""
        player = self._player(name)
        if not player.moving or player.restarts or self.touches_left == 0:
            return False
        self.touches_left -= 1
        self._put(name, self._uncounted(evolve(player, restarts=True)))
        return None

    # --- the checkpoint

    @action
    def begin(self) -> object:
        """Dispatch is frozen, the server is closed."""
        if self.coordinator != "idle" or self.began:
            return False
        self.coordinator, self.began = "open", True
        self._tell(PrepareRequested(self._checkpoint_id, **self._address))
        return None

    @action(fault=True, over=NAMES)
    def leave_out(self, name: str) -> object:
        """A move takes too long: its rollout is left out, and whoever else has to be."""
        player = self._player(name)
        if self.place.phase is not Phase.PREPARING or not player.moving or name in self.left_out:
            return False
        if self.stragglers_left == 0:
            return False
        self.stragglers_left -= 1
        self.left_out |= self._with_its_unit(name)
        for each in sorted(self.left_out):
            if self._player(each).attempt.state is AttemptState.RUNNING:
                self._put(each, self._uncounted(self._player(each)))
        return None

    @action
    def reach_readiness(self) -> object:
        if self.place.phase is not Phase.PREPARING or not self.place.is_quiet:
            return False
        self._tell(ReadinessReached(self._checkpoint_id))
        return None

    @action
    def write_records(self) -> object:
        """The records of who stands, of all that are in the scope (section 6.3)."""
        if self.coordinator != "open" or self.place.phase is not Phase.PREPARED:
            return False
        if self.place.control.data.writing is not None:
            return False
        self._tell(CommitRequested(self._checkpoint_id, arguments="all", **self._address))
        restarts = [EpisodeId(name) for name in NAMES if self._player(name).restarts]
        left_out = [EpisodeId(name) for name in self.left_out]
        for each in sorted(scope_of(frozenset(self._candidates.values()), restarts, (), left_out)):
            player = self._player(each.rollout_id)
            if player.attempt.state.resumable:
                attempt, _ = self.ATTEMPT.step(player.attempt, PartWritten())
                self._put(each.rollout_id, evolve(player, attempt=attempt, record=player.turn))
        return None

    @action
    def export_boards(self) -> object:
        """The boards of all who have a record, and with them the part is whole."""
        if self.place.phase is not Phase.PREPARED or self.place.control.data.writing is None:
            return False
        self._tell(ServerPartWritten(self._checkpoint_id, "all"))
        self.image_one, self.image_two = self.board_one, self.board_two
        return None

    @action
    def publish(self) -> object:
        """The registry decides what each rollout is."""
        if self.coordinator != "open" or self.place.phase is not Phase.COMMITTED:
            return False
        images = (self.image_one or (), self.image_two or ())
        units = {name: unit_of(GROUPS[name], Sharing.GROUP) for name in NAMES}
        settled = self._decide({name: self._settled(name, images) for name in NAMES}, units)
        rows = tuple(
            RegistryRow(
                rollout_id=name,
                attempt=self.life - 1,
                group=GROUPS[name],
                task=TASK,
                task_digest=TASK,
                target="place",
                unit=units[name],
                disposition=settled[name].disposition,
            )
            for name in NAMES
        )
        self.disk = Published(rows, tuple(self._player(name).record or 0 for name in NAMES), images)
        self._end_open()
        return None

    @action
    def give_up(self) -> object:
        if self.coordinator != "open":
            return False
        self._end_open()
        return None

    @action
    def resume(self) -> object:
        if self.coordinator != "ending":
            return False
        self._tell(ResumeRequested(self._checkpoint_id, **self._address))
        for name in NAMES:
            player = self._player(name)
            if not player.counted and not player.restarts and player.attempt.state in RUNNING:
                player = self._counted(player)  # it was left out
            self._put(name, evolve(player, record=None))
        self.coordinator, self.left_out = "idle", frozenset()
        return None

    # --- a restart

    def _start_again(self) -> None:
        self.life += 1
        self.coordinator, self.left_out, self.image_one, self.image_two = "restoring", frozenset(), None, None
        self.place = server(f"place-{self.life}", born_with_epoch=self.life)

    die = crash("deployment", budget="crashes_left", then=_start_again, by="deployment")

    @action
    def restore(self) -> object:
        """Exactly the rollouts that are continued come back, and the boards of those."""
        if self.coordinator != "restoring":
            return False
        self.coordinator = "recovering"
        if self.disk is None:
            return None
        self._tell(RestoreRequested(self._restore_id, **self._address))
        self._tell(PartInstalled(self._restore_id, deadline_ts=DEADLINE_TS))
        verdicts = self._judge([self._verdict(number) for number in range(len(NAMES))], self.disk.rows)
        for number, verdict in enumerate(verdicts):
            attempt, turn = self.ATTEMPT.start(), 0
            if verdict.disposition is Disposition.CONTINUE:
                attempt, _ = self.ATTEMPT.step(attempt, Restored())
                turn = self.disk.turns[number]
                board = GROUPS[verdict.rollout_id]
                self._set_board(board, self.disk.images[BOARDS.index(board)])
            elif verdict.disposition is Disposition.COMPLETED:
                attempt, _ = self.ATTEMPT.step(self.ATTEMPT.step(attempt, Dispatched())[0], Completed())
                turn = self.turns
            self._put(verdict.rollout_id, Player(attempt, turn))
        return None

    @action
    def open_restored(self) -> object:
        if self.coordinator != "recovering":
            return False
        self._tell(ResumeRequested(self._restore_id, **self._address))
        self.coordinator = "idle"
        return None

    # --- decisions that failing twins take out

    def _with_its_unit(self, name: str) -> frozenset[str]:
        """Who is left out with this straggler."""
        units = {each: unit_of(GROUPS[each], Sharing.GROUP) for each in NAMES}
        return frozenset(each.rollout_id for each in concerned({EpisodeId(name): "it moves"}, self._candidates, units))

    def _decide(self, settled: dict[str, Settled], units: dict[str, str | None]) -> dict[str, Settled]:
        """What the registry says of all, from what it would say of each."""
        return settle_units(settled, units)

    def _judge(self, verdicts: list[Verdict], rows: tuple[RegistryRow, ...]) -> tuple[Verdict, ...]:
        """What a restart does with all, from what it would do with each."""
        return classify_units(verdicts, rows)

    # --- helpers

    def _settled(self, name: str, images: tuple[Board, ...]) -> Settled:
        """What the registry would say of it alone: its record agrees if all of its moves are on the image."""
        player = self._player(name)
        return settle(
            received=player.attempt.state is AttemptState.COMPLETED,
            sent=player.attempt.state in RUNNING,
            retained=False,
            restarted_by="place" if player.restarts else "",
            left_out="it moves" if name in self.left_out else "",
            pieces=NO_PIECES if player.record is None else STANDS,
            agreed=self._agreed(name, player.record or 0, images),
        )

    def _agreed(self, name: str, turn: int, images: tuple[Board, ...]) -> Agreed:
        image = images[BOARDS.index(GROUPS[name])]
        return Agreed(0 < turn == sum(who == name for who, _ in image))

    def _verdict(self, number: int) -> Verdict:
        assert self.disk is not None
        row, turn = self.disk.rows[number], self.disk.turns[number]
        completed = row.disposition is Disposition.COMPLETED
        return classify(
            row,
            ledger=SAVED[row.rollout_id] if completed else None,
            consumed=False,
            agreed=self._agreed(row.rollout_id, turn, self.disk.images),
            highest=row.attempt,
        )

    def _player(self, name: str) -> Player:
        player: Player = getattr(self, name)
        return player

    def _put(self, name: str, player: Player) -> None:
        setattr(self, name, player)

    def _board(self, name: str) -> Board:
        board: Board = getattr(self, f"board_{name}")
        return board

    def _set_board(self, name: str, board: Board) -> None:
        setattr(self, f"board_{name}", tuple(sorted(board)))

    @property
    def _candidates(self) -> dict[str, EpisodeId]:
        """The executions that a checkpoint would save."""
        return {name: EpisodeId(name) for name in NAMES if self._player(name).attempt.state in RUNNING}

    def _counted(self, player: Player) -> Player:
        for event in counted_again(settled=player.attempt.state is not AttemptState.RUNNING):
            self.place = knock(self.place, event, self.GATE)
        return evolve(player, counted=True)

    def _uncounted(self, player: Player) -> Player:
        """Its server no longer waits for it."""
        if player.counted:
            self.place = knock(self.place, Ended(), self.GATE)
        return evolve(player, counted=False)

    @property
    def _checkpoint_id(self) -> str:
        return own_id("ck", self.life, 1)

    @property
    def _restore_id(self) -> str:
        return own_id("rs", self.life, 1)

    @property
    def _address(self) -> dict[str, Any]:
        return {"deadline_ts": DEADLINE_TS, "epoch": self.life, "incarnation": self.place.incarnation}

    def _tell(self, event: object) -> None:
        self.place, _ = tell(self.place, event, self.PARTICIPANT, self.GATE)

    def _end_open(self) -> None:
        self.coordinator, self.image_one, self.image_two = "ending", None, None

    # --- what must be true

    @always(covers=("I86", "S69"))
    def no_turn_is_played_twice(self) -> bool:
        return all(len(set(board)) == len(board) for board in (self.board_one, self.board_two))

    @always(covers="I86")
    def a_board_has_the_turns_of_those_who_play_on_it(self) -> bool:
        """Of a rollout that is not done, each turn of its conversation and no other; what is done has left."""
        for name in NAMES:
            player = self._player(name)
            if player.attempt.state is not AttemptState.COMPLETED:
                played = [turn for who, turn in self._board(GROUPS[name]) if who == name]
                if played != list(range(1, player.turn + 1)):
                    return False
        return True

    @recoverable(covers="I20")
    def all_are_done(self) -> bool:
        return all(self._player(name).attempt.state is AttemptState.COMPLETED for name in NAMES)

    @final
    def nothing_is_left_to_do(self) -> bool:
        return all(self._player(name).attempt.state is AttemptState.COMPLETED for name in NAMES)

    # --- what must be possible

    @sometimes
    def a_whole_unit_is_continued(self) -> bool:
        return self._rows("a", "b") == [Disposition.CONTINUE, Disposition.CONTINUE]

    @sometimes(covers="S69")
    def a_unit_starts_over_for_one_of_its_members(self) -> bool:
        """Its own record was good, and is not used."""
        return self.disk is not None and self._rows("a", "b") == [Disposition.FRESH] * 2 and self.disk.turns[0] > 0

    @sometimes
    def another_unit_goes_on(self) -> bool:
        return self._rows("a", "c") == [Disposition.FRESH, Disposition.CONTINUE]

    @sometimes
    def one_goes_on_where_another_is_done(self) -> bool:
        return self._rows("a", "b") == [Disposition.COMPLETED, Disposition.CONTINUE]

    @sometimes
    def one_goes_on_where_another_was_queued(self) -> bool:
        return self._rows("a", "b") == [Disposition.QUEUED, Disposition.CONTINUE]

    @sometimes
    def a_straggler_moves_while_others_are_committed(self) -> bool:
        return self.place.phase is Phase.COMMITTED and any(self._player(name).moving for name in self.left_out)

    def _rows(self, *names: str) -> list[Disposition]:
        found = {} if self.disk is None else {row.rollout_id: row.disposition for row in self.disk.rows}
        return [found[name] for name in names if name in found]
