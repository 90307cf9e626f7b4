"""scripts/check-guarantees, run on small repositories made for each test."""

import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "check-guarantees"
TEST = "#[test]\nfn {}() {{}}\n"
PAGE = "# Guarantees\n\n| promise | tests |\n|---|---|\n| It holds | {} |\n"
LINKED = "[`it_holds`](../core/tests/a.rs)"
DONE = "docs/guarantees.md has 1 promises, each with a test that `make test` runs.\n"


class CheckGuarantees(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        subprocess.run(["git", "init", "--quiet", folder.name], check=True)
        self.write("core/tests/a.rs", TEST.format("it_holds"))

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text, encoding="utf-8")

    def page(self, tests):
        self.write("docs/guarantees.md", PAGE.format(tests))

    def run_script(self, *flags):
        return subprocess.run([SCRIPT, *flags, self.root], capture_output=True, text=True)

    def assert_passes(self, *flags):
        done = self.run_script(*flags)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, DONE, ""))

    def assert_fails(self, *lines):
        done = self.run_script()
        self.assertEqual((done.returncode, done.stderr), (1, "".join(f"{line}\n" for line in lines)))

    def test_a_linked_test_passes(self):
        self.page(LINKED)
        self.assert_passes()

    def test_write_links_names_and_follows_a_test_that_has_moved(self):
        self.page("`it_holds`")
        self.assert_fails(
            "docs/guarantees.md:5: it_holds is not linked to core/tests/a.rs; run scripts/check-guarantees --write"
        )
        self.assert_passes("--write")
        self.assertEqual((self.root / "docs/guarantees.md").read_text(), PAGE.format(LINKED))
        (self.root / "core/tests/a.rs").unlink()
        self.write("core/tests/main/b.rs", TEST.format("it_holds"))
        self.assertEqual(self.run_script().returncode, 1)
        self.assert_passes("--write")
        self.assertEqual((self.root / "docs/guarantees.md").read_text(), PAGE.format("[`it_holds`](../core/tests/main/b.rs)"))

    def test_a_name_without_a_test_is_reported(self):
        self.write("core/src/lib.rs", "/// `it_held`\n#[cfg(test)]\nfn it_held() {}\n")
        self.page(f"{LINKED}<br>`it_held`")
        self.assert_fails("docs/guarantees.md:5: there is no test it_held")

    def test_a_name_in_two_files_needs_parts_of_a_path(self):
        self.write("other-core/src/deep/a.rs", TEST.format("it_holds"))
        self.page("`it_holds`")
        self.assert_fails(
            "docs/guarantees.md:5: the test it_holds is in core/tests/a.rs, other-core/src/deep/a.rs;"
            " name parts of the path in front of it",
            'docs/guarantees.md:5: no test that `make test` runs proves "It holds"',
        )
        self.page("`other_core::deep::it_holds`<br>`core::it_holds`")
        self.assert_passes("--write")
        self.page("`third::it_holds`<br>[`core::it_holds`](../core/tests/a.rs)")
        self.assert_fails(
            "docs/guarantees.md:5: there is no test third::it_holds;"
            " one of that name is in core/tests/a.rs, other-core/src/deep/a.rs"
        )

    def test_a_test_inside_a_module_that_make_test_leaves_out_proves_nothing(self):
        inside = "    " + TEST.format("it_holds").replace("\n", "\n    ").rstrip() + "\n"
        self.write("core/tests/a.rs", f"mod prove {{\n    use super::*;\n{inside}}}\n")
        self.page(LINKED)
        self.assert_fails('docs/guarantees.md:5: no test that `make test` runs proves "It holds"')

    def test_attributes_macros_and_properties_make_tests(self):
        tests = {
            "plain": "    #[test]\n    fn {}() {{}}\n",
            "of_tokio": '#[tokio::test(flavor = "multi_thread")]\nasync fn {}() {{}}\n',
            "over_lines": "#[tokio::test(\n    start_paused = true,\n)]\n#[expect(dead_code)]\n// A note.\nasync fn {}() {{}}\n",
            "of_a_property": "proptest! {{\n    #[test]\n    fn {}(a in 0..9u8) {{}}\n}}\n",
            "on_both": "each!(\n    on_both,\n);\n\nasync fn {}(database: &Database) {{}}\n",
        }
        macro = "macro_rules! each {\n    ($($name:ident),*) => {\n        $(#[test]\n        fn $name() {})*\n    };\n}\n"
        self.write("core/tests/more.rs", macro + "".join(text.format(name) for name, text in tests.items()))
        self.page("<br>".join(f"`{name}`" for name in tests))
        self.assert_passes("--write")

    def test_every_promise_needs_a_test_that_make_test_runs(self):
        self.write("lab/tests/rig.rs", TEST.format("the_rig_holds"))
        self.write("core/tests/loom.rs", TEST.format("it_holds_in_loom"))
        self.write("core/tests/prove/nginx.rs", TEST.format("it_holds_behind_nginx"))
        self.write("core/tests/slow.rs", '#[test]\n#[ignore = "slow"]\nfn it_holds_slowly() {}\n')
        links = {
            "the_rig_holds": "lab/tests/rig.rs",
            "it_holds_in_loom": "core/tests/loom.rs",
            "it_holds_behind_nginx": "core/tests/prove/nginx.rs",
            "it_holds_slowly": "core/tests/slow.rs",
        }
        not_run = "<br>".join(f"[`{name}`](../{path})" for name, path in links.items())
        self.page(not_run)
        self.assert_fails('docs/guarantees.md:5: no test that `make test` runs proves "It holds"')
        self.page(f"{LINKED}<br>{not_run}")
        self.assert_passes()

    def test_anything_else_than_tests_and_a_page_without_promises_are_reported(self):
        self.page(f"{LINKED}<br>by design")
        self.assert_fails("docs/guarantees.md:5: not a test in backticks: by design")
        self.write("docs/guarantees.md", "# Guarantees\n\n| promise | proof |\n|---|---|\n| It holds | `it_holds` |\n")
        self.assert_fails("docs/guarantees.md: there are no promises; has a table lost its column `tests`?")

    def test_other_pages_neither_link_to_tests_nor_name_them(self):
        self.page(LINKED)
        self.write("core/src/unit.rs", TEST.format("this_unit_always_holds"))
        self.write("core/src/unit/tests.rs", "")
        self.write(
            "docs/rules.md",
            "It holds ([it\nholds](../core/tests/a.rs)), [see](../core/src/unit/tests.rs),\n"
            "[this_unit_always_holds](../core/src/unit.rs), `this_unit_always_holds`.\n\n"
            "Not a test: [code](../core/src/unit.rs), [page](guarantees.md), [web](https://example.com/tests/a.rs), `it_holds`.\n\n"
            "```sh\ncargo test this_unit_always_holds # [x](../core/tests/a.rs)\n```\n",
        )
        self.write("docs/faults.md", "[it holds](../core/tests/a.rs)\n")
        self.write("docs/decisions/1.md", "[it holds](../../core/tests/a.rs)\n")
        only = "docs/guarantees.md alone names tests"
        self.assert_fails(
            f"docs/rules.md:2: ../core/tests/a.rs leads to a test; {only}",
            f"docs/rules.md:2: ../core/src/unit/tests.rs leads to a test; {only}",
            f"docs/rules.md:3: ../core/src/unit.rs leads to a test; {only}",
            f"docs/rules.md:3: this_unit_always_holds is a test; {only}",
        )


if __name__ == "__main__":
    unittest.main()
