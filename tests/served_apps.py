"""Applications that tests serve in processes of their own; each function makes one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio

from participants.net.http import ASGIApp, Receive, Scope, Send


class Plain:
    """Answers with what it was born with; `/held` waits for the gate, `/boom` raises."""

    def __init__(self) -> None:
        self.gate = anyio.Event()
        names = ("STATECORE_EPOCH", "STATECORE_EPOCH_REQUIRED", "STATECORE_SERVERS", "OWN")
        self.born = {name: os.environ.get(name) for name in (*names, "NEMO_GYM_CHECKPOINT_CONTROL_TOKEN")}

    def before_shutdown(self) -> None:
        self.gate.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
            return
        if scope["path"] == "/held":
            await self.gate.wait()
        elif scope["path"] == "/boom":
            raise ZeroDivisionError("boom")
        body = json.dumps(self.born | {"pid": os.getpid(), "path": scope["path"]}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    async def lifespan(self, receive: Receive, send: Send) -> None:
        for message in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{message}.complete"})
        print("ended well", file=sys.stderr, flush=True)


def plain() -> ASGIApp:
    return Plain()


def not_an_application() -> ASGIApp:
    return "nothing"  # type: ignore[return-value]


def raises() -> ASGIApp:
    raise LookupError("no token in the configuration")


def fails_to_start() -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError("no root in the configuration")

    return app


def never_ready() -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await anyio.sleep_forever()

    return app


def dies_at_start() -> ASGIApp:
    print("these are my last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def ignores_sigterm_with_a_child() -> ASGIApp:
    """Starts a process of its own that ignores SIGTERM, and writes its pid to the file that CHILD names."""
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    Path(os.environ["CHILD"]).write_text(str(child.pid))
    return Plain()


class Deaf(Plain):
    """Its lifespan does not end, whatever comes."""

    async def lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()


def deaf() -> ASGIApp:
    return Deaf()
