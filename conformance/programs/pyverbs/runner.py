"""Runs rdma-core's own tests of verbs and prints a line of JSON for each.

    runner.py FOLDER OPTIONS...

FOLDER is `tests` of rdma-core; the options are those of its `run_tests.py`. Tests of one vendor's
adapters are left out. A test that hangs ends the run, with the stack of every thread.
"""
import faulthandler
import json
import sys
import unittest
from importlib.machinery import SourceFileLoader

# Seconds that one test may take.
PATIENCE = 60
# Modules of one vendor's adapters.
VENDORS = ("test_mlx5", "test_efa")


class Lines(unittest.TestResult):
    """Says how each test ended as soon as it has."""

    def startTest(self, test):
        super().startTest(test)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def say(self, test, outcome, why=""):
        print("\n" + json.dumps({"test": test.id(), "outcome": outcome, "why": why}), flush=True)

    def addSuccess(self, test):
        self.say(test, "pass")

    def addSkip(self, test, reason):
        self.say(test, "skip", reason)

    def addFailure(self, test, err):
        self.say(test, "fail", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self.say(test, "error", self._exc_info_to_string(err, test))


def tests_of(suite):
    """All tests in it, in order."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        elif not test.id().split(".")[1].startswith(VENDORS):
            yield test


folder = sys.argv.pop(1)
sys.path.insert(0, folder)
from args_parser import parser  # noqa: E402  (a module of that folder)

tests = SourceFileLoader("tests", folder + "/__init__.py").load_module()
parser.parse_args()
found = unittest.defaultTestLoader.loadTestsFromModule(tests)
unittest.TestSuite(tests_of(found)).run(Lines())
