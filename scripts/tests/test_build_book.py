"""scripts/build-book, run on small repositories, with a stand-in for mdBook that writes each page's links and headings as HTML."""

import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "build-book"
MDBOOK = r'''#!/usr/bin/env python3
import re, sys
from pathlib import Path
root = Path(sys.argv[2])
source, book = root / "target/book-src", root / "target/book"
for page in re.findall(r"\]\((.*?)\)", (source / "SUMMARY.md").read_text()):
    text = (source / page).read_text()
    text = re.sub(r"^# (.*)$", lambda h: f'<h1 id="{h[1].lower()}">{h[1]}</h1>', text, flags=re.M)
    text = re.sub(r"\]\(([^)]*?)\.md(#\w+)?\)", lambda a: f'<a href="{a[1]}.html{a[2] or ""}">', text)
    path = (book / page).with_suffix(".html")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
'''
SETTINGS = '[book]\nsrc = "target/book-src"\n[build]\nbuild-dir = "target/book"\n'
CARGO = '[workspace.package]\nrepository = "https://example.com/tide"\n'


class BuildBook(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.write("book.toml", SETTINGS)
        self.write("Cargo.toml", CARGO)
        self.write(".tools/bin/mdbook", MDBOOK)
        (self.root / ".tools/bin/mdbook").chmod(0o755)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def build(self, **pages):
        """Builds a book of pages, `a` is docs/a.md, and of README.md."""
        self.write("README.md", "# Home\n")
        for name, text in pages.items():
            self.write(f"docs/{name}.md", text)
        chapters = ["[Home](../README.md)"] + [f"- [{name}]({name}.md)" for name in pages]
        self.write("docs/SUMMARY.md", "\n".join(chapters) + "\n")
        return self.run_script()

    def run_script(self):
        return subprocess.run([SCRIPT, self.root], capture_output=True, text=True)

    def source(self, name):
        return (self.root / "target/book-src" / name).read_text(encoding="utf-8")

    def test_links_between_pages_stay_and_other_files_are_linked_at_the_repository(self):
        self.write("src/lib.rs", "//! Code.\n")
        text = "# One\n[b](b.md#two) [home](../README.md) [root](..) [`code`](../src/lib.rs#L1) [folder](../src) [web](https://x.y)\n"
        done = self.build(a=text, b="# Two\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(
            self.source("docs/a.md"),
            "# One\n[b](b.md#two) [home](../README.md) [root](../README.md) [`code`](https://example.com/tide/blob/HEAD/src/lib.rs#L1) "
            "[folder](https://example.com/tide/tree/HEAD/src) [web](https://x.y)\n",
        )
        self.assertEqual(self.source("SUMMARY.md"), "[Home](README.md)\n- [a](docs/a.md)\n- [b](docs/b.md)\n")

    def test_code_stays_as_it_is(self):
        text = "# One\n`[x](../Cargo.toml)` and [y](../Cargo.toml)\n\n```text\n[z](../Cargo.toml)\n```\n"
        self.assertEqual(self.build(a=text).returncode, 0)
        changed = text.replace("[y](../Cargo.toml)", "[y](https://example.com/tide/blob/HEAD/Cargo.toml)")
        self.assertEqual(self.source("docs/a.md"), changed)

    def test_an_anchor_without_a_heading_fails_the_build(self):
        done = self.build(a="# One\n[b](b.md#gone)\n", b="# Two\n")
        self.assertEqual((done.returncode, done.stderr), (1, "docs/a.html:2: b.html#gone: the page has no such anchor\n"))

    def test_a_page_that_the_summary_lacks_fails_the_build(self):
        self.write("docs/lost.md", "# Lost\n")
        done = self.build(a="# One\n")
        self.assertEqual((done.returncode, done.stderr), (2, "docs/SUMMARY.md lacks docs/lost.md\n"))

    def test_a_listed_page_that_does_not_exist_fails_the_build(self):
        self.write("docs/SUMMARY.md", "- [a](a.md)\n")
        done = self.run_script()
        self.assertEqual((done.returncode, done.stderr), (2, "docs/SUMMARY.md lists docs/a.md, which does not exist\n"))

    def test_without_mdbook_it_says_how_to_install_it(self):
        (self.root / ".tools/bin/mdbook").unlink()
        done = self.build(a="# One\n")
        self.assertEqual((done.returncode, done.stderr), (2, "mdBook is missing: run make tools-prove\n"))


if __name__ == "__main__":
    unittest.main()
