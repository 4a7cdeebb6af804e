"""The page of spans, metrics and attributes: what participants/signals.py declares, and nothing besides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from participants.signals import ATTRIBUTES, METRICS, SPANS, Kind, Metric

SPAN_HEAD: Final = "| span | kind | what it stands for | attributes |"
METRIC_HEAD: Final = "| metric | instrument | unit | what | attributes |"
ATTRIBUTE_HEAD: Final = "| attribute | value |"


ABOUT: Final = """
What is told through the OpenTelemetry API where it is installed (`statecore[telemetry]`), to whatever SDK a process has
set up; the instrumentation scope is `statecore`. Without the API nothing is done, and without an SDK nothing is
recorded and no header is sent. [See a checkpoint in your tracing](../how-to/see-a-checkpoint-in-your-tracing.md) sets
one up.
"""
TRACES: Final = """
A checkpoint is one trace over all processes, and so are the recovery of a coordinator and the restart after a death.
Control calls carry the header of the propagator in use (W3C `traceparent` by default) when a span is current; servers
go on below it. Whatever a hook of the trainer does is below the phase that called it. A span has status ERROR and
`error.type` when what it stands for failed; what nobody waited for any more has `error.type` `cancelled` and no status.
"""
CALLED: Final = """
A span of kind *client* is one control call with all its sendings, a span of kind *server* one serving of it: a call
that was sent twice has two below it. Data calls (`/run`, model and tool calls) have no span of ours. There only below
another span, so that a probe every ten seconds is no trace of its own:
"""
COUNTED: Final = """
No attribute names a rollout, a checkpoint or a process. A histogram also counts, so what has one has no counter of its
own; but requests that are held have one, since one that still waits is in no distribution yet.
"""


def page() -> str:
    """The page."""
    return "\n\n".join([
        "# Telemetry",
        ABOUT.strip(),
        "## Traces",
        TRACES.strip(),
        f"{CALLED.strip()}\n{_alone()}.",
        _table(SPAN_HEAD, _spans()),
        "## Metrics",
        COUNTED.strip(),
        _table(METRIC_HEAD, map(_metric, METRICS)),
        "## Attributes",
        _table(ATTRIBUTE_HEAD, (f"| `{name}` | {says} |" for name, says in ATTRIBUTES.items())),
    ]) + "\n"  # fmt: skip


def _alone() -> str:
    names = [f"`{each.name}`" for each in SPANS if not each.alone and each.kind is Kind.CLIENT]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _spans() -> Iterator[str]:
    """A row for each name; what only one kind of span of that name has is marked."""
    for name in dict.fromkeys(each.name for each in SPANS):
        same = [each for each in SPANS if each.name == name]
        common = [each for each in same[0].attributes if all(each in other.attributes for other in same)]
        own = [f"`{each}` ({span.kind})" for span in same for each in span.attributes if each not in common]
        kinds = " and ".join(span.kind for span in same)
        yield f"| `{name}` | {kinds} | {same[0].says} | {', '.join([_names(common), *own])} |"


def _metric(metric: Metric) -> str:
    kind = "counter" if metric.counter else "histogram"
    return f"| `{metric.name}` | {kind} | `{metric.unit}` | {metric.says} | {_names(metric.attributes)} |"


def _names(attributes: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in attributes)


def _table(head: str, rows: Iterable[str]) -> str:
    columns = head.count("|") - 1
    return "\n".join([head, "|" + " --- |" * columns, *rows])
