"""The documentation is held against the code: generated pages, links, commands, routes, settings, fields, examples."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from docs import generate
from docs.generators import codes, gym_compatibility, marks
from participants.coordination.life import CoordinatorSettings
from participants.identity import RECEIPT_HEADER
from participants.machines.control import Phase
from participants.records import records
from participants.records.manifests import FileRef, GlobalManifest, GymManifest, Manifest, ParticipantEntry
from participants.servers import agent, agent_records, asgi, environment, resources
from participants.servers.calls import VERBS
from participants.servers.conversation import MODEL_PATHS
from participants.serving.testing import InMemoryNetwork
from participants.settings import PREFIX, TOKEN_VARIABLE, Settings

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
PACKAGES = ("statecore", "participants", "models", "stateful_tests", "tests", "docs")
BLOCK = re.compile(r"(?:<!-- file: (?P<file>[\w./-]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)\n```", re.DOTALL)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> Iterator[tuple[str | None, str]]:
    """(file that it belongs into, text) of each code block in that language."""
    for found in BLOCK.finditer(read(page)):
        if found["language"] == language:
            yield found["file"], found["text"]


# --- what is generated


def test_the_generated_pages_are_what_the_script_writes() -> None:
    """A table, a code or a mark that changed without `make docs` is found here."""
    assert [page_id(path) for path in generate.differing()] == [], "run `make docs`"


def test_a_place_without_a_block_is_an_error() -> None:
    """A renamed example is not left behind as it was, nor silently dropped."""
    assert generate.filled("<!-- begin a -->old<!-- end a -->", {"a": "new"}) == (
        "<!-- begin a -->\nnew\n<!-- end a -->"
    )
    with pytest.raises(ValueError, match="places and blocks differ"):
        generate.filled("no place", {"a": "new"})
    with pytest.raises(ValueError, match="has no <!-- end a -->"):
        generate.filled("<!-- begin a -->", {"a": "new"})


def test_a_code_without_a_meaning_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page of codes cannot fall behind the code."""
    path = tmp_path / "codes.toml"
    path.write_text(read(codes.MEANINGS).replace("\nstale_epoch =", "\nnever_heard_of ="), encoding="utf-8")
    monkeypatch.setattr(codes, "MEANINGS", path)
    with pytest.raises(ValueError, match="do not agree on never_heard_of, stale_epoch"):
        codes.page()


def test_the_page_of_gym_tells_what_was_not_tried_and_what_did_not_start() -> None:
    """Newest version first; an answer that the page has no words for is an error."""
    asked = {"resources_servers/blackjack": {"outlook": "not up", "why": "no port"}}
    new = {"components": asked, "shipped": {"resources_servers": 3}}
    old = {"components": {}, "shipped": {"resources_servers": 2}}
    page = gym_compatibility.made_of({"0.9.0": old, "0.10.0": new})
    assert "| component | 0.10.0 | 0.9.0 |" in page
    assert "| `resources_servers/blackjack` | does not start | never tried |" in page
    assert "- `resources_servers/blackjack` of 0.10.0: `no port`" in page
    assert "| `resources_servers` | 2 of 3 | 2 of 2 |" in page
    with pytest.raises(KeyError, match="guessed"):
        gym_compatibility.made_of({"0.9.0": old | {"components": {"x": {"outlook": "guessed"}}}})


def test_marks_are_read_with_their_ranges() -> None:
    """Docstrings, test names and properties of worlds; a property in a test of worlds is only an example."""
    import ast

    source = '''
def test_s09_x():
    """Holds. Covers: I13-I15, S2."""
def q():
    """S44: no."""
@always(covers=("I65",))
def p(): ...
'''
    tree = ast.parse(source)
    assert sorted(marks.marks(tree, in_a_world=True)) == ["I13", "I14", "I15", "I65", "S2", "S44", "S9"]
    assert "I65" not in set(marks.marks(tree, in_a_world=False))


def test_a_number_is_never_gap_and_later_at_once() -> None:
    """What waits for something unbuilt has a statement; every number has one kind of entry."""
    told = marks.told()
    known = {each for section in told["invariants"].values() for each in section} | set(told["scenarios"])
    assert set(told["later"]) <= known


