#!/usr/bin/env python3
"""Measures the broker against a floor, side by side in one run, and prints ratios.

The floor is a bare HTTP-to-stdio bridge without sessions, limits or policies. Both stand in front of the same very
fast stdio server, and the same load driver asks both, in turns, so that whatever else the machine does falls on both.
Ratios are what counts; absolute times say more about the machine.

    benches/compare.py --tools DIR [--broker FILE] [--rounds N] [--quick]

DIR holds the programs `floor`, `echo-mcp` and `mcp-load`; FILE is a release build of lazy-mcp.
"""

import argparse
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def stat(pid):
    text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()


def tree(pid):
    """The process and all below it."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                children.setdefault(int(stat(entry.name)[1]), []).append(int(entry.name))
            except (OSError, ValueError):
                pass
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def cpu_seconds(pid):
    total = 0
    for member in tree(pid):
        try:
            fields = stat(member)
            total += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return total / TICK


def rss_mib(pid):
    return int(stat(pid)[21]) * PAGE / 2**20


def rollup(pid, key):
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


class Server:
    """Something that serves MCP on loopback; stopped with SIGTERM and waited for."""

    def __init__(self, name, argv, url, env=None):
        self.name, self.url = name, url
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        self.pid = self.process.pid

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Bench:
    def __init__(self, args):
        self.tools = pathlib.Path(args.tools).resolve()
        self.broker = str(pathlib.Path(args.broker).resolve())
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="lazy-mcp-bench-"))
        self.rounds, self.quick = args.rounds, args.quick
        self.rows = []

    def echo(self, tools, size):
        return [str(self.tools / "echo-mcp"), "--tools", str(tools), "--catalog-bytes", str(size)]

    def floor(self, tools, size, constant=False, threads=2):
        port = free_port()
        argv = [str(self.tools / "floor"), "--port", str(port), "--threads", str(threads)]
        argv += ["--constant-calls"] if constant else []
        return Server("floor", argv + [" ".join(self.echo(tools, size))], f"http://127.0.0.1:{port}/mcp")

    def config(self, name, tools, size, backends=1, policy="", scope="singleton"):
        """A configuration with `backends` copies of the echo server; its catalogs are captured once."""
        root = self.dir / name
        root.mkdir(exist_ok=True)
        port = free_port()
        text = f'[server]\nlisten = "127.0.0.1:{port}"\nstate_dir = "state"\n'
        for i in range(backends):
            argv = self.echo(tools, size)
            text += f'[backends.echo{i}]\ncommand = "{argv[0]}"\nargs = {json.dumps(argv[1:])}\n'
            text += f'catalog = "echo{i}.json"\npolicy = "echo.lua"\npackage = {{ name = "echo", version = "1" }}\n'
        (root / "broker.toml").write_text(text)
        (root / "echo.lua").write_text(
            f'return broker.backend {{ api = 1, scope = "{scope}", idle_timeout_seconds = 300,\n'
            "  queue = { limit = 1000, wait_seconds = 60 }, max_concurrency = 256,\n" + policy + "}\n"
        )
        for i in range(backends):
            catalog = root / f"echo{i}.json"
            if i == 0:
                subprocess.run(
                    [self.broker, "--config", root / "broker.toml", "catalog", "capture", "echo0"],
                    check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            else:
                shutil.copy(root / "echo0.json", catalog)
        return root / "broker.toml", port

    def lazy(self, config, port):
        argv = [self.broker, "--config", str(config), "serve"]
        return Server("lazy-mcp", argv, f"http://127.0.0.1:{port}/echo0/mcp", dict(os.environ, RUST_LOG="error"))

    def load(self, server, scenario, *more):
        """One run of the load driver; its report, and the CPU that the server's tree took for each request."""
        argv = [str(self.tools / "mcp-load"), "--url", server.url, "--wait-s", "10", scenario, *map(str, more)]
        before = cpu_seconds(server.pid)
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        report["cpu_us"] = (cpu_seconds(server.pid) - before) * 1e6 / max(report.get("requests", 1), 1)
        return report

    def compare(self, what, ours, floor, field, scenario, *more, better="lower", target=None):
        """`rounds` runs of each in turns; the ratio of the medians."""
        a, b = [], []
        for _ in range(self.rounds):
            b.append(self.load(floor, scenario, *more)[field])
            a.append(self.load(ours, scenario, *more)[field])
        ours_median, floor_median = statistics.median(a), statistics.median(b)
        ratio = ours_median / floor_median if floor_median else float("nan")
        self.row(what, f"{ratio:.2f}", target, f"{ours_median:.1f} against {floor_median:.1f}")

    def row(self, what, figure, target, note=""):
        self.rows.append((what, figure, target or "", note))
        print(f"{what:62} {figure:>10}   target {target or '–':8}  {note}", flush=True)



