"""Help for tests: of tables and worlds here, of running code in `statecore.testing.stateful`.

`agreement` holds a table against `transitions` on every cell. `repeated_keys` finds cells that are written twice.
"""

from ..engine import agreement
from .sources import assert_no_repeated_keys, repeated_keys

__all__ = ["agreement", "assert_no_repeated_keys", "repeated_keys"]
