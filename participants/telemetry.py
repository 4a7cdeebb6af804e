"""The seam to whoever watches: spans and numbers go out, nothing comes back that a decision is made from.

A shell says what it does (`span`) and how much (`add`, `record`); pure code never does. What is said is declared in
signals.py. Without the OpenTelemetry API nothing is done at all; with it, and without an SDK that somebody has set up,
nothing is recorded and no request is changed. Whatever goes wrong behind this seam harms nobody in front of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Final, Protocol

from statecore.seams import Clock

from .signals import STEP, STEP_SECONDS, Metric, SpanName

Value = str | int | float | bool
Attributes = Mapping[str, Value]
NONE: Final[Attributes] = {}


class Span(Protocol):
    """A span under way."""

    def set(self, name: str, value: Value) -> None:
        """The span has this attribute."""

    def fail(self, kind: str, detail: str) -> None:
        """What the span stands for has failed; `kind` is one of few words, `detail` is for people."""


class Telemetry(Protocol):
    """Where spans and numbers go."""

    def span(
        self, what: SpanName, attributes: Attributes = NONE, *, carrier: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        """A span lasts as long as the block; one that is left by an exception has failed.

        `carrier` are the headers of a request: the span of its sender is above this one, unless something of the same
        trace is already current here.
        """

    def inject(self, headers: MutableMapping[str, str]) -> None:
        """A request with these headers is sent from inside the span that is current here."""

    def apart(self) -> AbstractContextManager[None]:
        """What happens in the block is below no span that is current here: it outlives them."""

    def add(self, what: Metric, amount: int, attributes: Attributes = NONE) -> None:
        """A counter has grown by `amount`."""

    def record(self, what: Metric, value: float, attributes: Attributes = NONE) -> None:
        """`value` was seen."""


class _NoSpan:
    def set(self, name: str, value: Value) -> None:
        pass

    def fail(self, kind: str, detail: str) -> None:
        pass


NO_SPAN: Final[Span] = _NoSpan()
_NO_SPAN_BLOCK: Final = nullcontext(NO_SPAN)


class NoTelemetry:
    """Nobody watches."""

    def span(
        self, what: SpanName, attributes: Attributes = NONE, *, carrier: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        return _NO_SPAN_BLOCK

    def inject(self, headers: MutableMapping[str, str]) -> None:
        pass

    def apart(self) -> AbstractContextManager[None]:
        return nullcontext()

    def add(self, what: Metric, amount: int, attributes: Attributes = NONE) -> None:
        pass

    def record(self, what: Metric, value: float, attributes: Attributes = NONE) -> None:
        pass


@cache
def installed_telemetry() -> Telemetry:
    """Through the OpenTelemetry API if it is installed, else nowhere."""
    try:
        from .open_telemetry import OpenTelemetry
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "opentelemetry":
            raise
        return NoTelemetry()
    return OpenTelemetry()


@contextmanager
def a_step(telemetry: Telemetry, clock: Clock, what: SpanName, attributes: Attributes) -> Iterator[Span]:
    """A span of what a server does for a call, and its duration as a number."""
    began = clock.monotonic()
    try:
        with telemetry.span(what, attributes) as span:
            yield span
    finally:
        step = what.name.rpartition(".")[2]
        telemetry.record(STEP_SECONDS, clock.monotonic() - began, {STEP: step, **attributes})
