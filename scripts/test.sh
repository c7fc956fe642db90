#!/usr/bin/env bash
# Every test: installs what the tests need, builds, and runs the unit tests and the tests of the whole server. Without
# a GPU and, once everything is in the cache, without a network.
set -euo pipefail
. "$(dirname "$0")/common.sh"

say "Packages"
install_build_packages libcmocka-dev curl strace
use_recent_cmake

say "Build"
build=${GRAFT_BUILD:-$root/build/test}
configure_and_build "$build" -DCMAKE_BUILD_TYPE=Release -DGRAFT_WERROR="${GRAFT_WERROR:-OFF}"

say "Model"
fetch_model

say "Python clients"
venv=$cache/venv-test
if [ ! -f "$venv/ready-1" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$root/tests/e2e/requirements.txt"
  touch "$venv/ready-1"
else
  note "$venv"
fi

say "Unit tests"
(cd "$build" && GRAFT_TEST_MODEL=$model ctest --output-on-failure -j "$(nproc)" "$@")

say "Whole-server tests"
cd "$root"
GRAFT_TEST_MODEL=$model GRAFT_BIN=$build/gateway/graft "$venv/bin/python" -m unittest discover -v -s tests/e2e -t tests/e2e

say "All tests passed"
