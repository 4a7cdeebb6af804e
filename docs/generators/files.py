"""Examples for the page of files: a small job runs in memory, and what its checkpoint holds is shown.

One rollout has finished, one stands after its first turn. Digests, ids and signatures get names in the order in which
they come, so that equal ones can be seen to be equal and the page does not change with the dice.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Final

import trio

from participants.coordination.coordinator import Published
from statecore.seams import MemoryDisk
from tests.whole_job import ROOT, WholeJob, run, settle

ID: Final = "ck-000001-000002"
PARTIAL: Final = f".{ID}.partial"
_SIGNED = re.compile(r"\b([0-9a-f]{32})\.[A-Za-z0-9_-]{27}(?![A-Za-z0-9_-])")
_CALL = re.compile(r"\bcall-[0-9a-f]{24}\b")
_HEX = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{16})(?![0-9a-f])")
_SEED: Final = "0" * 32


@cache
def disk() -> MemoryDisk:
    """The disk after the checkpoint."""
    found: list[MemoryDisk] = []

    async def job(whole: WholeJob) -> None:
        whole.turnstile.allow("p1_g0", 2)
        whole.turnstile.allow("p1_g1", 1)
        async with whole.coordinator() as coordinator:
            recovered = await coordinator.recover()
            await coordinator.run_batch(recovered.runnable(whole.dispatches(2, "p1_g0")))
            with trio.CancelScope() as abandoned:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(coordinator.run_batch, recovered.runnable(whole.dispatches(3, "p1_g1")))
                    await settle()
                    outcome = await coordinator.checkpoint()
                    assert isinstance(outcome, Published), outcome.story()
                    assert whole.launcher is not None
                    whole.launcher.kill()
                    abandoned.cancel()
        found.append(whole.disk)

    run(job)
    return found[0]


class Names:
    """Replaces what is random by names: ``<sha256 a>``, ``<id b>``, ``<call c>``."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        text = _SIGNED.sub(lambda found: f"{self._name('id', found[1])}.<signature>", text)
        text = _CALL.sub(lambda found: self._name("call", found[0]), text)
        return _HEX.sub(lambda found: self._hex(found[0]), text)

    def _hex(self, text: str) -> str:
        if text == _SEED:
            return "<32 zeros>"
        return self._name("sha256" if len(text) == 64 else "id", text)

    def _name(self, what: str, text: str) -> str:
        if text not in self._given:
            number = sum(name.startswith(f"<{what} ") for name in self._given.values())
            self._given[text] = f"<{what} {chr(ord('a') + number % 26)}{number // 26 or ''}>"
        return self._given[text]


def blocks() -> dict[str, str]:
    """The blocks of the page by name."""
    names = Names()
    below = f"{ROOT}/{ID}"
    found = {
        "tree": _fenced("", "\n".join(_tree(str(ROOT), 0))),
        "claim": _json_file(f"{ROOT}/epoch-000001.json", names),
        "base": _json_file(f"{ROOT}/epoch-000001.base.json", names),
    }
    for kind, name in (("environment", "env"), ("agent", "simple_agent"), ("resources", "tools"),
                       ("model", "policy_model")):  # fmt: skip
        found[kind] = _first_row(_records(f"{below}/gym/{kind}/{name}"), names)
    found["part-manifest"] = _json_file(f"{below}/gym/resources/tools/manifest.json", names)
    found["registry"] = _rows(f"{below}/coordinator/registry.jsonl", names)
    found["ledger"] = _rows(f"{below}/coordinator/ledger.jsonl", names)
    found["checkpoint"] = _trimmed_checkpoint(f"{below}/checkpoint.json", names)
    found["order-part"] = _order(f"{ROOT}/{PARTIAL}/gym/resources/tools")
    found["order-end"] = _order_of_the_end()
    return found


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _tree(directory: str, depth: int) -> list[str]:
    lines = []
    for name in disk().listdir(directory):
        path = f"{directory}/{name}"
        shown = re.sub(r"[0-9a-f]{64}", "<sha256>", name)
        if disk().kind(path) == "dir":
            lines += [f"{'  ' * depth}{shown}/", *_tree(path, depth + 1)]
        else:
            lines.append(f"{'  ' * depth}{shown}")
    return lines


def _read(path: str) -> Any:
    return json.loads(disk().read(path))


def _json_file(path: str, names: Names) -> str:
    return _fenced("json", names(disk().read(path).decode()))


def _records(directory: str) -> str:
    return next(f"{directory}/{name}" for name in disk().listdir(directory) if name.startswith("records-"))


def _first_row(path: str, names: Names) -> str:
    line = disk().read(path).decode().splitlines()[0]
    return _fenced("json", names(json.dumps(json.loads(line), indent=1)))


def _rows(path: str, names: Names) -> str:
    return _fenced("json", names("\n".join(disk().read(path).decode().splitlines())))


def _trimmed_checkpoint(path: str, names: Names) -> str:
    value = _read(path)
    value["participants"] = value["participants"][:1]
    text = json.dumps(value, indent=1).replace("  }\n ],\n \"policy_version\"", "  },\n  ...\n ],\n \"policy_version\"")
    return _fenced("json", names(text))


def _order(directory: str) -> str:
    """What was done below `directory`, in order."""
    return _fenced("", "\n".join(_steps([each for each in disk().log if each[1].startswith(directory)])))


def _order_of_the_end() -> str:
    """What the coordinator did after the participants had written their parts, `framework/` being the hook's."""
    log = disk().log
    begin = next(i for i, (_, path) in enumerate(log) if path == f"{ROOT}/{PARTIAL}/framework")
    return _fenced("", "\n".join(_steps(log[begin:])))


def _steps(log: list[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    for operation, path in log:
        shown = re.sub(r"\.[0-9a-f]{16}$", ".<random>", re.sub(r"[0-9a-f]{64}", "<sha256>", path))
        relative = str(PurePosixPath(shown).relative_to(ROOT)).replace(PARTIAL, "...")
        line = f"{operation:<9}  {relative}"
        if not lines or lines[-1] != line:
            lines.append(line)
    return lines
