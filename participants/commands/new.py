"""`statecore new kind NAME`: a package with table, world, server and tests of a kind of your own; they pass as written.

The files are those of `participants.skeleton` under the new name. Nothing that is there is overwritten. Exit code 0, or
2 where the name or the directory will not do.
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from statecore.cli import UsageError

SKELETON: Final = "participants.skeleton"
FILES: Final = (
    "__init__.py",
    "machine.py",
    "world.py",
    "server.py",
    "test_shelf.py",
    "test_shelf_conform.py",
    "test_shelf_stateful.py",
)
WORD: Final = "shelf"
"""What the skeleton is called; every other word in it stays."""
MAX_NAME: Final = 24
_NAME: Final = re.compile(r"[a-z]([a-z0-9]|_(?!_|\Z))*\Z")


def register(commands: Any) -> None:
    """The command `new` is known to the parser."""
    parser = commands.add_parser("new", help="write the skeleton of a kind of server of your own")
    what = parser.add_subparsers(title="what", metavar="WHAT", required=True)
    kind = what.add_parser("kind", help="a package with table, world, server and tests that pass as written")
    kind.add_argument("name", metavar="NAME", help="its name: a package, a server and a table are called so")
    kind.add_argument("--dir", type=Path, default=Path(), metavar="DIR", help="where the package goes (here)")
    kind.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: the package is there, and standard output says what to do with it."""
    written = write_kind(args.name, args.dir)
    for path in written:
        print(path)
    package = written[0].parent
    inside = f"cd {shlex.quote(str(args.dir))} && " if args.dir != Path() else ""
    print(f"\nEdit {package / 'machine.py'} first. Then, as now:")
    print(f"  {inside}statecore check {args.name}/world.py")
    print(f"  {inside}python -m pytest {args.name}")
    return 0


def write_kind(name: str, directory: Path) -> list[Path]:
    """The files of the new package, which are written; UsageError where that cannot be, and then none is."""
    templates = {file: (files(SKELETON) / file).read_text(encoding="utf-8") for file in FILES}
    check_name(name, templates.values())
    package = directory / name
    if package.exists() or package.is_symlink():
        raise UsageError(f"{package} is there already; nothing is overwritten")
    if importlib.util.find_spec(name) is not None:
        raise UsageError(f"a module {name!r} can be imported already, which the new one would hide: take another name")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=directory) as place:
            made = Path(place) / name
            made.mkdir()
            for file, text in templates.items():
                (made / file.replace(WORD, name)).write_text(renamed(text, name), encoding="utf-8")
            made.rename(package)
    except OSError as error:
        raise UsageError(f"{package} cannot be written: {error.strerror}") from error
    return [package / file.replace(WORD, name) for file in FILES]


def check_name(name: str, templates: Iterable[str]) -> None:
    """Nothing, if a package, a class, a table and a server can be called so; else UsageError."""
    if not _NAME.match(name) or len(name) > MAX_NAME:
        raise UsageError(
            f"{name!r} is no name for a kind: lower-case letters, digits and single underscores between them, "
            f"at most {MAX_NAME}, a letter first"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in sys.stdlib_module_names:
        raise UsageError(f"{name!r} is Python's own; take another name")
    words = {word for text in templates for word in re.findall(r"\w+", text)}
    taken = {spelled(name), name, name.upper()} & words
    if taken and name != WORD:
        raise UsageError(f"the skeleton uses the word {min(taken)!r} for something else; take another name")


def spelled(name: str) -> str:
    """The name of a class: `vector_store` is VectorStore."""
    return "".join(part.capitalize() for part in name.split("_"))


def renamed(text: str, name: str) -> str:
    """A file of the skeleton as one of the kind of that name, which may have the skeleton's word in it."""
    names = {SKELETON: name, WORD: name, WORD.capitalize(): spelled(name), WORD.upper(): name.upper()}
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)
