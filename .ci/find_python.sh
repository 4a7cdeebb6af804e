#!/usr/bin/env bash
# Prints the first Python that is new enough and can make a virtual environment, else says what is missing.
# LEAST names the oldest minor version of Python 3 that will do: LEAST=12 for 3.12.
set -u
LEAST=${LEAST:-11}

usable() {
    "$1" -c "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, $LEAST))" >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    candidates=("$PYTHON")
else
    candidates=()
    for minor in 11 12 13 14; do
        [ "$minor" -ge "$LEAST" ] && candidates+=("python3.$minor")
    done
    candidates+=(python3 python)
    # Interpreters that pyenv has but the shell does not name, the newest first; its shims answer for the chosen one only.
    while IFS= read -r found; do
        candidates+=("$found")
    done < <(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python 2>/dev/null | sort -rV)
fi

for candidate in "${candidates[@]}"; do
    if usable "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done

{
    echo "No Python 3.$LEAST or newer that can make a virtual environment was found. Tried:"
    for candidate in "${candidates[@]}"; do
        if ! command -v "$candidate" >/dev/null; then
            echo "  $candidate: not on PATH"
        elif ! version=$("$candidate" --version 2>&1); then
            echo "  $candidate: does not start"
        else
            echo "  $candidate: $version$("$candidate" -c 'import ensurepip, venv' 2>/dev/null || echo ', without venv or ensurepip')"
        fi
    done
    echo "Install one (with its venv module), or name it: make PYTHON=/path/to/python ..."
} >&2
exit 1
