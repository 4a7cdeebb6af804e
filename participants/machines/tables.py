"""All machines of the protocol by their names: what a journal is held against. Pure."""

from __future__ import annotations

from typing import Any, Final

from statecore import Table

from .attempt import ATTEMPT
from .control import PARTICIPANT
from .deployment import DEPLOYMENT
from .episode_step import EPISODE_STEP
from .gate import GATE
from .handoff import HANDOFF, LEDGER_ENTRY
from .heartbeat import HEARTBEAT
from .model_call import MODEL_CALL, RESPONSE
from .resource_session import RESOURCE_SESSION
from .transaction import TRANSACTION

TABLES: Final[dict[str, Table[Any, Any]]] = {
    table.name: table
    for table in (
        PARTICIPANT, GATE, ATTEMPT, MODEL_CALL, RESPONSE, RESOURCE_SESSION, EPISODE_STEP, TRANSACTION, HANDOFF,
        LEDGER_ENTRY, HEARTBEAT, DEPLOYMENT,
    )
}  # fmt: skip
