#!/usr/bin/env python3
"""Says what a test run left running. Exit code 1 if there is anything.

    left_running.py note FILE RUN TARGET    before the run: remember what runs already
    left_running.py check FILE RUN TARGET   after it: list what the run left

A process counts if its environment carries the run's mark (`LAZY_MCP_TEST_RUN=RUN`), if its environment or command
line names a folder of a test of this run, or if its program lies in such a folder or under TARGET, where cargo builds: the
last three find what gave its environment away. What ran before does not count, nor does this process with its ancestors.
"""

import json
import os
import sys
import time
from pathlib import Path

FOLDERS = ("/lazy-mcp-test-{}-", "/lazy-mcp-e2e-{}-")
# A process that was told to end may need a moment; whoever inherits it, another to reap it.
GRACE_SECONDS = 3


def identity(pid: int) -> tuple[int, int, int] | None:
    """Pid, start time and parent; nothing for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (pid, int(fields[19]), int(fields[1]))


def read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def running() -> dict[int, tuple[int, int, int]]:
    found = (identity(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {one[0]: one for one in found if one}


def ancestors(processes: dict[int, tuple[int, int, int]]) -> set[int]:
    pid, own = os.getpid(), set()
    while pid in processes and pid not in own:
        own.add(pid)
        pid = processes[pid][2]
    return own


def left(before: set[tuple[int, int]], run: str, target: str) -> list[str]:
    mark = f"LAZY_MCP_TEST_RUN={run}".encode()
    target = target.rstrip("/") + "/"
    folders = [folder.format(run).encode() for folder in FOLDERS]
    processes = running()
    own = ancestors(processes)
    lines = []
    for pid, started, parent in processes.values():
        if pid in own or (pid, started) in before:
            continue
        command, environment = read(pid, "cmdline"), read(pid, "environ")
        if (
            mark in environment.split(b"\0")
            or any(folder in text for folder in folders for text in (command, environment, program(pid).encode()))
            or program(pid).startswith(target)
        ):
            words = command.replace(b"\0", b" ").decode(errors="replace").strip()
            lines.append(f"{pid:7} {parent:7} {words[:150]}")
    return lines


def main() -> int:
    action, file, run, target = sys.argv[1:]
    if action == "note":
        Path(file).write_text(json.dumps([one[:2] for one in running().values()]))
        return 0
    before = {tuple(one) for one in json.loads(Path(file).read_text())}
    end = time.monotonic() + GRACE_SECONDS
    while (found := left(before, run, target)) and time.monotonic() < end:
        time.sleep(0.1)
    for line in found:
        print(line)
    return 1 if found else 0


sys.exit(main())
