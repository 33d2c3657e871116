#!/usr/bin/env bash
# Installs what the tests need, then checks and tests everything. Safe to run again; a second run installs nothing.
#
#   tests/run.sh          everything
#   tests/run.sh PHASE…   some of: fmt clippy docs tests policies e2e conformance clients soak nobody
#
# The soak lasts a minute and always makes the same choices, unless LAZY_MCP_SOAK_SECONDS says how long (then they are
# others each time) or LAZY_MCP_SOAK_SEED which. As root, the tests of ownership and a shorter soak run once more as a
# user who owns nothing: there keepers are alone, where root has cgroups beside them.
#
# Rust, a C++ compiler and a Debian or Ubuntu are taken for granted. Chromium, Node.js and Python come by apt where they
# are missing (as root or with sudo); npm and Python packages go to tests/.deps, outputs to tests/.out, neither is
# committed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PLAYWRIGHT='@playwright/mcp@0.0.79'   # the version that config/broker.toml starts
readonly TYPESCRIPT_SDK='@modelcontextprotocol/sdk@1.32.2'
readonly STYLUA='@johnnymorganz/stylua-bin@2.5.2'
readonly PYTHON_SDK='mcp==2.3.0'

readonly DEPS="$PWD/tests/.deps"
readonly OUT="$PWD/tests/.out"
mkdir -p "$DEPS" "$OUT"
: >"$OUT/skips"

export LAZY_MCP_TEST_RUN="$$"                 # everything that this run starts inherits it or names it
export LAZY_MCP_TEST_DEPS="$DEPS"
export npm_config_cache="$DEPS/npm-cache"      # where the shipped `npx` commands find their packages
export npm_config_update_notifier=false
export INSTA_UPDATE=no                         # a snapshot that differs is a failure, not a file
export LAZY_MCP_TEST_SKIPS="$OUT/skips"        # a line for each test that had nothing to test
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

failures=()
passed=0
failed=0
skipped=0

say() { printf '\n== %s\n' "$*"; }

# phase NAME COMMAND…: runs it, prints its time, and remembers whether it failed.
phase() {
  local name=$1 begin=$SECONDS
  shift
  say "$name"
  if "$@"; then
    printf -- '-- %s: %d s\n' "$name" $((SECONDS - begin))
  else
    printf -- '-- %s: FAILED after %d s\n' "$name" $((SECONDS - begin))
    failures+=("$name")
  fi
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# apt_has COMMAND PACKAGE: installs the package unless the command is there.
apt_has() {
  command -v "$1" >/dev/null || apt_install "$2"
}

apt_install() {
  echo "installing $*"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$OUT/apt.log" 2>&1 ||
    { tail -n 20 "$OUT/apt.log"; return 1; }
}

# once STAMP COMMAND…: runs the command unless it succeeded before with the same words.
once() {
  local stamp="$DEPS/.$1"
  shift
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$*" ] && return
  echo "$*"
  "$@" && echo "$*" >"$stamp"
}

install_all() {
  apt_has c++ g++ &&
    apt_has python3 python3 &&
    { perl -MJSON::PP -e 1 2>/dev/null || apt_install perl; } &&
    { python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv; } &&
    apt_has node nodejs &&
    apt_has npm npm &&
    { command -v google-chrome-stable >/dev/null || apt_has chromium chromium; } &&
    once npm npm install --prefix "$DEPS/npm" --no-save --no-audit --no-fund --loglevel=error "$TYPESCRIPT_SDK" &&
    { once stylua npm install --prefix "$DEPS/stylua" --no-save --no-audit --no-fund --loglevel=error "$STYLUA" ||
      echo "stylua cannot be had here: the form of policies is not checked"; } &&
    once npx npx -y "$PLAYWRIGHT" --version &&
    once venv python3 -m venv "$DEPS/py" &&
    once pip "$DEPS/py/bin/pip" install --quiet --disable-pip-version-check "$PYTHON_SDK"
}

# The soak is no test among others (Cargo.toml), so "all" leaves it out.
build() {
  cargo build --all-targets && cargo build --test soak
}

lint() {
  cargo clippy --all-targets --quiet -- -D warnings && cargo clippy --test soak --quiet -- -D warnings
}

docs() {
  RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --quiet
}

# count LOG: adds up what the runners said about their tests; fails if none ran. A test that found nothing to test here
# has noted that in the file of LAZY_MCP_TEST_SKIPS, and does not count as passed.
count() {
  local ok bad skips=0
  read -r ok bad < <(awk '
    # cargo test: "test result: ok. 12 passed; 0 failed; …"
    /^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) ok += $(i-1); if ($i ~ /^failed/) bad += $(i-1) } }
    # nextest: "Summary [ 3.2s] 12 tests run: 11 passed (1 slow), 1 failed, 2 timed out, 0 skipped"
    /^ *Summary \[/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) ok += $(i-1); if ($i ~ /^failed/ || $i == "timed") bad += $(i-1) } }
    # tests/e2e/run.py and its like, and tests/soak: "e2e: 4 passed, 0 failed"
    /^(e2e|conformance|clients|soak): [0-9]+ passed/ { ok += $2; bad += $4 }
    # lazy-mcp policy test: "policy test: 22 passed, 0 failed"
    /^policy test: / { ok += $3; bad += $5 }
    END { print ok + 0, bad + 0 }' "$1")
  if [ -s "$LAZY_MCP_TEST_SKIPS" ]; then
    skips=$(wc -l <"$LAZY_MCP_TEST_SKIPS")
    echo "not run, $skips of them:"
    cat "$LAZY_MCP_TEST_SKIPS"
    : >"$LAZY_MCP_TEST_SKIPS"
  fi
  ok=$((ok - skips))
  skipped=$((skipped + skips))
  passed=$((passed + ok))
  failed=$((failed + bad))
  [ "$ok" -gt 0 ] || { echo "no test ran"; return 1; }
}

