#!/usr/bin/env bash
# The built wheel stands alone: installed into a fresh venv, both packages import and the demo runs, in an empty directory.
# usage: wheel_check.sh PYTHON      a Python that has `build`
set -euo pipefail

python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "== wheel and sdist"
"$python" -m build --outdir "$work/dist" "$root" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
wheel=$(ls "$work"/dist/statecore-*.whl)

"$python" - "$wheel" "$work"/dist/statecore-*.tar.gz <<'PY'
import sys, tarfile, zipfile

wheel = zipfile.ZipFile(sys.argv[1]).namelist()
tops = {name.split("/")[0] for name in wheel if ".dist-info/" not in name}
assert tops == {"statecore", "participants"}, f"the wheel holds {sorted(tops)}"
for package in tops:
    assert f"{package}/py.typed" in wheel, f"{package}/py.typed is not in the wheel"
sdist = {name.split("/")[1] for name in tarfile.open(sys.argv[2]).getnames() if "/" in name}
missing = {"statecore", "participants", "models", "tests", "stateful_tests", "docs", "benchmarks", "LICENSE"} - sdist
assert not missing, f"the sdist lacks {sorted(missing)}"
print(f"wheel: {len(wheel)} files, {' and '.join(sorted(tops))} only; sdist: {', '.join(sorted(sdist))}")
PY

echo "== a fresh venv"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
mkdir "$work/empty"
cd "$work/empty"
unset PYTHONPATH
"$work/venv/bin/python" - <<'PY'
import importlib.util

import participants
import statecore

for module in (participants, statecore):
    assert "site-packages" in (module.__file__ or ""), module.__file__
for absent in ("models", "tests", "stateful_tests"):
    assert importlib.util.find_spec(absent) is None, f"{absent} came with the wheel"
print("imported statecore and participants")
PY
echo "== statecore without extras lists its commands"
"$work/venv/bin/statecore" --help

echo "== statecore check and pytest, on the world of the how-to, and the recipe for CI"
mkdir models ci
"$python" - "$root"/docs/how-to/{check-your-own-participant-kind,run-checks-in-ci}.md <<'PY'
import pathlib, re, sys

files = re.compile(r"<!-- file: (models/[\w.]+|ci/[\w.-]+|pytest.ini) -->\n```\w+\n(.*?)```", re.DOTALL)
for page in sys.argv[1:]:
    for name, text in files.findall(pathlib.Path(page).read_text(encoding="utf-8")):
        pathlib.Path(name).write_text(text, encoding="utf-8")
PY
"$work/venv/bin/statecore" check models/notes.py
"$work/venv/bin/statecore" new kind drawer
"$work/venv/bin/statecore" check drawer/world.py
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check pytest
"$work/venv/bin/pytest" -q models/ | tee "$work/pytest.out"
grep -q "1 passed" "$work/pytest.out"
PATH="$work/venv/bin:$PATH" sh ci/check-models.sh
grep -q 'name="verdict" value="holds"' found/models.xml

echo "== statecore demo --plain, from the wheel with its extra"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel[demo]"
"$work/venv/bin/statecore" demo --plain
