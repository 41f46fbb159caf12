#!/bin/sh
# Builds .venv from requirements/dev.txt, every package pinned and checked by its hash, and puts the project itself into
# it. Needs a Python of 3.11 or newer and the network; touches nothing outside the checkout. Run by `make setup`.
set -eu
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

# Wheels of the CEL engine exist for these versions; none is built from source here.
usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        usable "$PYTHON" && { printf '%s' "$PYTHON"; return; }
        say "PYTHON=$PYTHON is not a Python 3.11 to 3.14 with venv; name another, or leave it unset."
        return 1
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if usable "$candidate"; then printf '%s' "$candidate"; return; fi
    done
    say "No Python 3.11 to 3.14 with venv was found on PATH; install one (on Debian or Ubuntu also python3-venv)" \
        "or name it: make setup PYTHON=/path/to/python3"
    return 1
}

here=$(pwd -P)
# Downloads are unpacked beside the result, and thrown away with this script.
TMPDIR="$here/.cache/tmp"
export TMPDIR
mkdir -p "$TMPDIR"
trap 'rm -rf "$TMPDIR"' EXIT

stamp=.venv/.ready
moved=no
if [ -e "$stamp" ] && [ "$(cat "$stamp")" != "$here" ]; then moved=yes; fi
rm -f "$stamp"
if [ "$moved" = yes ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || exit 3
    say "Setting up .venv with $("$python" --version): half a minute to two, once."
    "$python" -m venv --clear .venv
else
    say "Bringing .venv up to date with requirements/dev.txt."
fi

# On a terminal, seconds go by while it works.
watched() {
    if [ ! -t 2 ]; then "$@"; return; fi
    "$@" &
    job=$!
    seconds=0
    while kill -0 "$job" 2>/dev/null; do
        printf '\r  %s s' "$seconds" >&2
        sleep 1
        seconds=$((seconds + 1))
    done
    printf '\r        \r' >&2
    wait "$job"
}

pip() { .venv/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check --no-compile "$@"; }

watched pip --require-hashes --only-binary :all: -r requirements/dev.txt || {
    say "The packages of requirements/dev.txt could not be installed (the reason stands above);" \
        "check the network or pip's settings for a mirror, then run make setup again."
    exit 3
}
# The build backend is one of the pinned packages, so nothing more is fetched.
pip --no-deps --no-build-isolation --editable . || {
    say "The project itself could not be installed (the reason stands above)."
    exit 3
}
printf '%s' "$here" >"$stamp"