def first_initialize_ms(bench, config, port):
    begun = time.perf_counter()
    server = bench.lazy(config, port)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}}).encode()
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(server.url, body, headers), timeout=5).read()
            return server, (time.perf_counter() - begun) * 1e3
        except OSError:
            if time.perf_counter() - begun > 10:
                raise
            time.sleep(0.0005)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--broker", default="target/release/lazy-mcp")
    parser.add_argument("--shipped", default="config/broker.toml", help="the configuration whose rest is weighed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests")
    bench = Bench(parser.parse_args())
    args = parser.parse_args()
    n = 2000 if bench.quick else 20000

    config, port = bench.config("twenty", 20, 20000)
    ours, floor = bench.lazy(config, port), bench.floor(20, 20000)
    try:
        for server in (ours, floor):
            bench.load(server, "tools_call_echo", "--requests", 500)
        c64 = ("--requests", n, "--concurrency", 64, "--sessions", 16)
        c16 = ("--requests", n, "--concurrency", 16, "--sessions", 16)
        bench.compare("CPU per echo call, 64 concurrent, 16 sessions ÷ floor", ours, floor, "cpu_us", "tools_call_echo", *c64, target="≤ 2.0")
        bench.compare("echo p50, one at a time ÷ floor", ours, floor, "p50_us", "tools_call_echo", "--requests", n // 4, target="≤ 1.5")
        bench.compare("echo calls/s, 16 concurrent, 16 sessions ÷ floor", ours, floor, "req_per_s", "tools_call_echo", *c16, target="≥ 0.6")
        bench.compare("initialize p50 ÷ floor", ours, floor, "p50_us", "initialize", "--requests", n // 10, target="≤ 2")
        bench.compare("1 MiB result p50 ÷ floor", ours, floor, "p50_us", "tools_call_blob", "--size", 1048576, "--requests", 100 if not bench.quick else 20, target="≤ 1.3")
        bench.load(ours, "tools_call_echo", "--requests", 2000)
        before = rss_mib(ours.pid)
        bench.load(ours, "tools_call_echo", "--requests", 20000, "--concurrency", 16, "--sessions", 16)
        bench.row("resident growth over 20,000 calls after 2,000, MiB", f"{rss_mib(ours.pid) - before:.1f}", "≤ 1")
    finally:
        ours.stop()
        floor.stop()

    for tools, size in ((20, 20000), (60, 120000)):
        config, port = bench.config(f"list{tools}", tools, size)
        ours, floor = bench.lazy(config, port), bench.floor(tools, size, constant=True)
        try:
            bench.compare(f"cached tools/list per second, {size // 1000} KB ÷ floor", ours, floor, "req_per_s", "tools_list",
                          "--requests", n, "--concurrency", 16, "--sessions", 16, target="≥ 0.9")
        finally:
            ours.stop()
            floor.stop()

    plain, port_plain = bench.config("plain", 20, 20000)
    ruled, port_ruled = bench.config("ruled", 20, 20000, policy=(
        '  results = { broker.redact_keys { keys = { "cookie", "authorization" } },\n'
        '    broker.redact_text { pattern = [[(?i)\\bbearer\\s+[a-z0-9._-]{16,}]], replace_with = "[redacted]" } },\n'))
    without, rules = bench.lazy(plain, port_plain), bench.lazy(ruled, port_ruled)
    try:
        bench.compare("CPU per call, rules that touch nothing ÷ without policy", rules, without, "cpu_us", "tools_call_echo",
                      "--requests", n, "--concurrency", 64, "--sessions", 16, target="≤ 1.15")
    finally:
        without.stop()
        rules.stop()

    many, port = bench.config("many", 20, 20000, backends=20)
    starts = []
    for _ in range(bench.rounds):
        server, ms = first_initialize_ms(bench, many, port)
        starts.append(ms)
        server.stop()
    bench.row("start to first answered initialize, 20 backends, ms", f"{statistics.median(starts):.1f}", "≤ 25")

    text = pathlib.Path(args.shipped).read_text()
    base = pathlib.Path(args.shipped).resolve().parent
    port = free_port()
    text = text.replace("\n[server]\n", f'\n[server]\nlisten = "127.0.0.1:{port}"\nstate_dir = "{bench.dir}/rest-state"\n', 1)
    text = text.replace('"../', f'"{base.parent}/')
    (bench.dir / "rest.toml").write_text(text)
    rest = bench.lazy(bench.dir / "rest.toml", port)
    try:
        time.sleep(1)  # The figure is of a broker that has been left alone.
        bench.row("resident at rest, shipped configuration, MiB", f"{rss_mib(rest.pid):.1f}", "≤ 10", f"PSS {rollup(rest.pid, 'Pss'):.1f}")
    finally:
        rest.stop()

    config, port = bench.config("sessions", 20, 20000)
    ours, _ = first_initialize_ms(bench, config, port)
    try:
        open_sessions(port, 1)
        before = rss_mib(ours.pid)
        open_sessions(port, 9999)
        bench.row("resident for each idle session of 10,000, KiB", f"{(rss_mib(ours.pid) - before) * 1024 / 9999:.2f}", "≤ 2")
    finally:
        ours.stop()

    added(bench)
    peak(bench)
    cold(bench)
    shutil.rmtree(bench.dir)


def open_sessions(port, count):
    """Sessions that are never ended."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}})
    for _ in range(count):
        connection.request("POST", "/echo0/mcp", body, {"content-type": "application/json", "accept": "application/json, text/event-stream"})
        connection.getresponse().read()


def peak(bench):
    """What relaying a large result costs over rest, at its highest."""
    config, port = bench.config("peak", 20, 20000)
    server = bench.lazy(config, port)
    try:
        bench.load(server, "tools_call_echo", "--requests", 100)
        before = rss_mib(server.pid)
        pathlib.Path(f"/proc/{server.pid}/clear_refs").write_text("5")
        bench.load(server, "tools_call_blob", "--size", 10 * 2**20, "--requests", 5)
        status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
        high = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
        bench.row("peak resident while relaying 10 MiB, over rest ÷ 10 MiB", f"{(high - before) / 10:.2f}", "≤ 3")
    finally:
        server.stop()


def added(bench):
    """What HTTP and relay add to a call, against what the floor adds."""
    config, port = bench.config("added", 20, 20000)
    ours, floor = bench.lazy(config, port), bench.floor(20, 20000)
    direct, a, b = [], [], []
    try:
        for _ in range(bench.rounds):
            argv = [str(bench.tools / "mcp-load"), "--stdio", " ".join(bench.echo(20, 20000)), "tools_call_echo", "--requests", "5000"]
            direct.append(json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)["p50_us"])
            b.append(bench.load(floor, "tools_call_echo", "--requests", 5000)["p50_us"])
            a.append(bench.load(ours, "tools_call_echo", "--requests", 5000)["p50_us"])
        base = statistics.median(direct)
        ours_added, floor_added = statistics.median(a) - base, statistics.median(b) - base
        bench.row("added p50 over direct stdio ÷ the floor's added", f"{ours_added / floor_added:.2f}", "≤ 2.0", f"{ours_added:.0f} against {floor_added:.0f} µs")
    finally:
        ours.stop()
        floor.stop()


def cold(bench):
    """The first call of a stopped backend, less the server's own start, less a warm call."""
    config, port = bench.config("cold", 20, 20000, scope="session")
    server, _ = first_initialize_ms(bench, config, port)
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    extra, keepers = [], []

    def post(connection, body, session=None):
        connection.request("POST", "/echo0/mcp", json.dumps(body), headers | ({"mcp-session-id": session} if session else {}))
        response = connection.getresponse()
        response.read()
        return response.headers.get("mcp-session-id")

    try:
        for i in range(20):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            session = post(connection, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}})
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}}
            times = []
            for _ in range(3):
                begun = time.perf_counter()
                post(connection, call, session)
                times.append((time.perf_counter() - begun) * 1e3)
            begun = time.perf_counter()
            child = subprocess.Popen(bench.echo(20, 20000), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            child.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"b","version":"1"}}}\n')
            child.stdin.flush()
            child.stdout.readline()
            own = (time.perf_counter() - begun) * 1e3
            child.stdin.close()
            child.wait()
            extra.append(times[0] - min(times[1:]) - own)
            if i == 9:
                keepers = [(rss_mib(pid), rollup(pid, "Pss"), rollup(pid, "Private_Dirty")) for pid in tree(server.pid)
                           if pathlib.Path(f"/proc/{pid}/comm").read_text().startswith("lazy-mcp-keep")]
        bench.row("cold first call − server's own start − warm call, ms", f"{statistics.median(extra):.1f}", "≤ 4")
        rss, pss, dirty = (statistics.median(values) for values in zip(*keepers))
        bench.row("resident of one keeper, MiB", f"{rss:.2f}", "≤ 2", f"PSS {pss:.2f}, private {dirty:.2f}")
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
