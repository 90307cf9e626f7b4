"""scripts/check-links, run on small repositories made for each test."""

import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "check-links"


class CheckLinks(unittest.TestCase):
    def run_on(self, **pages):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "init", "--quiet", folder], check=True)
            for name, text in pages.items():
                Path(folder, f"{name}.md").write_text(text, encoding="utf-8")
            return subprocess.run([SCRIPT, folder], capture_output=True, text=True)

    def test_links_to_files_and_headings_that_exist_pass(self):
        done = self.run_on(
            a="# One title\n\n[b](b.md) [here](#one-title) [there](b.md#the-key--its-form) [web](https://example.com/x)\n",
            b="# The `key` & its form\n",
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_link_to_a_missing_file_is_reported_with_its_line(self):
        done = self.run_on(a="# A\n\nsee [b](b.md)\n")
        self.assertEqual((done.returncode, done.stderr), (1, "a.md:3: b.md: there is no such file\n"))

    def test_an_anchor_without_a_heading_is_reported(self):
        done = self.run_on(a="[b](b.md#gone)\n", b="# Here\n")
        self.assertEqual((done.returncode, done.stderr), (1, "a.md:1: b.md#gone: the page has no such heading\n"))

    def test_repeated_headings_are_numbered(self):
        done = self.run_on(a="# Same\n# Same\n[second](#same-1)\n[third](#same-2)\n")
        self.assertEqual((done.returncode, done.stderr), (1, "a.md:4: #same-2: the page has no such heading\n"))

    def test_code_is_not_searched_for_links_or_headings(self):
        done = self.run_on(a="`[x](gone.md)`\n\n```sh\n# heading\n[y](gone.md)\n```\n\n[`f`](#heading)\n")
        self.assertEqual((done.returncode, done.stderr), (1, "a.md:8: #heading: the page has no such heading\n"))


if __name__ == "__main__":
    unittest.main()
