"""Runs a test on trio and on asyncio, each in a loop of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The async test as two plain tests, `[trio]` and `[asyncio]`; its other arguments stay what they are."""

    def run(*args: Any, loop: str, **kwargs: Any) -> None:
        anyio.run(functools.partial(test, *args, **kwargs), backend=loop)

    signature = inspect.signature(test)
    parameter = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), parameter]
    )
    marked: Callable[..., None] = pytest.mark.parametrize("loop", ["trio", "asyncio"])(run)
    return marked
