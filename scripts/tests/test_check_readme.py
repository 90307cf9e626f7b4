"""scripts/check-readme: how the commands of a page run, and which differences count. The pages themselves need the program."""

import importlib.machinery
import importlib.util
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "check-readme"
loader = importlib.machinery.SourceFileLoader("check_readme", str(SCRIPT))
check_readme = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_readme", loader))
loader.exec_module(check_readme)


class Console(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.session = check_readme.Session(Path(folder.name))
        self.addCleanup(self.session.stop_all)

    def shown(self, block):
        return check_readme.console(self.session, block)

    def test_output_is_shown_after_each_command(self):
        self.assertEqual(self.shown("$ echo one\nold\n$ echo two \\\n    three\n"), "$ echo one\none\n$ echo two \\\n    three\ntwo three\n")

    def test_free_ports_take_the_place_of_those_on_the_page(self):
        self.assertEqual(self.shown("$ echo http://127.0.0.1:8000/\n"), "$ echo http://127.0.0.1:8000/\nhttp://127.0.0.1:8000/\n")
        self.assertNotEqual(self.session.port(8000), "8000")
        self.assertIn(self.session.port(8000), self.session.settings["TIDEGATE_GATEWAY"])

    def test_times_of_a_response_stay_as_they_are_on_the_page(self):
        page = "$ printf 'date: %s\\nretry-after: 10\\n' now\ndate: Wed, 18 Nov 2026 14:36:54 GMT\nretry-after: 10\n"
        self.assertEqual(self.shown(page), page)
        self.assertNotEqual(self.shown(page.replace("10\n", "11\n")), page.replace("10\n", "11\n"))

    def test_a_server_runs_until_another_one_is_started_on_its_port(self):
        self.shown("$ python3 -m http.server 3000\n")
        first = self.session.servers[self.session.port(3000)]
        self.assertIn("200", self.shown("$ curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:3000/\n"))
        self.shown("$ python3 -m http.server 3000\n")
        self.assertIsNotNone(first.poll())

    def test_an_exported_variable_is_set_for_the_commands_after_it(self):
        self.assertEqual(self.shown("$ export NAME=value\n$ echo $NAME\n"), "$ export NAME=value\n$ echo $NAME\nvalue\n")


if __name__ == "__main__":
    unittest.main()
