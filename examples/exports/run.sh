#!/usr/bin/env bash
# Runs exports against a server with a ledger, kills a worker and then the server in the middle of one, and shows what was charged.
#
#     examples/exports/run.sh [PROGRAM]        # without PROGRAM: target/release/tidegate
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=${1:-$here/../../target/release/tidegate}
directory=$(mktemp -d)
today=$(date -u +%F)
trap 'kill -9 $(jobs -pr) 2>/dev/null || true; rm -rf "$directory"' EXIT

# The accounts of the ledger and the ids of reservations depend on it: a server that is started again needs the same.
export TIDEGATE_SECRET=a-secret-for-the-example-of-exports

http=127.0.0.1:0 admin=127.0.0.1:0
start_server() {
  # The page of the server before must not be taken for that of this one.
  : >"$directory/page"
  "$program" serve --rules "$here/rules.yaml" --ledger "sqlite:$directory/ledger.db" --reservation-ttl 10 \
    --http "$http" --admin "$admin" --grpc 127.0.0.1:0 >"$directory/page" 2>>"$directory/log" &
  server=$!
  until grep -q '^rules' "$directory/page"; do
    kill -0 "$server" 2>/dev/null || { cat "$directory/log" >&2; exit 1; }
    sleep 0.05
  done
  # The second start is on the same ports.
  http=$(sed -n 's|^check.*http://\([^/]*\)/.*|\1|p' "$directory/page")
  admin=$(sed -n 's|^metrics.*http://\([^/]*\)/.*|\1|p' "$directory/page")
}

worker() { python3 "$here/worker.py" "http://$http" acme "$@"; }
# The same in the background, with its output in a file. `exec`: the process that is killed is the worker itself.
start_worker() {
  (exec python3 "$here/worker.py" "http://$http" acme "$@" >"$directory/$1") &
  pid=$!
  until grep -q reserved "$directory/$1" 2>/dev/null; do
    kill -0 $pid 2>/dev/null || { cat "$directory/$1" "$directory/log" >&2; exit 1; }
    sleep 0.05
  done
}

start_server

echo "== an export uses less than it reserved"
worker first --units 250 --used 240

echo "== an export that fails costs nothing"
worker second --units 250 --fail || true

echo "== three run at a time"
workers=()
for job in third fourth fifth; do
  start_worker $job --units 100 --seconds 2
  workers+=($pid)
done
worker sixth --units 100 || true
for pid in "${workers[@]}"; do wait "$pid"; done
cat "$directory"/{third,fourth,fifth}

echo "== a worker is killed: after ten seconds its slot and its units are free again, and nothing is charged"
start_worker seventh --units 9000 --seconds 60
kill -9 $pid
wait $pid 2>/dev/null || true
worker eighth --units 9000 || true
until worker eighth --units 9000 --used 500 >"$directory/eighth"; do sleep 0.5; done
cat "$directory/eighth"

echo "== the server is killed: the worker commits when it is back"
start_worker ninth --units 100 --seconds 2
kill -9 $server
wait $server 2>/dev/null || true
start_server
wait $pid || { cat "$directory/ninth" "$directory/log" >&2; exit 1; }
cat "$directory/ninth"

echo "== store and ledger agree"
"$program" quota reconcile --admin "http://$admin"
"$program" quota show --tenant acme --from "$today" --admin "http://$admin"