tests() {
  local log="$OUT/tests.log" status=0
  if cargo nextest --version >/dev/null 2>&1; then
    { cargo nextest run --config-file tests/nextest.toml && cargo test --doc --quiet; } 2>&1 | tee "$log" || status=1
  else
    timeout 1200 cargo test --no-fail-fast 2>&1 | tee "$log" || status=1
  fi
  count "$log" && return "$status"
}

# The shipped policies: their tests, their stubs, their form.
policies() {
  local log="$OUT/policies.log" status=0 stylua="$DEPS/stylua/node_modules/.bin/stylua"
  "$TARGET/debug/lazy-mcp" policy check &&
    "$TARGET/debug/lazy-mcp" policy types --check || status=1
  "$TARGET/debug/lazy-mcp" policy test --coverage --junit "$OUT/policies.xml" 2>&1 | tee "$log" || status=1
  if [ -x "$stylua" ]; then
    "$stylua" --config-path policies/stylua.toml --glob '**/*.lua' --check policies || status=1
  fi
  count "$log" && return "$status"
}

e2e() {
  local log="$OUT/e2e.log" status=0
  LAZY_MCP_BINARY="$TARGET/debug/lazy-mcp" timeout 900 python3 tests/e2e/run.py 2>&1 | tee "$log" || status=1
  count "$log" && return "$status"
}

# Failures that the baseline has a reason for are told and do not count.
conformance() {
  local log="$OUT/conformance.log" status=0
  LAZY_MCP_BINARY="$TARGET/debug/lazy-mcp" timeout 900 python3 tests/conformance/run.py 2>&1 | tee "$log" || status=1
  count "$log" && return "$status"
}

# Clients and servers that others make; about 0.5 GB of packages, which it installs itself.
clients() {
  local log="$OUT/clients.log" status=0
  LAZY_MCP_BINARY="$TARGET/debug/lazy-mcp" timeout 900 python3 tests/clients/run.py 2>&1 | tee "$log" || status=1
  count "$log" && return "$status"
}

soak() {
  local log="$OUT/soak.log" status=0 seconds=${LAZY_MCP_SOAK_SECONDS:-60} seed=()
  if [ -n "${LAZY_MCP_SOAK_SEED:-}" ]; then
    seed=(--seed "$LAZY_MCP_SOAK_SEED")
  elif [ -z "${LAZY_MCP_SOAK_SECONDS:-}" ]; then
    seed=(--seed 7)
  fi
  timeout $((seconds + 300)) cargo test --quiet --test soak -- --seconds "$seconds" "${seed[@]}" 2>&1 | tee "$log" || status=1
  count "$log" && return "$status"
}

