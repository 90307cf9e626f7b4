"""scripts/check-advisories, with a stand-in for cargo-deny that fetches and finds what each test says."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "check-advisories"
STAND_IN = """#!/bin/sh
if [ "$1" = fetch ]; then [ {fetch} = 0 ] || echo "fatal: no route to host" >&2; exit {fetch}; fi
[ "$*" = "--offline check advisories" ] || exit 99
echo "checked"; exit {check}
"""


class CheckAdvisories(unittest.TestCase):
    def run_with(self, fetch, check=0, copy=False, **environment):
        with tempfile.TemporaryDirectory() as folder:
            deny = Path(folder, "cargo-deny")
            deny.write_text(STAND_IN.format(fetch=fetch, check=check), encoding="utf-8")
            deny.chmod(0o755)
            if copy:
                Path(folder, "advisory-dbs/github.com/crates").mkdir(parents=True)
            environment = os.environ | {"CARGO_DENY": str(deny), "CARGO_HOME": folder} | environment
            return subprocess.run([SCRIPT], capture_output=True, text=True, env=environment)

    def test_no_advisory_passes(self):
        done = self.run_with(fetch=0, check=0)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "checked\n", ""))

    def test_an_advisory_fails(self):
        self.assertEqual(self.run_with(fetch=0, check=1).returncode, 1)

    def test_without_a_database_it_says_that_nothing_was_checked(self):
        done = self.run_with(fetch=1)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertIn("NOT checked: the database cannot be fetched (no route to host)", done.stderr)

    def test_without_a_database_it_fails_where_the_check_is_required(self):
        self.assertEqual(self.run_with(fetch=1, REQUIRE_ADVISORIES="1").returncode, 1)

    def test_an_older_copy_of_the_database_is_used(self):
        done = self.run_with(fetch=1, check=1, copy=True)
        self.assertEqual((done.returncode, done.stdout), (1, "checked\n"))
        self.assertIn("this check uses the copy in", done.stderr)


if __name__ == "__main__":
    unittest.main()
