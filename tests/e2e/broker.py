"""The broker under test, started with the configuration that the project ships and short idle times."""

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import tomllib
import urllib.request
from pathlib import Path

from processes import Process, below, owned, wait_for

PROJECT = Path(__file__).resolve().parent.parent.parent
BINARY = Path(os.environ["LAZY_MCP_BINARY"])
LISTENING = "lazy-mcp listening on "


class Setup:
    """A folder with `broker.toml`: the shipped one with other paths, idle times and, once known, the port."""

    def __init__(self, idle_seconds: int) -> None:
        # Named after the run, so that tests/left_running.py knows its processes from those of another run.
        self.folder = tempfile.TemporaryDirectory(prefix=f"lazy-mcp-e2e-{os.environ.get('LAZY_MCP_TEST_RUN', '')}-")
        self.root = Path(self.folder.name)
        self.config = self.root / "broker.toml"
        self.settings = tomllib.loads((PROJECT / "config/broker.toml").read_text())
        # As deep as where it lies by default: a browser makes sockets below it, whose paths the kernel bounds.
        state = self.root / ".local/state/lazy-mcp"
        self.settings["server"] = {"listen": "127.0.0.1:0", "state_dir": str(state)}
        for backend in self.settings["backends"].values():
            policy = PROJECT / "config" / backend["policy"]
            short = self.root / policy.name
            text, found = re.subn(r"idle_timeout_seconds = \d+", f"idle_timeout_seconds = {idle_seconds}", policy.read_text())
            if found != 1:
                raise AssertionError(f"{policy}: no idle time to shorten")
            short.write_text(text)
            backend["policy"] = str(short)
            backend["catalog"] = str((PROJECT / "config" / backend["catalog"]).resolve())
            # By this its processes are found wherever they go; not every one keeps it, and those descend from one.
            backend.setdefault("env", {})["LAZY_MCP_TEST_FOLDER"] = str(self.root)
        self.write()

    def write(self) -> None:
        self.config.write_text(to_toml(self.settings))

    def run(self, *args: str, limit: float = 300) -> subprocess.CompletedProcess:
        """`lazy-mcp ARGS…` over this configuration."""
        command = [BINARY, "--config", self.config, *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)


class Broker:
    """A broker process. Ended with the `with` block."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.log = open(setup.root / "broker.log", "a")
        self.process = subprocess.Popen(
            [BINARY, "--config", setup.config, "serve"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )
        line = self.process.stdout.readline().strip()
        if not line.startswith(LISTENING):
            self.process.wait(timeout=10)
            raise AssertionError(f"the broker said {line!r}\n{(setup.root / 'broker.log').read_text()}")
        self.url = line.removeprefix(LISTENING).rstrip("/")
        # Its stdout is read to the end, so that it never blocks there.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        # A broker that is started again over this setup is to be found where clients know it.
        setup.settings["server"]["listen"] = self.url.removeprefix("http://")
        setup.write()
        try:
            wait_for("/ready", 20, self.is_ready)
        except AssertionError:
            self.__exit__(AssertionError)
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def below(self) -> list[Process]:
        """Its descendants."""
        return below(self.pid)

    def owned(self, before: list[Process] = ()) -> list[Process]:
        """What runs for it now, wherever it went, and what of `before` still does."""
        return owned(self.pid, str(self.setup.root), before)

    def status(self) -> dict:
        with urllib.request.urlopen(f"{self.url}/status", timeout=5) as answer:
            return json.load(answer)

    def kill(self) -> None:
        """kill -9, and of nothing else."""
        self.process.kill()
        self.process.wait()

    def terminate(self, limit: float = 30) -> int:
        """SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=limit)

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.process.poll() is None:
            try:
                self.terminate()
            except subprocess.TimeoutExpired:
                self.kill()
        self.process.stdout.close()
        self.log.close()
        if kind:
            print("--- the end of broker.log\n" + (self.setup.root / "broker.log").read_text()[-4000:])


def to_toml(table: dict) -> str:
    return "\n".join(_tables(table, [])) + "\n"


def _tables(table: dict, path: list[str]) -> list[str]:
    """TOML of `table`: plain values first, then the tables below it."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"[{'.'.join(path)}]"] if path else []
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += ["", *_tables(value, [*path, _key(key)])]
    return lines


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
