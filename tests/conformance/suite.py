"""MCP's conformance suite: installing it, running it, reading what it found, and comparing that with a baseline."""

import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

REVISIONS = ("2025-11-25", "2026-07-28")
# The suite needs Node 22; what the system has may be older.
PACKAGES = ("node@22.23.3", "@modelcontextprotocol/conformance@0.2.0-alpha.12")
# Scenarios of an extension that the broker does not offer: it would keep servers awake for tasks nobody asks for again.
NOT_OURS = "tasks-"
PER_SCENARIO_MS = 30_000
# All scenarios of a revision take some seconds; each that hangs takes PER_SCENARIO_MS.
WHOLE_RUN_SECONDS = 600


class Suite:
    def __init__(self, deps: Path) -> None:
        self.prefix = deps / "conformance"
        self.stamp = deps / ".conformance"

    def install(self) -> None:
        """Once for each pair of versions."""
        command = ["npm", "install", "--prefix", str(self.prefix), "--no-save", "--no-audit", "--no-fund", "--loglevel=error", *PACKAGES]
        if self.stamp.exists() and self.stamp.read_text() == " ".join(command):
            return
        print(*command, flush=True)
        self.prefix.mkdir(parents=True, exist_ok=True)
        subprocess.run(command, check=True)
        self.stamp.write_text(" ".join(command))

    @property
    def package(self) -> Path:
        return self.prefix / "node_modules/@modelcontextprotocol/conformance"

    def required(self, revision: str) -> set[str]:
        """The scenarios that a server of this revision has to pass."""
        text = (self.package / f"requirements/{revision}.yaml").read_text()
        section = re.search(r"^server:\n((?: +- .*\n|\n| *#.*\n)+)", text, re.MULTILINE).group(1)
        return set(re.findall(r"^ +- (\S+)", section, re.MULTILINE))

    def run(self, revision: str, url: str, folder: Path) -> "Findings":
        """All scenarios of `revision` against `url`; what the suite says of them is kept in `folder`."""
        folder.mkdir(parents=True)
        command = [
            self.prefix / "node_modules/.bin/node", self.package / "dist/index.js", "server", "--url", url,
            "--requirements", revision, "--output-dir", folder / "scenarios", "--timeout", str(PER_SCENARIO_MS),
        ]
        with open(folder / "suite.log", "w") as log:
            # Its exit code is not looked at: it knows neither our baseline nor what is not ours.
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, timeout=WHOLE_RUN_SECONDS, check=False)
        findings = Findings(revision)
        for file in sorted((folder / "scenarios").glob("server-*/checks.json")):
            # server-NAME-2026-11-30T15-40-57-534Z
            scenario = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", file.parent.name.removeprefix("server-"))
            if not scenario.startswith(NOT_OURS):
                findings.add(scenario, json.loads(file.read_text()))
        last = " ".join((folder / "suite.log").read_text(errors="replace").split()[-30:])
        silent = self.required(revision) - {scenario for scenario, _ in findings.checks}
        for scenario in sorted(silent):
            findings.checks[scenario, "no-result"] = Check(failed=1, message=f"no verdict; the suite's last words: {last}")
        return findings


@dataclass
class Check:
    """All verdicts of one id in one scenario; it counts each of them."""

    passed: int = 0
    failed: int = 0
    message: str = ""


@dataclass
class Findings:
    revision: str
    checks: dict[tuple[str, str], Check] = field(default_factory=dict)

    def add(self, scenario: str, verdicts: list[dict]) -> None:
        for verdict in verdicts:
            # A warning is a SHOULD that is not done. INFO and SKIPPED are no verdicts.
            failed = verdict["status"] in ("FAILURE", "WARNING")
            if failed or verdict["status"] == "SUCCESS":
                check = self.checks.setdefault((scenario, verdict["id"]), Check())
                check.failed += failed
                check.passed += not failed
                if failed:
                    check.message = " ".join(str(verdict.get("errorMessage", "")).split())

    @property
    def passed(self) -> int:
        return sum(check.passed for check in self.checks.values())

    @property
    def failed(self) -> int:
        return sum(check.failed for check in self.checks.values())

    def failing(self) -> dict[str, str]:
        """`scenario:check` of what failed, and what the suite says about it."""
        return {f"{scenario}:{name}": check.message for (scenario, name), check in self.checks.items() if check.failed}


def baseline(file: Path) -> dict[str, str]:
    """The failures that are expected, each with its reason.

    The file is what `conformance server --expected-failures` takes too. A reason is a comment above a group of entries.
    """
    expected, reason = {}, []
    in_comment = False
    for number, line in enumerate(file.read_text().splitlines(), 1):
        text = line.strip()
        if text.startswith("#"):
            reason = [*reason, text.lstrip("# ")] if in_comment else [text.lstrip("# ")]
        elif entry := re.fullmatch(r"- (\S+:\S+)", text):
            if not reason:
                raise SystemExit(f"{file}:{number}: {entry[1]} has no reason")
            if entry[1] in expected:
                raise SystemExit(f"{file}:{number}: {entry[1]} is there twice")
            expected[entry[1]] = " ".join(reason)
        elif not text:
            reason = []
        elif text not in ("server:", "server: []"):
            raise SystemExit(f"{file}:{number}: not an entry: {text}")
        in_comment = text.startswith("#")
    return expected