# --- references


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as they are made from their text."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_resolves(page: Path) -> None:
    """To a file of the repository, and to a heading where one is named."""
    text = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        path = (page.parent / place).resolve() if place else page
        if not path.exists() or (anchor and anchor not in anchors(read(path))):
            broken.append(target)
    assert broken == []


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def test_the_sections_that_code_cites_are_there() -> None:
    """`protocol.md section N` is a promise that somebody can read it."""
    there = {int(each) for each in re.findall(r"^## (\d+)\. ", read(DOCS / "reference/protocol.md"), re.MULTILINE)}
    assert there == set(range(1, 15))
    for path in sources():
        text = read(path)
        cited = re.findall(r"protocol\.md\s+sections?\s+((?:\d+[\d.]*(?:, | and | to )?)+)", text)
        numbers = {int(each.split(".")[0]) for group in cited for each in re.findall(r"\d+[\d.]*", group)}
        assert numbers <= there, page_id(path)


def test_no_page_is_cited_that_is_not_there() -> None:
    """Code refers to pages of this repository, by their path or their name."""
    names = {path.name for path in PAGES}
    for path in sources():
        if path.name not in ("test_docs.py", "machines.py"):
            assert set(re.findall(r"[\w-]+\.md\b", read(path))) <= names, page_id(path)


def test_every_number_that_is_cited_has_a_statement() -> None:
    """I99 in a comment leads to a page that says what it is."""
    told = marks.told()
    known = {each for section in told["invariants"].values() for each in section} | set(told["scenarios"])
    for path in [*(each for each in sources() if each.parent.name != "docs"), *PAGES]:
        if path.name in ("test_docs.py", "test_world.py", "test_properties.py"):
            continue
        cited = set(re.findall(r"(?<![\w\"'-])([IS][1-9]\d?)(?![\w\"'.:-]*[\w\"'])", read(path)))
        assert cited <= known, page_id(path)


def code_lines(text: str) -> Iterator[str]:
    """The lines of shell blocks, and what stands between backticks."""
    for found in BLOCK.finditer(text):
        if found["language"] in ("", "console", "sh"):
            yield from found["text"].splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def test_the_commands_that_are_named_exist() -> None:
    """`make X` is a target, `statecore X` a command, wherever the documentation says so."""
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    commands = {"check", "diagram", "mutate"} | set(project["entry-points"]["statecore.commands"])
    targets = set(re.findall(r"^([a-z-]+):", read(ROOT / "Makefile"), re.MULTILINE))
    for page in PAGES:
        for line in code_lines(read(page)):
            words = line.removeprefix("$ ").split("#")[0].split()
            for word in words[1:] if words[:1] == ["make"] else []:
                if not re.match(r"[A-Z]+=", word):
                    assert word in targets, f"{page_id(page)}: {line}"
                elif '="' in word:
                    break  # arguments with spaces in them
            if words[:1] == ["statecore"] and words[1:] and not words[1].startswith("-"):
                assert words[1] in commands, f"{page_id(page)}: {line}"


# --- reference pages against the code


