"""Servers with one rule of the protocol taken out, each a right resources server with something in front or changed.

`BROKEN` names them: what is wrong, how such a server is made, and which check has to find it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from participants.files.snapshots import InvalidCheckpointState
from participants.identity import EpisodeId
from participants.net.http import ASGIApp, Message, Receive, Scope, Send
from participants.servers.resources import Resources, Staged
from participants.settings import Seams, Settings
from tests.conform_kinds import Before, Maker, Transport
from tests.small_job import ROOT, Counter, counter_resources

Json = dict[str, Any]
CONTROL = "/ng-control/v1/checkpoint/"


class Front:
    """What stands before a right server: it may change the body of a verb's request, and the reply."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.server: Any = getattr(app, "server", None)

    def asked(self, verb: str, body: Json) -> Json:
        return body

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        return status, reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(CONTROL) or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        verb = scope["path"].removeprefix(CONTROL)
        content = (await receive())["body"]
        try:
            body = json.loads(content)
            assert isinstance(body, dict)
            content = json.dumps(self.asked(verb, body)).encode()
        except (ValueError, AssertionError, RecursionError):
            body = {}
        told: list[Message] = []

        async def again() -> Message:
            return {"type": "http.request", "body": content, "more_body": False}

        async def keep(message: Message) -> None:
            told.append(message)

        await self.app(scope, again, keep)
        start, *parts = told
        status, reply = self.answered(verb, body, start["status"], json.loads(b"".join(each["body"] for each in parts)))
        content = json.dumps(reply).encode()
        headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
        await send({"type": start["type"], "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def behind(front: Callable[[ASGIApp], ASGIApp]) -> Maker:
    def make(config: Settings, seams: Seams, transport: Transport, before: Before) -> ASGIApp:
        return front(counter_resources(config, seams, transport, before=before))

    return make


def changed(change: Callable[[Any], object]) -> Maker:
    """A right server of which `change` takes something out; it gets the shell."""

    def make(config: Settings, seams: Seams, transport: Transport, before: Before) -> ASGIApp:
        app = counter_resources(config, seams, transport, before=before)
        change(app)
        return app

    return make


def of_kind(kind: type[Resources[Counter]]) -> Maker:
    def make(config: Settings, seams: Seams, transport: Transport, before: Before) -> ASGIApp:
        return counter_resources(config, seams, transport, kind=kind, before=before)

    return make


# --- at the door


def no_token(shell: Any) -> None:
    shell._check_token = lambda headers: None


def scheme_in_any_case(shell: Any) -> None:
    right = shell._check_token
    shell._check_token = lambda headers: right(
        {**headers, "authorization": headers.get("authorization", "").replace("bearer", "Bearer")}
    )


def status_for_everybody(shell: Any) -> None:
    right = shell._controlled

    async def controlled(span: Any, method: str, path: str, headers: dict[str, str], receive: Any) -> Any:
        if method == "GET" and path.endswith("/status"):
            headers = {**headers, "authorization": f"Bearer {shell.server.settings.control_auth_token}"}
        return await right(span, method, path, headers, receive)

    shell._controlled = controlled


class BodyFirst(Front):
    """The body is judged before the token."""

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        if status == 401 and "checkpoint_id" not in body:
            return 422, {"detail": [{"type": "missing", "loc": ["body", "checkpoint_id"], "msg": "Field required"}]}
        return status, reply


class FailsOnBadInput(Front):
    """A body that does not fit is an error of the server."""

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        return (500, {"error": {"code": "internal_error", "detail": "?"}}) if "detail" in reply else (status, reply)


class TakesWhatItUnderstands(Front):
    """Unknown fields are dropped."""

    def asked(self, verb: str, body: Json) -> Json:
        body.pop("unknown", None)
        return body


class MarksOnBadInput(Front):
    """Something is done before all of the body is looked at."""

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        if verb == "retire" and "detail" in reply:
            self.server.fences.retired[f"r{len(self.server.fences.retired)}"] = 0
        return status, reply


# --- phases and repetitions


class NeverTheSame(Front):
    """A prepare that is repeated is answered anew."""

    count = 0

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        if verb == "prepare" and "report" in reply:
            self.count += 1
            reply["report"]["counts"]["prepares"] = self.count
        return status, reply


class AnyCommit(Front):
    """A second commit gets the answer of the first, whatever it asks for (S26)."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self.first: dict[str, Json] = {}

    def asked(self, verb: str, body: Json) -> Json:
        return self.first.get(str(body.get("checkpoint_id")), body) if verb == "commit" else body

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        if verb == "commit" and status == 200:
            self.first.setdefault(body["checkpoint_id"], body)
        return status, reply


class LeavesFiles(Front):
    """Each commit leaves a file beside its part, however often it is asked."""

    count = 0

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        if verb == "commit" and status == 200:
            self.count += 1
            with self.server.seams.disk.create(Path(body["checkpoint_dir"]) / f"lock-{self.count}") as file:
                file.write(b"mine")
        return status, reply


class JoinsTheOpenOne(Front):
    """A prepare of another checkpoint is taken for one of that which is open."""

    def asked(self, verb: str, body: Json) -> Json:
        if verb == "prepare" and self.server.participant.control.checkpoint_id is not None:
            body["checkpoint_id"] = self.server.participant.control.checkpoint_id
        return body


class AnyResume(Front):
    """A resume opens, whatever checkpoint it is of."""

    def asked(self, verb: str, body: Json) -> Json:
        if verb == "resume" and self.server.participant.control.checkpoint_id is not None:
            body["checkpoint_id"] = self.server.participant.control.checkpoint_id
        return body


class AlwaysOpened(Front):
    """A resume that is repeated says that it opened."""

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        return status, reply | ({"idempotent": False} if "idempotent" in reply else {})


class ForgetsEndedIds(Front):
    """An id that has ended may begin again."""

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        participant = self.server.participant
        machine = participant._machine
        participant._machine = evolve(machine, data=evolve(machine.data, ended=type(machine.data.ended)()))
        return status, reply


class OpensAfterCommit(Front):
    """A server that has written its part lets rollouts go on."""

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        if verb == "commit" and status == 200:
            self.server.admission.open()
        return status, reply


class OpensAfterRestore(Front):
    """A server that was restored lets rollouts go on before its resume."""

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        if verb == "restore" and status == 200:
            self.server.admission.open()
        return status, reply


class WritesAtPrepare(Front):
    """A prepare leaves a file."""

    count = 0

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        if verb == "prepare" and status == 200:
            self.count += 1
            name = f"{self.server.incarnation}-{self.count}"
            with self.server.seams.disk.create(ROOT / name) as file:
                file.write(b"prepared")
        return status, reply


# --- deadlines, leases, blockers


class WaitsForEver(Front):
    """A prepare waits, whatever its deadline is."""

    def asked(self, verb: str, body: Json) -> Json:
        return body | ({"deadline_ts": 1_790_050_000.0} if verb == "prepare" and "deadline_ts" in body else {})


class NeverTooLate(Front):
    """A commit that is late is made."""

    def asked(self, verb: str, body: Json) -> Json:
        return body | ({"deadline_ts": 1_790_050_000.0} if verb == "commit" and "deadline_ts" in body else {})


def no_lease(shell: Any) -> None:
    shell.server.participant._lease.arm = lambda until: None


def reopens_with_a_shut_gate(shell: Any) -> None:
    """The phase says idle at the end of a lease, and nobody opened the gate."""
    participant = shell.server.participant
    right = participant._lease._ended

    def ended() -> None:
        right()
        shell.server.admission.close()

    participant._lease._ended = ended


class NamesNobody(Front):
    """Blockers are counted and not named (S10)."""

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        if "report" in reply:
            reply["report"] |= {"blockers": [], "blocker_details": []}
        return status, reply


# --- fencing and restoring


def any_epoch(shell: Any) -> None:
    right = shell.server.participant.perform
    shell.server.participant.perform = lambda call, *, epoch, incarnation: right(
        call, epoch=max(epoch or 0, 7), incarnation=incarnation
    )


def any_process(shell: Any) -> None:
    right = shell.server.participant.perform
    shell.server.participant.perform = lambda call, *, epoch, incarnation: right(call, epoch=epoch, incarnation=None)


def older_attempts_welcome(shell: Any) -> None:
    shell.server.fences.accept = lambda episode: None


def marks_end_with_a_checkpoint(shell: Any) -> None:
    right = shell.server.opened

    def opened() -> None:
        right()
        shell.server.fences.retired.clear()

    shell.server.opened = opened


def marks_are_lowered(shell: Any) -> None:
    def retire(episodes: Iterable[EpisodeId]) -> None:
        shell.server.fences.retired.update({each.rollout_id: each.attempt for each in episodes})

    shell.server.fences.retire = retire


def restores_when_live(shell: Any) -> None:
    shell.server.check_fresh = lambda count: None


def stays_shut_after_a_failed_restore(shell: Any) -> None:
    participant = shell.server.participant
    right: Callable[..., Awaitable[Json]] = participant._install

    async def install(*args: Any) -> Json:
        try:
            return await right(*args)
        except InvalidCheckpointState:
            participant._settle_effects, settle = (lambda effects: None), participant._settle_effects
            shell.server.group.start_soon(_later, participant, settle)
            raise

    participant._install = install


async def _later(participant: Any, settle: Any) -> None:
    participant._settle_effects = settle


class LosesStates(Resources[Counter]):
    """It exports its sessions, and brings them back empty (S11)."""

    def install(self, staged: Sequence[Staged[Counter]], scope: frozenset[EpisodeId]) -> Sequence[str]:
        return super().install([evolve(each, state=Counter(0)) for each in staged], scope)


class LosesPositions(Resources[Counter]):
    """It brings its sessions back at another revision (S46)."""

    def install(self, staged: Sequence[Staged[Counter]], scope: frozenset[EpisodeId]) -> Sequence[str]:
        moved = [evolve(each, position=evolve(each.position, revision=each.position.revision + 1)) for each in staged]
        return super().install(moved, scope)


class LeavesOutTheRetired(Resources[Counter]):
    """A tombstone of an attempt keeps every attempt of its rollout out of checkpoints (S13)."""

    def export(self, scope: frozenset[EpisodeId] | None) -> Iterable[Json]:
        return [each for each in super().export(scope) if each["episode_id"]["rollout_id"] not in self.fences.retired]


class RestoresEverything(Front):
    """A restore takes all records, whatever its scope names."""

    def answered(self, verb: str, body: Json, status: int, reply: Json) -> tuple[int, Json]:
        if verb == "restore" and status == 200:
            reply["restored"] = sorted([*reply["restored"], "somebody-a1"])
        return status, reply


@frozen
class Broken:
    """A server with a fault: what is wrong, how it is made, the check that finds it."""

    what: str
    make: Maker
    found_by: str


BROKEN = (
    Broken("serves without a token", changed(no_token), "authentication/every-route-wants-the-token"),
    Broken("takes `bearer`", changed(scheme_in_any_case), "authentication/every-route-wants-the-token"),
    Broken("shows its status to all", changed(status_for_everybody), "authentication/every-route-wants-the-token"),
    Broken("judges bodies before the token", behind(BodyFirst), "authentication/the-token-comes-before-the-body"),
    Broken("fails on bad input", behind(FailsOnBadInput), "bad-input/every-field-of-every-verb"),
    Broken("drops unknown fields", behind(TakesWhatItUnderstands), "bad-input/every-field-of-every-verb"),
    Broken("changes state on bad input", behind(MarksOnBadInput), "bad-input/every-field-of-every-verb"),
    Broken("answers a prepare twice differently", behind(NeverTheSame), "idempotency/prepare-again"),
    Broken("commits elsewhere with the old answer", behind(AnyCommit), "idempotency/commit-again"),
    Broken("leaves a file at each commit", behind(LeavesFiles), "lost-replies/of-a-commit"),
    Broken("takes two checkpoints for one", behind(JoinsTheOpenOne), "idempotency/two-checkpoints-at-once"),
    Broken("opens for a resume of another id", behind(AnyResume), "fencing/another-id-while-one-is-open"),
    Broken("says twice that it opened", behind(AlwaysOpened), "idempotency/resume-again"),
    Broken("begins an ended id again", behind(ForgetsEndedIds), "fencing/an-id-that-has-ended"),
    Broken("opens after its commit", behind(OpensAfterCommit), "phases/closed-until-the-resume"),
    Broken("opens after its restore", behind(OpensAfterRestore), "export-restore/comes-back-equal"),
    Broken("writes at prepare", behind(WritesAtPrepare), "export-restore/prepare-writes-nothing"),
    Broken("ignores the deadline of a wait", behind(WaitsForEver), "deadlines/a-wait-ends-at-its-deadline"),
    Broken("commits behind its deadline", behind(NeverTooLate), "deadlines/in-the-past"),
    Broken("has a lease that never ends", changed(no_lease), "lease/ends-in-a-prepared-server"),
    Broken("stays shut when its lease ends", changed(reopens_with_a_shut_gate), "lease/opens-the-gate"),
    Broken("names no blockers", behind(NamesNobody), "blockers/are-named"),
    Broken("accepts an older epoch", changed(any_epoch), "fencing/a-call-of-an-older-epoch"),
    Broken("accepts a call for another process", changed(any_process), "fencing/a-call-for-another-process"),
    Broken("serves an older attempt", changed(older_attempts_welcome), "fencing/an-older-attempt"),
    Broken("forgets marks at a resume", changed(marks_end_with_a_checkpoint), "tombstones/outlive-a-checkpoint"),
    Broken("lowers a mark", changed(marks_are_lowered), "tombstones/are-never-lowered"),
    Broken("leaves out who has an older mark", of_kind(LeavesOutTheRetired), "tombstones/leave-out-nobody-else"),
    Broken("restores on a live server", changed(restores_when_live), "export-restore/a-live-server-refuses"),
    Broken("brings back other states", of_kind(LosesStates), "export-restore/comes-back-equal"),
    Broken("brings back other positions", of_kind(LosesPositions), "export-restore/comes-back-equal"),
    Broken("restores more than is named", behind(RestoresEverything), "export-restore/only-what-is-named"),
    Broken(
        "stays shut after a failed restore",
        changed(stays_shut_after_a_failed_restore),
        "export-restore/a-failed-restore-leaves-it-open",
    ),
)
