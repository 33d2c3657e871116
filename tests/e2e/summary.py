"""The last line of a run of `unittest`, which `tests/run.sh` counts, and its exit code."""

import sys
import unittest


def run(name: str) -> None:
    """Runs the tests of the main module and ends the program: 0 if there were any and all passed."""
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    # A test can fail twice: in itself and in what it left; and all of them together, in what they left.
    failed = len({test.id() for test, _ in [*result.failures, *result.errors]})
    print(f"{name}: {max(result.testsRun - failed, 0)} passed, {failed} failed")
    sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
