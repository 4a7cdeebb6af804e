"""The server that is asked, and what must be known of it beyond the wire.

The wire says how a server is driven through a checkpoint; it does not say how a rollout comes to it, nor where another
process of the same name is. A `Driver` says that. What a driver does not say is not tried, and is told as such.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from attrs import field, frozen

from ..identity import EpisodeId
from ..settings import Seams
from .said import NotTried

if TYPE_CHECKING:
    from .subject import Subject


@frozen(kw_only=True)
class Target:
    """A running server: its base address and its control token.

    `root` is its checkpoint root, by the path by which the server knows it; `seams.disk` must see the same files there.
    Without one nothing is committed. `transport` is for servers in memory, `seams.clock` must then be theirs. `driver`
    makes its rollouts, if nobody else is named for that.
    """

    url: str
    token: str = field(repr=False)
    root: Path | None = None
    transport: httpx.AsyncBaseTransport | None = field(default=None, repr=False)
    seams: Seams = field(factory=Seams, repr=False)
    driver: Driver | None = field(default=None, repr=False)


class Driver:
    """How rollouts are made on a server. Override what can be said; each method left out leaves checks untried.

    Executions are named by the suite, and are retired and forgotten by it. A method may raise NotTried with a reason.
    """

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        """The execution has state on the server which a checkpoint would hold, and blocks none.

        What has to go on meanwhile belongs into `server.background(...)`.
        """
        raise NotTried("needs a driver with start()")

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        """The answer to a request of the execution that changes something: 2xx if it may, soon, on an open server.

        It may be a first request or a further one of an execution that `start` made.
        """
        raise NotTried("needs a driver with touch()")

    def blocking(self, server: Subject, episode: EpisodeId) -> AbstractAsyncContextManager[None]:
        """Inside of the block the execution does something for which a prepare has to wait."""
        raise NotTried("needs a driver with blocking()")

    def fresh(self) -> AbstractAsyncContextManager[Target]:
        """Inside of the block there is a process of the same kind and name that has served nothing, open.

        It may take the place of the server under test; then it is what stands there afterwards as well.
        """
        raise NotTried("needs a driver with fresh()")
