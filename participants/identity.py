"""Who: rollouts, attempts, capture keys, and where they travel on the wire.

Rules (docs/reference/protocol.md section 3): a rollout id is one logical rollout for life; an attempt is one more at
every dispatch, retry or restore; the capture key is injective over both (I4). Identities that disagree are refused and
never rewritten (I5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from attrs import frozen

from statecore import WireError
from statecore.wire import converter

RUN_PREFIX: Final = "/ng-rollout/"
TOKEN_CAPTURE_PREFIX: Final = "/training-token-capture"
MAX_ROLLOUT_ID_LENGTH: Final = 128
MAX_DIGITS: Final = 18
"""So many digits has a number in a header at most."""

ROLLOUT_ID_HEADER: Final = "x-nemo-gym-rollout-id"
ATTEMPT_HEADER: Final = "x-nemo-gym-attempt-index"
MODEL_CALL_HEADER: Final = "x-nemo-gym-model-call-id"
PARENT_CALL_HEADER: Final = "x-nemo-gym-parent-call-id"
OPERATION_HEADER: Final = "x-nemo-gym-operation-id"
TRY_HEADER: Final = "x-statecore-try"
REFUSED_HEADER: Final = "x-statecore-refused"
REVISION_HEADER: Final = "x-nemo-gym-resource-state-revision"
POSITION_HEADER: Final = "x-statecore-position"
SESSION_HEADER: Final = "x-statecore-session"
ACCESSES_HEADER: Final = "x-statecore-accesses"
EPOCH_HEADER: Final = "x-statecore-epoch"
INCARNATION_HEADER: Final = "x-statecore-incarnation"
RECEIPT_HEADER: Final = "x-ng-result-receipt"
VERIFY_HEADER: Final = "x-ng-checkpoint-verify"
RESTART_HEADER: Final = "x-ng-checkpoint-restart"
ACTIVATION_HEADER: Final = "x-ng-agent-activation"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_ATTEMPT_SUFFIX = re.compile(r"-a([1-9][0-9]*)\Z")


class IdentityMismatch(ValueError):
    """Two places of one request name different executions (I5); the request changes nothing."""


def check_rollout_id(text: str) -> str:
    """Return `text` unchanged: it is a rollout id (section 3).

    Raises ValueError with the reason when it is empty, longer than 128 characters, holds a character outside
    ``[A-Za-z0-9._-]``, starts with a mark, or ends like an attempt (``-a<N>``).
    """
    if len(text) > MAX_ROLLOUT_ID_LENGTH:
        raise ValueError(f"a rollout id has at most {MAX_ROLLOUT_ID_LENGTH} characters, this one {len(text)}")
    if not _NAME.match(text):
        raise ValueError(f"{text!r} is not a valid rollout id")
    if _ATTEMPT_SUFFIX.search(text):
        raise ValueError("rollout_id must not end with the reserved attempt suffix '-a<N>'")
    return text


@frozen(order=True)
class EpisodeId:
    """One execution: a rollout and which attempt of it.

    `attempt` counts from 0. Raises ValueError for an invalid rollout id or a negative attempt.
    """

    rollout_id: str
    attempt: int = 0

    def __attrs_post_init__(self) -> None:
        check_rollout_id(self.rollout_id)
        if self.attempt < 0:
            raise ValueError(f"an attempt is 0 or more, not {self.attempt}")

    @property
    def key(self) -> str:
        """The capture key: the rollout id for attempt 0, else ``<rollout id>-a<attempt>``."""
        return self.rollout_id if self.attempt == 0 else f"{self.rollout_id}-a{self.attempt}"

    @classmethod
    def from_key(cls, key: str) -> EpisodeId:
        """The execution that a capture key names; ValueError when it is none."""
        return _from_key(key)

    @property
    def successor(self) -> EpisodeId:
        """The attempt that a restore makes of this one."""
        return EpisodeId(self.rollout_id, self.attempt + 1)


@lru_cache(maxsize=16_384)
def _from_key(key: str) -> EpisodeId:
    """Remembered: every call of an execution names it again."""
    found = _ATTEMPT_SUFFIX.search(key)
    return EpisodeId(key) if found is None else EpisodeId(key[: found.start()], int(found.group(1)))


def highest_attempts(episodes: Iterable[EpisodeId]) -> dict[str, int]:
    """Per rollout the highest attempt among `episodes`: what a `retire` of them covers, it and all below (I8)."""
    return {episode.rollout_id: episode.attempt for episode in sorted(episodes)}


def with_prefix(episode: EpisodeId, path: str) -> str:
    """`path` as a call of `episode`: ``/ng-rollout/<capture key>/...``."""
    return f"{RUN_PREFIX}{episode.key}{path}"


def split_prefix(path: str) -> tuple[EpisodeId | None, str]:
    """The execution that a path names, and the path behind its prefix; (None, path) when it has no prefix.

    Raises ValueError when there is a prefix and its key is malformed.
    """
    if not path.startswith(RUN_PREFIX):
        return None, path
    key, slash, rest = path[len(RUN_PREFIX) :].partition("/")
    rest = slash + rest
    if rest.startswith(TOKEN_CAPTURE_PREFIX + "/"):
        rest = rest[len(TOKEN_CAPTURE_PREFIX) :]
    return EpisodeId.from_key(key), rest or "/"


def from_headers(headers: Mapping[str, str]) -> EpisodeId | None:
    """The execution that the identity headers name (keys in lower case), or None; ValueError if they are malformed."""
    rollout_id = headers.get(ROLLOUT_ID_HEADER)
    attempt = headers.get(ATTEMPT_HEADER)
    if rollout_id is None:
        if attempt is not None:
            raise ValueError(f"{ATTEMPT_HEADER} without {ROLLOUT_ID_HEADER}")
        return None
    return EpisodeId(rollout_id, _attempt(attempt or "0"))


def from_body(body: object, *, strict: bool = True) -> EpisodeId | None:
    """The execution that a JSON body names by `episode_id` or by `_ng_rollout_id` and `_ng_attempt_index`, or None.

    Raises ValueError when one of them is malformed, IdentityMismatch when both are there and differ. Unless `strict`,
    an `episode_id` of another form is not ours.
    """
    if not isinstance(body, dict):
        return None
    found: list[EpisodeId] = []
    native = body.get("episode_id")
    if native is not None:
        if isinstance(native, dict) and "rollout_id" in native and not set(native) - {"rollout_id", "attempt"}:
            found.append(EpisodeId(_text(native["rollout_id"]), _count(native.get("attempt", 0))))
        elif strict:
            raise ValueError("episode_id must be an object with rollout_id and, if not 0, attempt")
    legacy = body.get("_ng_rollout_id")
    if legacy is not None:
        found.append(EpisodeId(_text(legacy), _count(body.get("_ng_attempt_index", 0))))
    return agreed(found)


def agreed(found: Iterable[EpisodeId | None]) -> EpisodeId | None:
    """The one execution that all places name which name any; IdentityMismatch when two differ (I5)."""
    result: EpisodeId | None = None
    for episode in found:
        if episode is None:
            continue
        if result is not None and episode != result:
            raise IdentityMismatch(f"the request names both {result.key!r} and {episode.key!r}")
        result = episode
    return result


def _attempt(text: str) -> int:
    if not re.fullmatch(r"0|[1-9][0-9]*", text):
        raise ValueError(f"an attempt is a plain number, not {text!r}")
    return int(text)


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"a rollout id is a string, not {type(value).__name__}")
    return value


def _count(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"an attempt is an integer, not {type(value).__name__}")
    return value


def _from_json(value: Any, _cls: Any) -> EpisodeId:
    """`{"rollout_id", "attempt"}` off the wire, faults at the field they are in."""
    if type(value) is not dict:
        raise WireError.at((), "Input should be a valid dictionary or instance of EpisodeId", "model_type")
    for name in value:
        if name not in ("rollout_id", "attempt"):
            raise WireError.at((name,), "Extra inputs are not permitted", "extra_forbidden")
    if "rollout_id" not in value:
        raise WireError.at(("rollout_id",), "Field required", "missing")
    rollout_id, attempt = value["rollout_id"], value.get("attempt", 0)
    if type(rollout_id) is not str:
        raise WireError.at(("rollout_id",), "Input should be a valid string", "string_type")
    if type(attempt) is not int or attempt < 0:
        raise WireError.at(("attempt",), "Input should be an integer of 0 or more", "int_type")
    try:
        check_rollout_id(rollout_id)
    except ValueError as error:
        raise WireError.at(("rollout_id",), f"Value error, {error}", "value_error") from None
    return EpisodeId(rollout_id, attempt)


converter.register_structure_hook(EpisodeId, _from_json)
