"""After a checkpoint is in force and the servers are open: old checkpoints go, and what crashed lives have left. trio.

Rules: participants/files/retention.py decides and deletes; nothing of it fails a checkpoint, what could not be removed
is told and tried again after the next one. It ends before the next checkpoint may begin (S67).
"""

from __future__ import annotations

from functools import partial

from ..files.retention import sweep
from ..records.manifests import CheckpointId
from .life import Life, log


async def delete_what_is_old(life: Life, published: CheckpointId) -> tuple[str, ...]:
    """`published` stays, and what `keep_checkpoints` keeps beside it; returns what could not be removed, and why."""
    work = partial(sweep, life.store, life.seams.disk, published, life.settings.keep_checkpoints)
    swept = await life.disk(work)
    if swept.checkpoints or swept.drafts:
        log.info("%s: deleted %s", published, ", ".join((*swept.checkpoints, *swept.drafts)))
    for problem in swept.problems:
        log.warning("%s: not deleted yet: %s", published, problem)
    return swept.problems
