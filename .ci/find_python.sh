#!/usr/bin/env bash
# Prints the first Python that is new enough and can make a virtual environment, else says what is missing.
set -u

usable() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    candidates=("$PYTHON")
else
    candidates=(python3.11 python3.12 python3.13 python3.14 python3 python)
fi

for candidate in "${candidates[@]}"; do
    if usable "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done

{
    echo "No Python 3.11 or newer that can make a virtual environment was found. Tried:"
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
