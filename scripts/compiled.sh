#!/usr/bin/env bash
# Make build/compiled, a copy of this checkout in which `rock` is compiled, with the Python in $1, which has what
# `make setup` installs. Compiled anew only if something changed that goes into the package, copied anew only if
# anything did.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1 place=build/compiled wheel=build/compiled-wheel
package=(rock pyproject.toml hatch_build.py scripts/compile.py)

# The files that git knows or would add, as they are here, with a zero byte after each.
files() {
    git -c safe.directory='*' ls-files -z --cached --others --exclude-standard -- "$@" |
        sort -zu | while IFS= read -r -d '' path; do
        [ ! -e "$path" ] || printf '%s\0' "$path"
    done
}

# A digest of these files and of the interpreter.
digest() {
    { "$python" -VV; files "$@" | xargs -0 sha256sum; } | sha256sum
}

wanted=$(digest "${package[@]}")
if [ "$(cat "$wheel/stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "compiling (a minute or two)" >&2
    rm -rf "$wheel"
    ROCK_COMPILE=1 "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation --wheel-dir "$wheel" .
    echo "$wanted" >"$wheel/stamp"
    echo "compiled in $SECONDS s" >&2
fi

everything=$(digest .)
[ "$(cat "$place/.stamp" 2>/dev/null)" != "$everything" ] || exit 0
rm -rf "$place" "$place.new"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
    --target "$place.new" "$wheel"/*.whl
files . | tar --create --null --files-from - | tar --extract --directory "$place.new"
echo "$everything" >"$place.new/.stamp"
mv "$place.new" "$place"
