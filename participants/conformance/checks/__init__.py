"""All that is asked of a server, a module for each group; importing this registers every check."""

from . import (
    authentication,
    bad_input,
    blockers,
    deadlines,
    fencing,
    idempotency,
    lease,
    lost_replies,
    phases,
    restoring,
    tombstones,
)

__all__ = [
    "authentication",
    "bad_input",
    "blockers",
    "deadlines",
    "fencing",
    "idempotency",
    "lease",
    "lost_replies",
    "phases",
    "restoring",
    "tombstones",
]
