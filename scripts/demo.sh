#!/usr/bin/env bash
# From a bare Debian or Ubuntu machine to a streamed answer: installs what is missing, builds graft, gets a small
# real model, serves it, asks one question, and leaves the server running until Ctrl-C.
#   --once     stop after the answer
#   --port N   port to serve on (default 8000, or a free one if that is taken)
set -euo pipefail
. "$(dirname "$0")/common.sh"

once=0 port=8000
while [ $# -gt 0 ]; do
  case $1 in
  --once) once=1 ;;
  --port) port=${2:?--port needs a number}; shift ;;
  *) die "unknown option $1 (--once, --port N)" ;;
  esac
  shift
done

say "Packages"
install_build_packages
use_recent_cmake

say "Build"
configure_and_build "$root/build/release" -DCMAKE_BUILD_TYPE=Release -DGRAFT_TESTS=OFF
note "$root/build/release/gateway/graft ($("$root/build/release/gateway/graft" --version))"

say "Model"
fetch_model

say "Serve"
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
  note "port $port is taken, using a free one"
  port=0
fi
log=$(mktemp)
"$root/build/release/gateway/graft" serve "$model" --served-model-name SmolLM2-135M-Instruct --port "$port" --no-access-log 2>"$log" &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null; rm -f "$log"' EXIT
trap 'exit 130' INT TERM
for _ in $(seq 200); do
  grep -q 'ready in' "$log" && break
  kill -0 $server 2>/dev/null || { cat "$log" >&2; die "the server did not start"; }
  sleep 0.1
done
url=$(sed -n 's/.*ready in .*: \(http[^ ]*\)$/\1/p' "$log")
[ -n "$url" ] || { cat "$log" >&2; die "the server did not become ready"; }
sed 's/^/    /' "$log"

say "One completion, streamed"
python3 "$root/scripts/demo_ask.py" "$url" "The capital of France is"

if [ $once = 1 ]; then exit 0; fi
say "The server goes on at $url until Ctrl-C"
cat <<TXT
    Try it from another terminal:
      curl -N $url/chat/completions -H 'Content-Type: application/json' -d '{
        "messages": [{"role": "user", "content": "Name three rivers."}], "stream": true}'
TXT
wait $server
