#!/usr/bin/env python3
"""Measures a forced stop of a real browser: from the order to kill until the proof that nothing is left.

The tree is the real @playwright/mcp, started by `npx` as it is shipped, with a Chromium that has a page open. The
processes around the server (npx, its shell, node) are stopped with SIGSTOP first, so that nobody ends the browser
politely and the whole tree has to be killed while it runs. Then its session is ended.

    reported  `last_cleanup.ms` of /status: from the order to sweep to the proof, instance directory not yet removed
    outside   from the DELETE of the session until none of the processes, the keeper included, is in /proc any more,
              zombies counted as there. It holds the 33 ms between SIGTERM and SIGKILL (the third of `stop_seconds`,
              which is the smallest that there is) as well.

As root the broker has cgroups beside its keepers; run as uid 65534 it has the keepers alone.

    benches/stop_to_proof.py --deps tests/.deps [--broker FILE] [--runs N]

`--deps` is where tests/run.sh has put npm's cache. Exit code 1 when a median is over its target.
"""

import argparse
import http.client
import http.server
import json
import os
import pathlib
import pwd
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PROJECT = pathlib.Path(__file__).resolve().parent.parent
NOBODY = 65534
TARGETS_MS = {"cgroup": 150, "keeper alone": 600}
STOP_SECONDS = 0.1
TERM_MS = 1000 * STOP_SECONDS / 3

POLICY = 'return broker.backend { api = 1, scope = "session", idle_timeout_seconds = 600 }\n'
CONFIG = """\
[server]
listen = "127.0.0.1:0"
state_dir = "state"

[backends.playwright]
command = "npx"
args = ["-y", "{package}", "--headless", "--isolated", "--executable-path", "{chromium}"]
catalog = "playwright.json"
policy = "playwright.lua"

[backends.playwright.env]
npm_config_prefer_offline = "true"
npm_config_update_notifier = "false"
npm_config_cache = "{cache}"

[backends.playwright.deadlines]
polite_seconds = 0
stop_seconds = {stop}
"""


def stat(pid):
    """The fields of /proc/PID/stat from the state on; none of a process that is gone."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def identity(pid):
    fields = stat(pid)
    return fields and (pid, fields[19])


def below(root):
    """Pids of all descendants."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := stat(int(entry))):
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], list(parents.get(root, []))
    while todo:
        found.append(todo.pop())
        todo += parents.get(found[-1], [])
    return found


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"<!doctype html><title>Open</title><link rel=icon href=data:,><h1>A page that is open</h1>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Says nothing."""


class Broker:
    """A broker in a folder of its own, as one user; ended with the `with` block."""

    def __init__(self, args, user):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lazy-mcp-stop-", dir="/tmp"))
        catalog = json.loads((PROJECT / "catalogs/playwright.json").read_text())
        package = f"{catalog['package']}@{catalog['version']}"
        program = self.folder / "lazy-mcp"
        shutil.copy(args.broker, program)
        shutil.copy(PROJECT / "catalogs/playwright.json", self.folder)
        shutil.copytree(pathlib.Path(args.deps) / "npm-cache", self.folder / "npm-cache", symlinks=True)
        (self.folder / "playwright.lua").write_text(POLICY)
        config = CONFIG.format(package=package, chromium=args.chromium, cache=self.folder / "npm-cache", stop=STOP_SECONDS)
        (self.folder / "broker.toml").write_text(config)
        for name in ("state", "home"):
            (self.folder / name).mkdir(mode=0o700)
        ids = {}
        if user is not None:
            subprocess.run(["chown", "-R", f"{user}:{user}", self.folder], check=True)
            ids = {"user": user, "group": user, "extra_groups": []}
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "TMPDIR": "/tmp"}
        self.process = subprocess.Popen(
            [program, "--config", self.folder / "broker.toml", "serve"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=open(self.folder / "log", "w"),
            text=True, env=environment, cwd=self.folder, **ids,
        )
        line = self.process.stdout.readline()
        self.port = int(line.rsplit(":", 1)[1])
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        shutil.rmtree(self.folder)

    def status(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status") as answer:
            return json.load(answer)

    def ask(self, method, body=None, session=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if session:
            headers |= {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        connection.request(method, "/playwright/mcp", json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer, answer.read().decode()

    def open(self, url):
        """A session with a page open in a browser of its own."""
        answer, _ = self.ask("POST", {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}})
        session = answer.headers["mcp-session-id"]
        self.ask("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
        _, text = self.ask("POST", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "browser_navigate", "arguments": {"url": url}}}, session)
        if "Page Title: Open" not in text:
            raise SystemExit(f"no page was opened: {text}\n{(self.folder / 'log').read_text()}")
        return session


def measure(broker, url):
    """Processes without the keeper, milliseconds as reported, milliseconds as seen."""
    session = broker.open(url)
    tree = [process for process in map(identity, below(broker.process.pid)) if process]
    keeper = next(pid for pid, _ in tree if stat(pid)[1] == str(broker.process.pid))
    around = [pid for pid, _ in tree if pid != keeper and stat(pid)[3] == stat(child_of(keeper, tree))[3]]
    for pid in around:
        os.kill(pid, signal.SIGSTOP)
    while not all(stat(pid)[0] == "T" for pid in around):
        time.sleep(0.001)
    proofs = playwright(broker)["proofs"]

    begun = time.perf_counter()
    ending = threading.Thread(target=broker.ask, args=("DELETE", None, session))
    ending.start()
    left = tree
    while left:
        left = [process for process in left if identity(process[0]) == process]
        if time.perf_counter() - begun > 30:
            raise SystemExit(f"still there after 30 s: {left}")
        time.sleep(0.001)
    outside = (time.perf_counter() - begun) * 1000
    ending.join()
    while (backend := playwright(broker))["proofs"] == proofs:
        time.sleep(0.01)
    if not backend["last_cleanup"]["ok"]:
        raise SystemExit(f"not proved: {backend}")
    return len(tree) - 1, backend["last_cleanup"]["ms"], outside


def child_of(keeper, tree):
    return next(pid for pid, _ in tree if stat(pid)[1] == str(keeper))


def playwright(broker):
    return next(backend for backend in broker.status()["backends"] if backend["name"] == "playwright")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deps", required=True)
    parser.add_argument("--broker", default=PROJECT / "target/release/lazy-mcp")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome-stable"))
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    # Whoever is not root already is as little as nobody.
    users = [None, NOBODY] if os.geteuid() == 0 else [None]
    is_met = True
    print(f"forced stop of @playwright/mcp with a page open, {args.runs} runs each; milliseconds")
    for user in users:
        with Broker(args, user) as broker:
            kind = "cgroup" if "cgroup" in broker.status()["broker"]["owner_kinds"] else "keeper alone"
            runs = [measure(broker, url) for _ in range(args.runs)]
        name = pwd.getpwuid(os.geteuid() if user is None else user).pw_name
        processes, reported, outside = zip(*runs)
        target = TARGETS_MS[kind]
        is_met &= statistics.median(reported) <= target
        print(f"{kind}, as {name}: {min(processes)} to {max(processes)} processes")
        for what, values in (("reported", reported), ("outside", outside)):
            print(f"  {what:9} median {statistics.median(values):6.1f}  max {max(values):6.1f}", end="")
            print(f"  target {target}" if what == "reported" else f"  with {TERM_MS:.0f} of waiting after SIGTERM")
    server.shutdown()
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
