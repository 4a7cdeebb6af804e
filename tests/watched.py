"""Whoever watches, for tests: the OpenTelemetry SDK in memory, and what it got."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, MetricsData, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from participants.open_telemetry import OpenTelemetry

Key = tuple[tuple[str, Any], ...]


@define(eq=False)
class Watched:
    """`telemetry` is the seam; spans stand in the order of their ends, numbers as they are. `extra` gets spans too."""

    extra: SpanProcessor | None = None
    tracers: TracerProvider = field(init=False)
    telemetry: OpenTelemetry = field(init=False)
    _exporter: InMemorySpanExporter = field(factory=InMemorySpanExporter)
    _reader: InMemoryMetricReader = field(factory=InMemoryMetricReader)

    def __attrs_post_init__(self) -> None:
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        if self.extra is not None:
            self.tracers.add_span_processor(self.extra)
        meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.telemetry = OpenTelemetry(self.tracers, meters)

    # --- spans

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def forget(self) -> None:
        """The spans so far are not looked at any more."""
        self._exporter.clear()

    def named(self, name: str, kind: SpanKind | None = None, **attributes: Any) -> list[ReadableSpan]:
        """The spans of that name, of that kind, with these attributes (`server` is `statecore.server`)."""
        wanted = {f"statecore.{key}": value for key, value in attributes.items()}
        return [
            each
            for each in self.spans
            if each.name == f"statecore.{name}"
            and kind in (None, each.kind)
            and all(said(each).get(key) == value for key, value in wanted.items())
        ]

    def one(self, name: str, kind: SpanKind | None = None, **attributes: Any) -> ReadableSpan:
        found = self.named(name, kind, **attributes)
        assert len(found) == 1, (name, [each.name for each in self.spans])
        return found[0]

    def below(self, above: ReadableSpan) -> list[ReadableSpan]:
        """Its children, in the order of their beginnings."""
        found = [each for each in self.spans if each.parent is not None and each.parent.span_id == id_of(above)]
        return sorted(found, key=lambda each: each.start_time or 0)

    # --- numbers

    def numbers(self, name: str) -> dict[Key, Any]:
        """The value of a counter, or (how many, their sum) of a histogram, by attributes without their prefix."""
        return {key: value for metric, key, value in self._points() if metric == f"statecore.{name}"}

    def metrics(self) -> dict[str, set[str]]:
        """Every metric that has a number, with the attributes that any of them has."""
        found: dict[str, set[str]] = {}
        for metric, key, _ in self._points(full=True):
            found.setdefault(metric, set()).update(name for name, _ in key)
        return found

    def _points(self, full: bool = False) -> list[tuple[str, Key, Any]]:
        data = self._reader.get_metrics_data()
        if not isinstance(data, MetricsData):
            return []
        found: list[tuple[str, Key, Any]] = []
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                names = point.attributes or {}
                key = tuple(sorted((name if full else name.rpartition(".")[2], each) for name, each in names.items()))
                if isinstance(point, HistogramDataPoint):
                    found.append((metric.name, key, (point.count, point.sum)))
                elif isinstance(point, NumberDataPoint):
                    found.append((metric.name, key, point.value))
        return found


def said(span: ReadableSpan) -> Mapping[str, Any]:
    """Its attributes."""
    return span.attributes or {}


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)