readonly NOBODY=65534
readonly AS_NOBODY=(ownership ownership_e2e decoys soak)
readonly NOBODY_SOAK_SECONDS=20

# Copies of the programs, because the checkout and the build may lie where nobody can look.
as_nobody() {
  local log="$OUT/nobody.log" status=0 folder name tests=()
  if [ "$(id -u)" -ne 0 ]; then
    echo "this run has no privileges: its tests were it already"
    return 0
  fi
  folder=$(mktemp -d "/tmp/lazy-mcp-test-$LAZY_MCP_TEST_RUN-nobody-XXXXXX")
  for name in "${AS_NOBODY[@]}"; do tests+=(--test "$name"); done
  mkdir "$folder/bin" "$folder/home" "$folder/tmp"
  cargo test --no-run --quiet --message-format=json "${tests[@]}" |
    python3 -c '
import json, shutil, sys
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable"):
        shutil.copy(built["executable"], sys.argv[1] + "/" + built["target"]["name"])' "$folder/bin" || return 1
  cp "$TARGET/debug/lazy-mcp" "$TARGET/debug/fixture-mcp" "$folder/bin/"
  chmod -R a+rX "$folder"
  chown -R "$NOBODY:$NOBODY" "$folder/home" "$folder/tmp"
  : >"$log"
  for name in "${AS_NOBODY[@]}"; do
    local arguments=(--test-threads=4)
    if [ "$name" = soak ]; then arguments=(--seconds "$NOBODY_SOAK_SECONDS" --seed 7 --no-browser); fi
    (cd "$folder/home" && timeout 300 setpriv --reuid "$NOBODY" --regid "$NOBODY" --clear-groups env -i PATH="$PATH" \
      HOME="$folder/home" TMPDIR="$folder/tmp" LAZY_MCP_BINARY="$folder/bin/lazy-mcp" \
      LAZY_MCP_FIXTURE="$folder/bin/fixture-mcp" LAZY_MCP_TEST_RUN="$LAZY_MCP_TEST_RUN" \
      LAZY_MCP_TEST_SKIPS="$folder/home/skips" "$folder/bin/$name" "${arguments[@]}") 2>&1 | tee -a "$log" || status=1
  done
  if [ -f "$folder/home/skips" ]; then cp "$folder/home/skips" "$LAZY_MCP_TEST_SKIPS"; fi
  rm -rf "$folder"
  count "$log" && return "$status"
}

nothing_left() {
  python3 tests/left_running.py check "$OUT/before.json" "$LAZY_MCP_TEST_RUN" "$TARGET" && echo "nothing is left running"
}

wanted() {
  [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " == *" $1 "* ]]
}

only=("$@")
for name in "${only[@]}"; do
  [[ " fmt clippy docs tests policies e2e conformance clients soak nobody " == *" $name "* ]] ||
    { echo "unknown phase '$name': fmt, clippy, docs, tests, policies, e2e, conformance, clients, soak, nobody"; exit 2; }
done

phase install install_all
if [ ${#failures[@]} -gt 0 ]; then exit 1; fi
TARGET=$(cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
readonly TARGET
python3 tests/left_running.py note "$OUT/before.json" "$LAZY_MCP_TEST_RUN" "$TARGET"

if wanted fmt; then phase fmt cargo fmt --check; fi
phase build build
if [[ " ${failures[*]-} " == *" build "* ]]; then
  say "FAILED in: ${failures[*]}"
  exit 1
fi
if wanted clippy; then phase clippy lint; fi
if wanted docs; then phase docs docs; fi
if wanted tests; then phase tests tests; fi
if wanted policies; then phase policies policies; fi
if wanted e2e; then phase e2e e2e; fi
if wanted conformance; then phase conformance conformance; fi
if wanted clients; then phase clients clients; fi
if wanted soak; then phase soak soak; fi
if wanted nobody; then phase 'as nobody' as_nobody; fi
phase 'nothing left' nothing_left

say "all of it: $SECONDS s"
echo "$passed passed, $failed failed, $skipped not run"
if [ ${#failures[@]} -gt 0 ]; then
  echo "FAILED in: ${failures[*]}"
  exit 1
fi
echo "everything passed"
