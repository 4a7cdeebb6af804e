"""How a server takes part: configuration, read once and checked when the server is made.

Checkpointing is off by default, and off means unchanged behaviour (I76). On, without a token or a root, a server
refuses to start and names what is missing (S28). docs/reference/protocol.md sections 5 and 14.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import evolve, field, fields, frozen

from statecore import StatecoreError
from statecore.errors import WireError
from statecore.journal import MAX_LINE_BYTES, Journal
from statecore.seams import Clock, Disk, Entropy, SystemClock, SystemDisk, SystemEntropy
from statecore.wire import parse

from .journals.files import FILE_BYTES, FILES_KEPT, FileJournal
from .telemetry import Telemetry, installed_telemetry

TOKEN_VARIABLE: Final = "NEMO_GYM_CHECKPOINT_CONTROL_TOKEN"
PREFIX: Final = "STATECORE_"


class SettingsError(StatecoreError):
    """The configuration cannot work; the message names the setting and the mend."""


@frozen
class Seams:
    """What a server or a coordinator reaches the world through; tests hand in their own.

    With a `journal` every step of their machines is a line of it.
    """

    clock: Clock = field(factory=SystemClock)
    disk: Disk = field(factory=SystemDisk)
    entropy: Entropy = field(factory=SystemEntropy)
    telemetry: Telemetry = field(factory=installed_telemetry)
    journal: Journal | None = None


@frozen(kw_only=True)
class Settings:
    """The `checkpoint:` section of a server's configuration.

    `root`: the only directory below which parts are read and written. `epoch`: the life this process belongs to; with
    `epoch_required` it is born closed and answers no other (section 11). `servers`: the other servers' URLs by name,
    for the clients of sessions and episodes. `journal`: the directory where this process writes down the steps of its
    machines. Sizes are in bytes, times in seconds.
    """

    enabled: bool = False
    control_auth_token: str | None = field(default=None, repr=False)
    lease_grace_seconds: float = 600.0
    root: Path | None = None
    epoch: int | None = None
    epoch_required: bool = False
    max_deadline_s: float = 86_400.0
    closed_answer: str = "hold"
    max_held: int = 20_000
    max_retained_bytes: int = 1 << 30
    max_body_bytes: int = 64 << 20
    max_operations: int = 64
    cookie_secret: str | None = field(default=None, repr=False)
    servers: Mapping[str, str] = field(factory=dict)
    journal: Path | None = None
    journal_file_bytes: int = FILE_BYTES
    journal_files: int = FILES_KEPT

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Settings:
        """Settings from a configuration section; SettingsError for an unknown key or a value of another type."""
        known = {attribute.name for attribute in fields(cls)}
        for name in values:
            if name not in known:
                raise SettingsError(f"checkpoint.{name}: unknown setting; known are {', '.join(sorted(known))}")
        return cls(**{name: _typed(name, value) for name, value in values.items()})  # type: ignore[arg-type]

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, base: Settings | None = None) -> Settings:
        """`base` with every ``STATECORE_<NAME>`` of the environment put over it.

        ``STATECORE_SERVERS`` is a JSON object; true/false, numbers and paths are written plainly.
        """
        environ = os.environ if environ is None else environ
        found: dict[str, Any] = {}
        for attribute in fields(cls):
            text = environ.get(PREFIX + attribute.name.upper())
            if text is not None:
                found[attribute.name] = _from_text(attribute.name, text)
        settings = evolve(base or cls(), **found)
        if settings.control_auth_token is None and TOKEN_VARIABLE in environ:
            settings = evolve(settings, control_auth_token=environ[TOKEN_VARIABLE])
        return settings

    def checked(self) -> Settings:
        """Itself, ready to be used; SettingsError when checkpointing is on and something it needs is missing."""
        if not self.enabled:
            return self
        if not self.control_auth_token:
            raise SettingsError(
                "checkpointing is on and there is no control token: set checkpoint.control_auth_token, or the "
                f"environment variable {TOKEN_VARIABLE} (or {PREFIX}CONTROL_AUTH_TOKEN)"
            )
        if self.root is None:
            raise SettingsError(
                "checkpointing is on and there is no root: set checkpoint.root (or STATECORE_ROOT) to the directory "
                "below which this server may read and write checkpoints"
            )
        if self.epoch_required and self.epoch is None:
            raise SettingsError("epoch_required is set and there is no epoch: start this server through its launcher")
        if self.closed_answer != "hold":
            raise SettingsError(f"closed_answer {self.closed_answer!r} is not supported: only 'hold' is")
        for name in ("lease_grace_seconds", "max_deadline_s", "max_held", "max_retained_bytes", "max_body_bytes"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"checkpoint.{name} must be greater than 0, not {getattr(self, name)}")
        if self.journal_file_bytes < MAX_LINE_BYTES or self.journal_files < 1:
            raise SettingsError(
                f"a journal needs at least one file of {MAX_LINE_BYTES} bytes: "
                f"checkpoint.journal_file_bytes is {self.journal_file_bytes}, journal_files {self.journal_files}"
            )
        return self

    def journal_of(self, process: str, seams: Seams) -> FileJournal | None:
        """The files of the journal of that process, which it closes itself; None without a directory for them, and
        where `seams` have a journal.
        """
        if seams.journal is not None or self.journal is None:
            return None
        return FileJournal(
            seams.disk, seams.clock, self.journal, process,
            file_bytes=self.journal_file_bytes, files_kept=self.journal_files,
        )  # fmt: skip


def control_token(variable: str | None = None, environ: Mapping[str, str] | None = None) -> str | None:
    """The control token that `variable` of the environment holds, or that a server would find there; None if unset."""
    environ = os.environ if environ is None else environ
    if variable is not None:
        return environ.get(variable)
    return environ.get(f"{PREFIX}CONTROL_AUTH_TOKEN", environ.get(TOKEN_VARIABLE))


_BOOL_WORDS = {"true": True, "1": True, "false": False, "0": False}
_BOOLS = {"enabled", "epoch_required"}
_INTEGERS = {
    "epoch", "max_held", "max_retained_bytes", "max_body_bytes", "max_operations",
    "journal_file_bytes", "journal_files",
}  # fmt: skip
_PATHS = {"root", "journal"}
_NUMBERS = {"lease_grace_seconds", "max_deadline_s"}


def _from_text(name: str, text: str) -> object:
    try:
        if name in _BOOLS:
            return _BOOL_WORDS[text.lower()]
        if name in _INTEGERS:
            return int(text)
        if name in _NUMBERS:
            return float(text)
        if name == "servers":
            return _typed(name, parse(text))
    except KeyError as error:
        raise SettingsError(f"{PREFIX}{name.upper()}={text!r}: write one of {', '.join(_BOOL_WORDS)}") from error
    except (ValueError, WireError) as error:
        raise SettingsError(f"{PREFIX}{name.upper()}={text!r} cannot be read: {error}") from error
    return Path(text) if name in _PATHS else text


def _typed(name: str, value: object) -> object:
    if value is None:
        return None
    if name in _PATHS and isinstance(value, (str, Path)):
        return Path(value)
    if name in _BOOLS and type(value) is bool:
        return value
    if name in _INTEGERS and type(value) is int:
        return value
    if name in _NUMBERS and type(value) in (int, float):
        return float(value)  # type: ignore[arg-type]
    if name == "servers" and isinstance(value, Mapping):
        named = {key: url for key, url in value.items() if type(key) is str and type(url) is str}
        if len(named) == len(value):
            return named
    if name in ("control_auth_token", "closed_answer", "cookie_secret") and type(value) is str:
        return value
    wanted = "an object of names and URLs" if name == "servers" else "a string"
    for names, words in ((_BOOLS, "true or false"), (_INTEGERS, "an integer"), (_NUMBERS, "a number")):
        wanted = words if name in names else wanted
    raise SettingsError(f"checkpoint.{name} must be {wanted}, not of type {type(value).__name__}")
