"""From which states a good one can be reached by steps that are allowed: backward search, without keeping the graph.

Most states are settled by going through all of them once from the last to the first and once the other way, each time
asking whether some allowed step leads to a state that is settled. Only what is left then is searched along edges.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..properties import Property
from .expand import CHUNK, Expander
from .trie import Columns, Ints

__all__ = ["stuck"]

Flags = NDArray[np.bool_]


def stuck(expander: Expander, declared: Property, stopped: Callable[[], bool]) -> int | None:
    """The position of the first state from which the property can never be reached again; None if there is none.

    Steps that are faults are not allowed, nor, if the property names actions, any other ones. None too if `stopped`.
    """
    allowed = [
        number
        for number, (step, _) in enumerate(expander.steps)
        if not step.fault and (declared.by is None or step.name in declared.by)
    ]
    count = expander.states.count
    good = np.ones(count, bool)
    chunks = list(range(0, count, CHUNK))
    for begin in chunks:
        columns = Columns(expander.states.words(begin, min(begin + CHUNK, count)), expander.layout)
        good[begin + expander.false(declared.name, declared, columns)] = False
    for order in (reversed(chunks), chunks):
        changed = False
        for begin in order:
            changed |= _settle(expander, good, begin, min(begin + CHUNK, count), allowed)
            if stopped():
                return None
        if not changed:
            break
    else:
        _search(expander, good, allowed)
    left = np.flatnonzero(~good)
    return int(left[0]) if len(left) else None


def _settle(expander: Expander, good: Flags, begin: int, end: int, allowed: list[int]) -> bool:
    """Whether states of the range were found to be good that were not before."""
    todo = begin + np.flatnonzero(~good[begin:end])
    before = len(todo)
    columns: Columns | None = None
    for number in allowed:
        if not len(todo):
            break
        if columns is None:
            columns = _columns(expander, todo)
        for fired in expander.each(columns, [number]):
            rows, after = _after(expander, columns, fired)
            good[todo[rows[good[after]]]] = True
        left = ~good[todo]
        if np.count_nonzero(left) * 4 < 3 * len(todo):
            todo, columns = todo[left], None
    return int(np.count_nonzero(~good[begin:end])) < before


def _search(expander: Expander, good: Flags, allowed: list[int]) -> None:
    """Whatever is good is marked so, along all the steps out of states that were not."""
    todo = np.flatnonzero(~good)
    sources: list[NDArray[np.int32]] = []
    targets: list[NDArray[np.int32]] = []
    for begin in range(0, len(todo), CHUNK):
        here = todo[begin : begin + CHUNK]
        columns = _columns(expander, here)
        for fired in expander.each(columns, allowed):
            rows, after = _after(expander, columns, fired)
            sources.append(here[rows].astype(np.int32))
            targets.append(after.astype(np.int32))
    if not sources:
        return
    source, target = np.concatenate(sources), np.concatenate(targets)
    fresh = np.unique(source[good[target]])
    order = np.argsort(target, kind="stable")
    source, target = source[order], target[order]
    while len(fresh):
        good[fresh] = True
        first = np.searchsorted(target, fresh, "left")
        lengths = np.searchsorted(target, fresh, "right") - first
        edges = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        before = source[edges]
        fresh = np.unique(before[~good[before]])


def _columns(expander: Expander, positions: Ints) -> Columns:
    words = [column.take(positions) for column in expander.states.columns]
    return Columns(words, expander.layout)


def _after(expander: Expander, columns: Columns, fired: tuple[int, Ints | None, Ints]) -> tuple[Ints, Ints]:
    """The rows from which the step leads on, and the positions of the states that it leads to."""
    number, rows, leaves = fired
    rows = np.arange(columns.count) if rows is None else rows
    leads = ~np.isin(leaves, expander.tries[number].leaves.broken)
    rows, leaves = rows[leads], leaves[leads]
    after = expander.tries[number].leaves.apply(columns.words, rows, leaves, expander.layout)
    return rows, expander.states.find(expander.canonical(after)).astype(np.int64)
