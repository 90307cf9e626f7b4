"""scripts/mutants: what is drawn, and what fails. The mutants themselves are made by cargo-mutants, which the tests do not need."""

import importlib.machinery
import importlib.util
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "mutants"
loader = importlib.machinery.SourceFileLoader("mutants", str(SCRIPT))
mutants = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", loader))
loader.exec_module(mutants)

SOURCE = "fn less(a: u8, b: u8) -> bool {\n    a < b\n}\n"


def mutant(change="replace < with <= in less", line=2, source=SOURCE):
    made = {"name": f"src/a.rs:{line}:7: {change}", "span": {"start": {"line": line, "column": 7}}}
    return mutants.Mutant(made, source)


class Mutants(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mutants.toml"
            path.write_text(text, encoding="utf-8")
            return mutants.read_list(path)

    def test_a_mutant_keeps_its_identity_when_it_moves(self):
        moved = mutant(line=4, source="// One\n// Two\n" + SOURCE)
        self.assertEqual(moved.identity, ("src/a.rs: replace < with <= in less", "a < b"))
        self.assertEqual(moved.identity, mutant().identity)
        self.assertNotEqual(mutant(change="replace < with > in less").identity, moved.identity)

    def test_the_same_code_gives_the_same_sample_and_other_code_another(self):
        many = [mutant(f"replace less -> bool with {number}") for number in range(50)]
        shard, sample = mutants.draw(many, b"one", 5)
        self.assertEqual((shard, sample), mutants.draw(many, b"one", 5))
        self.assertEqual(sample, many[shard[0] :: 10])
        self.assertNotEqual(sample, mutants.draw(many, b"two", 5)[1])
        self.assertEqual(mutants.draw(many, b"one", 50), ((0, 1), many))
        self.assertEqual(mutants.draw(many[:3], b"one", 5)[1], many[:3])

    def test_a_survivor_fails_unless_it_is_named(self):
        survivor = mutant()
        problems = mutants.judge([survivor], {}, False, {survivor.identity})
        self.assertEqual(len(problems), 1)
        self.assertIn("not caught: src/a.rs:2:7: replace < with <= in less", problems[0])
        self.assertEqual(mutants.judge([survivor], {survivor.identity: "it is equal"}, False, {survivor.identity}), [])

    def test_a_full_run_fails_on_a_name_that_is_no_survivor(self):
        gone, caught = ("src/a.rs: replace + with -", "a + b"), mutant().identity
        named = {gone: "it was equal", caught: "it was equal"}
        problems = mutants.judge([], named, True, {caught})
        self.assertIn("it does not exist any more: src/a.rs: replace + with -", problems[0])
        self.assertIn("a test catches it now: src/a.rs: replace < with <= in less", problems[1])
        self.assertEqual(mutants.judge([], named, False, {caught}), [])

    def test_a_survivor_needs_a_reason_and_is_named_once(self):
        one = '[[survivor]]\nmutant = "src/a.rs: replace < with <="\nline = "a < b"\nreason = "{}"\n'
        groups = '[[group]]\nname = "a"\npackage = "a"\nfiles = ["src/*.rs"]\ntests = ["--lib"]\nsample = 1\n'
        _, named = self.read(groups + one.format("equal at the boundary"))
        self.assertEqual(list(named), [("src/a.rs: replace < with <=", "a < b")])
        for wrong in (one.format("equal"), one.format("equal at the boundary") * 2):
            with self.assertRaises(mutants.Problem):
                self.read(groups + wrong)

    def test_the_list_of_this_repository_can_be_read(self):
        groups, named = mutants.read_list(mutants.ROOT / mutants.LIST)
        for group in groups:
            for pattern in group["files"]:
                self.assertTrue(list(mutants.ROOT.glob(pattern)), pattern)
        for identity in named:
            self.assertTrue(any(mutants.belongs(identity, group) for group in groups), identity)


if __name__ == "__main__":
    unittest.main()
