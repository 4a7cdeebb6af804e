"""Bodies of the control calls, as they come over the wire.

Strict: unknown fields are refused. `deadline_ts` alone is lax, a numeric string is a number there and nowhere else;
`stop` of one older line is accepted and ignored (docs/reference/routes.md sections 1 and 2).
"""

from __future__ import annotations

import math
from typing import Any, Final

from attrs import field, frozen

from statecore import WireError
from statecore.wire import converter, items, text

from ..identity import EpisodeId

ID_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"


class Deadline(float):
    """Absolute Unix seconds; on the wire a number or a string that is one."""


def _deadline(value: Any, _cls: Any) -> Deadline:
    if type(value) is str:
        try:
            value = float(value)
        except ValueError:
            problem = "Input should be a valid number, unable to parse string as a number"
            raise WireError.at((), problem, "float_parsing") from None
    if type(value) not in (int, float):
        raise WireError.at((), "Input should be a valid number", "float_type")
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        finite = False
    if not finite:
        raise WireError.at((), "Input should be a finite number", "finite_number")
    return Deadline(value)


converter.register_structure_hook(Deadline, _deadline)


def _checkpoint_id() -> Any:
    return field(validator=text(pattern=ID_PATTERN, min_length=1, max_length=128))


@frozen(kw_only=True)
class VerbCall:
    checkpoint_id: str = _checkpoint_id()
    deadline_ts: Deadline


@frozen(kw_only=True)
class Prepare(VerbCall):
    leave_out: tuple[EpisodeId, ...] = ()


@frozen(kw_only=True)
class Commit(VerbCall):
    checkpoint_dir: str = field(validator=text(min_length=1))
    episode_ids: tuple[EpisodeId, ...] | None = None
    stop: bool = False


@frozen(kw_only=True)
class Restore(VerbCall):
    checkpoint_dir: str = field(validator=text(min_length=1))
    episode_ids: tuple[EpisodeId, ...]


@frozen(kw_only=True)
class Resume(VerbCall):
    pass


@frozen(kw_only=True)
class Renew(VerbCall):
    pass


@frozen(kw_only=True)
class Retire(VerbCall):
    episode_ids: tuple[EpisodeId, ...] = field(validator=items(min_length=1))


@frozen(kw_only=True)
class Forget(VerbCall):
    rollout_ids: tuple[str, ...] = field(validator=items(min_length=1))


VERBS: Final[dict[str, type[VerbCall]]] = {
    "prepare": Prepare,
    "commit": Commit,
    "restore": Restore,
    "resume": Resume,
    "renew": Renew,
    "retire": Retire,
    "forget": Forget,
}
