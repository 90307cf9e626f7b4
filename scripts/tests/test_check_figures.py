"""scripts/check-figures, run on small repositories made for each test."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "check-figures"
WHO = {f"GIT_{who}_{what}": "x@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
PAGE = "# Figures\n\n## Speed\n\n```sh\nmake speed\n```\n\nMeasured on 2026-01-02 at `{}`. <!-- measures: {} -->\n"


class CheckFigures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.git("init", "--quiet")
        self.write("src/fast.rs", "one")
        self.write("other.rs", "one")
        self.commit = self.save("Begin")

    def git(self, *words):
        done = subprocess.run(["git", *words], cwd=self.root, check=True, capture_output=True, text=True, env=os.environ | WHO)
        return done.stdout.strip()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text, encoding="utf-8")

    def save(self, subject):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", subject)
        return self.git("rev-parse", "--short=7", "HEAD")

    def publish(self, commit=None, paths="src"):
        self.write("docs/figures.md", PAGE.format(commit or self.commit, paths))
        self.save("Publish figures")

    def check(self):
        return subprocess.run([SCRIPT, self.root], capture_output=True, text=True)

    def test_a_figure_is_current_while_only_other_code_changes(self):
        self.publish()
        self.write("other.rs", "two")
        self.write("src/README.md", "words")
        self.write("src/tests.rs", "a test")
        self.save("Change what is not measured")
        done = self.check()
        self.assertEqual(done.stdout, "0 of 1 published figures are older than the code they measure.\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_figure_is_stale_once_its_code_changes(self):
        self.publish()
        self.write("src/fast.rs", "two")
        change = self.save("Make it faster")
        done = self.check()
        self.assertEqual(done.returncode, 1)
        line = f"Speed: measured on 2026-01-02 at {self.commit}, 1 change since; the last: {change} Make it faster\n"
        self.assertIn(f"docs/figures.md:9: {line}    measure again: make speed\n", done.stdout)
        self.assertIn("1 of 1 published figures are older", done.stdout)

    def test_a_change_without_a_commit_makes_a_figure_stale(self):
        self.publish()
        self.write("src/fast.rs", "two")
        done = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertIn("the last: changes without a commit", done.stdout)

    def test_a_path_that_is_gone_is_an_error(self):
        self.publish(paths="src lib")
        done = self.check()
        self.assertEqual((done.returncode, done.stderr), (2, "docs/figures.md:9: there is no lib; name what the table measures now\n"))

    def test_an_unknown_commit_is_an_error(self):
        self.publish(commit="0123456")
        done = self.check()
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no commit 0123456 here", done.stderr)

    def test_a_line_of_another_form_is_an_error(self):
        self.write("docs/figures.md", "Measured yesterday. <!-- measures: src -->\n")
        done = self.check()
        self.assertEqual(done.returncode, 2)
        self.assertIn("docs/figures.md:1: not of the form", done.stderr)

    def test_a_stamp_names_the_commit_and_makes_the_figure_current(self):
        self.write("scripts/check-figures", SCRIPT.read_text(encoding="utf-8"))
        (self.root / "scripts/check-figures").chmod(0o755)
        self.publish()
        self.write("src/fast.rs", "two")
        change = self.save("Make it faster")
        stamp = [self.root / "scripts/check-figures", "--stamp"]
        self.assertEqual(subprocess.run([*stamp, "another table"], capture_output=True).returncode, 2)
        self.assertEqual(self.check().returncode, 1)
        self.assertEqual(subprocess.run([*stamp, "Speed"], capture_output=True).returncode, 0)
        self.assertIn(f"at `{change}`. <!-- measures: src -->", (self.root / "docs/figures.md").read_text(encoding="utf-8"))
        self.assertEqual(self.check().returncode, 0)

    def test_figures_of_code_without_a_commit_are_not_stamped(self):
        self.write("scripts/check-figures", SCRIPT.read_text(encoding="utf-8"))
        (self.root / "scripts/check-figures").chmod(0o755)
        self.publish()
        self.write("src/fast.rs", "two")
        done = subprocess.run([self.root / "scripts/check-figures", "--stamp"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("src has changes without a commit; commit them, then measure", done.stderr)


if __name__ == "__main__":
    unittest.main()
