"""Who keeps a server from being ready is named, by rollout and reason (S10)."""

from __future__ import annotations

from typing import Final

from ..check import Group, check
from ..said import NotConforming, Said
from ..subject import Json, Subject

WRITTEN: Final = "protocol.md section 5"


@check(Group.BLOCKERS, WRITTEN, "S10", "I20")
async def are_named(server: Subject) -> None:
    """A prepare that is not ready in time names the execution that it waits for, in its answer and in every status;
    when that has ended, the same prepare is ready.
    """
    checkpoint_id = server.new_id()
    async with server.blocking() as episode:
        said = await server.call("prepare", checkpoint_id, within_s=server.rules.moment_s)
        said.ok(phase="preparing")
        _named(said, said.body.get("report"), episode.key)
        status = (await server.status()).ok(phase="preparing", checkpoint_id=checkpoint_id)
        _named(status, status.body.get("report"), episode.key)
    said = (await server.call("prepare", checkpoint_id, within_s=30.0)).ok(phase="prepared")
    report = said.body.get("report")
    if not isinstance(report, dict) or report.get("blockers") or not report.get("ready"):
        raise said.differs("a report that is ready, without blockers")


@check(Group.BLOCKERS, WRITTEN, "S10")
async def nobody_is_named_in_vain(server: Subject) -> None:
    """A quiet server reports that it is ready and names nobody."""
    said = await server.prepared(server.new_id())
    report = said.body.get("report", {})
    if report.get("ready") is not True or report.get("blockers") != [] or report.get("blocker_count") != 0:
        raise said.differs("ready true, blockers [], blocker_count 0")


def _named(said: Said, report: Json | None, key: str) -> None:
    if not isinstance(report, dict) or report.get("ready") is not False:
        raise said.differs("a report with ready false")
    blockers, number = report.get("blockers"), report.get("blocker_count")
    if not isinstance(blockers, list) or key not in blockers or number != len(blockers):
        raise said.differs(f"{key} among the blockers, and their number")
    for each in report.get("blocker_details", []):
        if not each.get("reason"):
            raise NotConforming(said.sent, f"blocker {each}", "a blocker with a reason")
