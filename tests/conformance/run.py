#!/usr/bin/env python3
"""Runs MCP's conformance suite against the project's server alone and against the broker in front of it.

    LAZY_MCP_BINARY=target/debug/lazy-mcp LAZY_MCP_TEST_DEPS=$PWD/tests/.deps \\
        python3 tests/conformance/run.py [direct] [broker] [across] [--revision 2026-07-28] [--keep FOLDER]

`direct` must pass everything: it tells a fault of the server from one of the broker. `broker` has a server behind it
that speaks the client's era, `across` one that speaks the other alone. They are compared with
`baseline-REVISION.yml` and `baseline-across-REVISION.yml`: a failure that is not there ends the run with 1, and so does an entry that does not fail any
more. All scenarios count that the suite runs, scored or not, but those of the tasks extension.
"""

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from suite import REVISIONS, Findings, Suite, baseline
from under_test import Across, Behind, Direct

HERE = Path(__file__).resolve().parent
MODES = {"direct": Direct, "broker": Behind, "across": Across}
BASELINES = {"broker": "baseline", "across": "baseline-across"}


def judge(mode: str, findings: Findings, expected: dict[str, str]) -> int:
    """Prints what was found; the number of surprises."""
    failing = findings.failing()
    unexpected = sorted(failing.keys() - expected.keys())
    stale = sorted(expected.keys() - failing.keys())
    known = f" in {len(failing)} checks, {len(failing) - len(unexpected)} of them expected" if failing else ""
    print(f"{mode}, {findings.revision}: {findings.passed} passed, {findings.failed} failed{known}")
    for name in unexpected:
        print(f"  FAILED {name}: {failing[name][:300]}")
    for name in stale:
        print(f"  STALE  {name}: does not fail (any more); take it out of the baseline")
    return len(unexpected) + len(stale)


def main() -> int:
    parser = argparse.ArgumentParser(description="MCP's conformance suite against the server alone and the broker.")
    parser.add_argument("modes", nargs="*", metavar="MODE", help="direct, broker, across; all without any")
    parser.add_argument("--revision", action="append", choices=REVISIONS, help="only this one")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what the suite says about each scenario there")
    args = parser.parse_args()
    if unknown := [mode for mode in args.modes if mode not in MODES]:
        parser.error(f"no such mode: {unknown[0]}")
    revisions = args.revision or REVISIONS
    # Read first: a fault in them is to be told before anything runs.
    expected = {
        (mode, revision): baseline(HERE / f"{name}-{revision}.yml")
        for mode, name in BASELINES.items() for revision in revisions
    }
    suite = Suite(Path(os.environ["LAZY_MCP_TEST_DEPS"]))
    suite.install()
    good, surprises = 0, 0
    with ExitStack() as stack:
        results = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lazy-mcp-conformance-")))
        for mode in args.modes or MODES:
            with MODES[mode]() as place:
                for revision in revisions:
                    findings = suite.run(revision, place.url(revision), results / mode / revision)
                    good += findings.passed
                    surprises += judge(mode, findings, expected.get((mode, revision), {}))
    print(f"conformance: {good} passed, {surprises} failed")
    return 1 if surprises else 0


sys.exit(main())
