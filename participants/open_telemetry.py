"""The seam `Telemetry` through the OpenTelemetry API: the only module that imports it.

The API alone does nothing; an SDK that the process has set up decides what becomes of it. The W3C header travels on
control calls by the propagator that is set up there. Whatever the SDK, its processors or its exporters raise is logged,
the first time with its traceback, and goes no further: no checkpoint fails because somebody watches it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import Token
from inspect import signature
from typing import Final, ParamSpec, TypeVar

from opentelemetry import context as contexts
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, Meter, MeterProvider
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider

from .signals import CANCELLED, ERROR, METRICS, Kind, Metric, SpanName
from .telemetry import NO_SPAN, NONE, Attributes, Span, Value

SCOPE: Final = "statecore"
KINDS: Final = {Kind.INTERNAL: SpanKind.INTERNAL, Kind.CLIENT: SpanKind.CLIENT, Kind.SERVER: SpanKind.SERVER}

log = logging.getLogger("statecore.telemetry")

P = ParamSpec("P")
T = TypeVar("T")


class _Guard:
    """Calls into the SDK, whose errors are logged and go no further."""

    def __init__(self) -> None:
        self._told = False

    def __call__(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T | None:
        try:
            return call(*args, **named)
        except Exception as error:
            if self._told:
                log.debug("telemetry failed again: %r", error)
            else:
                self._told = True
                log.exception("telemetry failed; what is watched goes on, and later failures are logged at debug level")
            return None


class _Recording:
    def __init__(self, guard: _Guard, span: trace.Span) -> None:
        self._guard = guard
        self._span = span

    def set(self, name: str, value: Value) -> None:
        self._guard(self._span.set_attribute, name, value)

    def fail(self, kind: str, detail: str) -> None:
        self.set(ERROR, kind)
        self._guard(self._span.set_status, Status(StatusCode.ERROR, detail))


def histogram(meter: Meter, what: Metric) -> Histogram:
    """An API that something else has brought may be older than the extra's, and take no advice on buckets."""
    advice = {"explicit_bucket_boundaries_advisory": what.bounds} if what.bounds else {}
    known = signature(meter.create_histogram).parameters
    advice = {name: value for name, value in advice.items() if name in known}
    return meter.create_histogram(what.name, what.unit, what.says, **advice)


def _kind(error: Exception) -> str:
    """The code of a refusal or of a call that failed, else the type."""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else type(error).__name__


class OpenTelemetry:
    """Spans and numbers through the API; the providers are the process's own unless others are given."""

    def __init__(self, tracers: TracerProvider | None = None, meters: MeterProvider | None = None) -> None:
        self._guard = _Guard()
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracers)
        meter = metrics.get_meter(SCOPE, meter_provider=meters)
        self._counters = {
            each.name: meter.create_counter(each.name, each.unit, each.says) for each in METRICS if each.counter
        }
        self._histograms = {each.name: histogram(meter, each) for each in METRICS if not each.counter}

    @contextmanager
    def span(
        self, what: SpanName, attributes: Attributes = NONE, *, carrier: Mapping[str, str] | None = None
    ) -> Iterator[Span]:
        above = self._guard(self._above, carrier) or Context()
        begun = None
        if what.alone or trace.get_current_span(above).get_span_context().is_valid:
            begun = self._guard(
                self._tracer.start_span, what.name, context=above, kind=KINDS[what.kind], attributes=dict(attributes)
            )
        if begun is None:
            yield NO_SPAN
            return
        token: Token[Context] | None = None
        if what.encloses:
            token = self._guard(contexts.attach, trace.set_span_in_context(begun, above))
        span = _Recording(self._guard, begun)
        try:
            yield span
        except Exception as error:
            span.fail(_kind(error), str(error))
            raise
        except BaseException:
            span.set(ERROR, CANCELLED)
            raise
        finally:
            if token is not None:
                self._guard(contexts.detach, token)
            self._guard(begun.end)

    def _above(self, carrier: Mapping[str, str] | None) -> Context:
        """What the new span is below: what is current in this process, or what a request says.

        An instrumented framework has made a span of the same request, which is of its trace; a span of another trace
        was current where the server was started, and has nothing to do with the request.
        """
        here = contexts.get_current()
        if carrier is None:
            return here
        told = propagate.extract(carrier, here)
        sent = trace.get_current_span(told).get_span_context()
        current = trace.get_current_span(here).get_span_context()
        return here if current.trace_id == sent.trace_id else told

    def inject(self, headers: MutableMapping[str, str]) -> None:
        self._guard(propagate.inject, headers)

    @contextmanager
    def apart(self) -> Iterator[None]:
        token = self._guard(contexts.attach, trace.set_span_in_context(trace.INVALID_SPAN))
        try:
            yield
        finally:
            if token is not None:
                self._guard(contexts.detach, token)

    def add(self, what: Metric, amount: int, attributes: Attributes = NONE) -> None:
        self._guard(self._counters[what.name].add, amount, attributes)

    def record(self, what: Metric, value: float, attributes: Attributes = NONE) -> None:
        self._guard(self._histograms[what.name].record, value, attributes)
