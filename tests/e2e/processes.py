"""The process table, read from /proc, as the last word on what runs."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Process:
    pid: int
    """Clock ticks since boot: with the pid it names one process for good."""
    started: int
    ppid: int
    state: str
    """A letter, as ps(1) shows it."""
    command: str
    """As the kernel shows it; empty where the process gave it away, as most of Chrome does."""
    environment: bytes = field(repr=False)

    def mentions(self, folder: str) -> bool:
        return folder in self.command or folder.encode() in self.environment

    @property
    def is_of_browser(self) -> bool:
        """Whether this is any process of a Chromium, its crash handlers included."""
        return "chrom" in self.command.split(" ", 1)[0]

    @property
    def is_browser(self) -> bool:
        """Whether this is the root of a Chromium: its helpers have a --type, its crash handlers another program."""
        program = self.command.split(" ", 1)[0]
        return "chrom" in program and "crashpad" not in program and "--type=" not in self.command


def _read(pid: int) -> Process | None:
    folder = Path("/proc") / str(pid)
    try:
        fields = (folder / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    try:
        environment = (folder / "environ").read_bytes()
    except OSError:
        environment = b""
    return Process(pid, int(fields[19]), int(fields[1]), fields[0], command, environment)


def table() -> dict[int, Process]:
    """Everything that runs, zombies left out."""
    found = (_read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def below(root: int) -> list[Process]:
    """The descendants of `root`, without it."""
    processes = table()

    def descends(process: Process) -> bool:
        seen = set()
        while process and process.pid not in seen:
            seen.add(process.pid)
            if process.ppid == root:
                return True
            process = processes.get(process.ppid)
        return False

    return [process for process in processes.values() if descends(process)]


def owned(broker: int, folder: str, before: list[Process] = ()) -> list[Process]:
    """What belongs to the broker of pid `broker` whose state lies in `folder`: its descendants, all whose environment
    or command line names that folder, and what of `before` still runs."""
    processes = table()
    descendants = {process.pid for process in below(broker)}
    known = {(process.pid, process.started) for process in before}
    return [
        process
        for process in processes.values()
        if process.pid not in (broker, os.getpid())
        and (process.pid in descendants or process.mentions(folder) or (process.pid, process.started) in known)
    ]


def stop(processes: list[Process]) -> None:
    """SIGSTOP to each, and waits until all stand still."""
    for process in processes:
        now = _read(process.pid)
        if now and now.started == process.started:
            os.kill(process.pid, signal.SIGSTOP)

    def stand_still() -> bool:
        found = (_read(process.pid) for process in processes)
        return all(now.state == "T" for now in found if now)

    wait_for("processes to stand still", 5, stand_still)


def describe(processes: list[Process]) -> str:
    return "\n".join(f"{p.pid:7} {p.ppid:7} {p.command[:140]}" for p in processes)


def wait_for(what: str, limit: float, look) -> object:
    """What `look` returns once that is true. Raises after `limit` seconds, saying in words what was waited for."""
    end = time.monotonic() + limit
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit} s for {what}")
        time.sleep(0.02)  # neither the process table nor /status sends an event


def wait_until_none(why: str, limit: float, look) -> float:
    """Seconds until `look` finds no process any more. Raises with the table after `limit` seconds."""
    begin = time.monotonic()
    while left := look():
        if time.monotonic() - begin > limit:
            raise AssertionError(f"{why}: {limit} s later these still run\n{describe(left)}")
        time.sleep(0.02)
    return time.monotonic() - begin
