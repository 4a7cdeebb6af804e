#!/usr/bin/env bash
# Makes the virtual environment in which real NeMo Gym servers run: .ci/gym_env.sh DEST PYTHON
# Gym comes without its dependencies; the ones that its servers import are pinned in gym_tests/requirements.txt.
set -euo pipefail
dest=$1
python=$2
version=${GYM_VERSION:-0.7.0}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

rm -rf "$dest"
"$python" -m venv "$dest"
"$dest/bin/python" -m pip install --quiet --requirement "$here/gym_tests/requirements.txt"
# Gym declares a newer patch of Python than its servers need.
"$dest/bin/python" -m pip install --quiet --no-deps --ignore-requires-python "nemo-gym==$version"
"$dest/bin/python" -m pip install --quiet --no-deps --editable "$here"
# Gym asks for the version of Ray when it is imported, and for nothing else of it unless a server starts Ray; before 0.7 it
# imports Ray itself, and before 0.5 what draws profiles too.
if [ "$(printf '%s\n' 0.7 "$version" | sort -V | head -1)" = 0.7 ]; then
    site=$("$dest/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    mkdir -p "$site/ray-0+absent.dist-info"
    printf 'Metadata-Version: 2.1\nName: ray\nVersion: 0+absent\n' > "$site/ray-0+absent.dist-info/METADATA"
else
    "$dest/bin/python" -m pip install --quiet ray gprof2dot pydot
fi