def rows(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without its head."""
    section = read(DOCS / "reference" / page).split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def default_of(attribute: Any) -> Any:
    if isinstance(attribute.default, attrs.Factory):  # type: ignore[arg-type]
        return attribute.default.factory()
    return attribute.default


def test_every_setting_is_documented_with_its_default() -> None:
    """Name, environment variable and default, in the order of the class."""
    documented = {row[0].strip("`"): row for row in rows("configuration.md", "Servers")}
    assert list(documented) == [attribute.name for attribute in attrs.fields(Settings)]
    for attribute in attrs.fields(Settings):
        row = documented[attribute.name]
        assert f"`{PREFIX}{attribute.name.upper()}`" in row[1], row
        default = default_of(attribute)
        assert row[2] == ("none" if default is None else f"`{default}`"), row
    assert TOKEN_VARIABLE in documented["control_auth_token"][1]


def test_every_bound_of_the_coordinator_is_documented_with_its_default() -> None:
    """As above."""
    documented = {row[0].strip("`"): row[1].strip("`") for row in rows("configuration.md", "Coordinator")}
    expected = {each.name: str(default_of(each)) for each in attrs.fields(CoordinatorSettings)}
    expected["control_retries"] = "Retries()"
    assert documented == expected


def test_every_route_is_documented() -> None:
    """The verbs, what stands beside them, probes, and the paths that a kind treats in its own way."""
    text = read(DOCS / "reference/routes.md")
    for verb in VERBS:
        assert f"`POST /{verb}`" in text
    assert f"Below `{asgi.CONTROL}`" in text
    assert "`GET /status`" in text
    paths = [asgi.CAPABILITIES, asgi.RESULTS, asgi.ACKNOWLEDGE, *asgi.PROBES, environment.RUN_PATH, agent.RUN_PATH]
    paths += [agent.OPEN_PATH, agent.CLOSE_PATH, agent.ACTIVATE_PATH, *resources.SEED_PATHS, resources.VERIFY_PATH]
    for path in [*paths, resources.CLOSE_PATH, *MODEL_PATHS]:
        assert re.search(rf"(?:`|[A-Z]+ ){re.escape(path)}`", text), path
    for method in asgi.READING:
        assert method in text
    for phase in Phase:
        assert phase.wire in text or phase.wire in read(DOCS / "reference/protocol.md")


def test_no_route_is_documented_that_is_not_there() -> None:
    """Every verb of the table is one."""
    table = read(DOCS / "reference/routes.md").split("\n## 2. Control\n", 1)[1].split("\n## 3.", 1)[0]
    assert {each for each in re.findall(r"^\| `POST /(\w+)`", table, re.MULTILINE)} == set(VERBS)


def test_every_field_of_a_file_is_documented() -> None:
    """Of manifests, records, payloads, registry and ledger rows, receipts."""
    text = read(DOCS / "reference/files.md")
    written: list[Any] = [Manifest, FileRef, ParticipantEntry, GymManifest, GlobalManifest, records.Receipt]
    written += [records.RegistryRow, records.LedgerRow, records.ModelRow, records.Position, records.PartRef]
    written += [records.AgentBoundary, records.AgentSessions, records.EnvironmentBoundary, records.ResourcesState]
    written += [*records.RECORD_TYPES.values(), agent_records.KeptSession]
    for cls in written:
        for attribute in attrs.fields(cls):
            if attribute.name != "extra":
                assert re.search(rf"`{attribute.name}`", text), f"{cls.__name__}.{attribute.name}"


def test_every_module_has_its_room() -> None:
    """The page of the architecture names every module of both packages, and no other."""
    text = read(DOCS / "explanation/architecture.md").split("## Rooms", 1)[1].split("Imports go down only", 1)[0]
    named = {word for row in re.findall(r"^\|.*$", text, re.MULTILINE) for word in re.findall(r"`(\w+)`", row)}
    modules = (path for package in ("statecore", "participants") for path in (ROOT / package).rglob("[a-z]*.py"))
    there = {path.stem for path in modules if path.parent.name != "demo"}
    assert named - {"DefinitionError", "Refused", "WireError", "statecore", "participants", "transitions"} == there


def test_the_readme_explains_the_line_that_its_picture_shows() -> None:
    """Every piece that is explained stands in the picture's last line."""
    picture = " ".join(re.findall(r">([^<>]+)</text>", read(DOCS / "images/demo.svg"))).replace("&#160;", " ")
    pieces = re.findall(r"^\| `([^`]+)` \|", read(ROOT / "README.md"), re.MULTILINE)
    assert len(pieces) == 5
    line = " ".join(picture[picture.index("turns redone:") :].split())
    for piece in pieces:
        assert piece in line


# --- examples run


RUN_STATECORE = """
import sys, tomllib
from importlib.metadata import EntryPoint
import statecore.cli as cli
found = tomllib.load(open({pyproject!r}, "rb"))["project"]["entry-points"]["statecore.commands"]
cli.entry_points = lambda group: [EntryPoint(name, value, group) for name, value in found.items()]
sys.exit(cli.main(sys.argv[1:]))
"""


def run_line(line: str, directory: Path) -> str:
    """What a command of a console block prints; `statecore` and `python` are this project's and this Python."""
    program, *arguments = shlex.split(line)
    if program == "statecore":
        code = RUN_STATECORE.format(pyproject=str(ROOT / "pyproject.toml"))
        command = [sys.executable, "-c", code, *arguments]
    else:
        command = [sys.executable if program == "python" else program, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def shape(text: str) -> list[str]:
    """The lines of an output without what differs from run to run: numbers, attempts, widths."""
    return [re.sub(r"\d+(\.\d+)?", "#", re.sub(r"-a\d+\b", "", " ".join(line.split()))) for line in text.splitlines()]


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    """Its files, its commands in order: the sums of an undisturbed run, and no turn that the checkpoint held ran again.

    Covers: I57
    """
    page = DOCS / "tutorial.md"
    for name, text in blocks(page, "python"):
        assert name is not None
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    outputs = {}
    for _, text in blocks(page, "console"):
        line, *shown = text.removeprefix("$ ").splitlines()
        if line.startswith(("git", "make")):
            continue
        outputs[line] = run_line(line, tmp_path)
        if "inspect" not in line:
            assert set(shape("\n".join(shown))) == set(shape(outputs[line])), line
    assert outputs["python run.py second"].splitlines()[-1] == "{'r0': 3, 'r1': 6, 'r2': 10, 'r3': 15}"
    held = dict(re.findall(r"^ +(r\d) .*continues it +(\d+) ", outputs[
        "statecore inspect checkpoints/ck-000001-000002"], re.MULTILINE))  # fmt: skip
    again = re.findall(r"^(r\d)-a1 has taken turn (\d+)$", read(tmp_path / "logs/agent.log"), re.MULTILINE)
    assert held
    assert {rollout: min(int(turn) for name, turn in again if name == rollout) for rollout in held} == {
        rollout: int(turns) + 1 for rollout, turns in held.items()
    }


HOW_TOS = sorted((DOCS / "how-to").glob("*.md"))


@pytest.mark.parametrize("page", HOW_TOS, ids=page_id)
def test_the_examples_of_a_how_to_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks of a page, one after the other, as one module; what is a file of its own can be imported."""
    source = "\n\n".join(text for _, text in blocks(page, "python"))
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in blocks(page, "python"):
        if name is not None and "/" not in name:
            (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    path = tmp_path / f"{page.stem.replace('-', '_')}.py"
    path.write_text(source, encoding="utf-8")
    exec(compile(source, str(path), "exec"), {"__name__": path.stem})


CHAT = '''
from attrs import frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from participants import Agent, Settings

@frozen
class Chat:
    question: str
    turns: int = 0

    @classmethod
    def start(cls, task):
        return cls(task["question"])

    async def turn(self, model, tools):
        return Chat(self.question, self.turns + 1)

    @property
    def done(self):
        return self.turns == 3

    @property
    def result(self):
        return {"question": self.question, "turns": self.turns}

'''
"""What the README's example takes for granted."""


@pytest.mark.trio
async def test_the_readme_s_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off it is the application itself, on it answers with a receipt."""
    (text,) = (text for _, text in blocks(ROOT / "README.md", "python"))
    body = {"task": {"question": "why"}, "episode_id": {"rollout_id": "p1"}}
    for enabled in ("false", "true"):
        monkeypatch.setenv("STATECORE_ENABLED", enabled)
        monkeypatch.setenv("STATECORE_ROOT", "/checkpoints")
        monkeypatch.setenv("STATECORE_CONTROL_AUTH_TOKEN", "token")
        names: dict[str, Any] = {"__name__": "readme"}
        exec(CHAT + text, names)
        async with InMemoryNetwork() as network:
            url = await network.start("agent", names["app"], lifespan=enabled == "true")
            async with network.client() as client:
                reply = await client.post(f"{url}/run", json=body)
        assert reply.json() == {"question": "why", "turns": 3}
        assert (RECEIPT_HEADER in reply.headers) is (enabled == "true")
