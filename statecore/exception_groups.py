"""What exception groups hold, however deep; an exception that is no group holds itself."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["exceptions_in", "single"]


def exceptions_in(error: BaseException) -> Iterator[BaseException]:
    """Every exception in a group of groups, in order."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from exceptions_in(each)
    else:
        yield error


def single(error: BaseException) -> BaseException:
    """The one exception in a group of groups, or the first group that holds more than one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
