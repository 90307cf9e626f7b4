//! `tidegate rules test`.

use crate::cli::shell::Shell;

const TESTS: &str = "\
rules: ../rules.yaml
tests:
  - name: three at once
    request: { method: POST, path: /rides, ip: 203.0.113.9 }
    steps:
      - { send: 3, expect: allowed }
      - { expect: { denied: rides, retry_after: 1d } }
";

fn shell() -> Shell {
    let shell = Shell::new();
    shell.write("good/rides.test.yaml", TESTS);
    shell.write("bad/a.test.yaml", TESTS.replace("retry_after: 1d", "retry_after: 2d"));
    shell.write("bad/b.test.yml", "rules: ../missing.yaml\ntests: []\n");
    shell.write("bad/notes.txt", "no test");
    shell
}

#[test]
fn a_file_and_a_directory_can_be_tested() {
    let shell = shell();
    for line in ["rules test good/rides.test.yaml", "rules test good"] {
        let output = shell.run(line);
        assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{output:?}");
        assert!(output.out.contains("✓ three at once\n"), "{output:?}");
    }
}

#[test]
fn failed_tests_and_unusable_files_cause_exit_code_1() {
    let output = shell().run("rules test bad good");
    assert_eq!(output.code, Some(1));
    assert!(output.out.contains("✗ three at once\n") && output.out.contains("bad/b.test.yml:1:"), "{output:?}");
    assert!(output.out.ends_with("3 files, 2 tests: 1 failed, 1 file cannot be run\n"), "{output:?}");
    assert_eq!(shell().run("rules test bad/b.test.yml").code, Some(1));
}

#[test]
fn control_characters_in_test_names_are_escaped() {
    let shell = shell();
    shell.write("good/rides.test.yaml", TESTS.replace("three at once", "\"three\\e[2J\\e]0;title\\a at once\""));
    let output = shell.run("rules test good");
    assert!(output.out.contains("✓ three\\u{1b}[2J\\u{1b}]0;title\\u{7} at once\n"), "{output:?}");
    assert!(!output.out.contains('\x1b'), "{output:?}");
}

#[test]
fn json_and_junit_have_the_same_results() {
    let shell = shell();
    let output = shell.run("rules test bad --json --junit results.xml");
    let results = output.json();
    assert_eq!((output.code, &results["passed"]), (Some(1), &false.into()));
    let failure = &results["runs"][0]["tests"][0]["failures"][0];
    assert_eq!((&failure["expected"], &failure["got"]), (&"2d".into(), &"1d".into()));
    assert_eq!(results["unusable"][0]["file"], "bad/b.test.yml");
    assert_eq!(results["unusable"][0]["problems"][0]["line"], 1);
    let xml = shell.read("results.xml");
    assert!(xml.contains("tests=\"2\" failures=\"2\"") && xml.contains("bad/b.test.yml can be run"), "{xml}");
}

#[test]
fn a_directory_without_tests_is_an_error() {
    let shell = shell();
    shell.write("empty/rules.yaml", "version: 1\n");
    let output = shell.run("rules test empty");
    let expected = "error: empty contains no *.test.yaml files; rename the test files, or name them one by one\n";
    assert_eq!((output.code, output.err.as_str()), (Some(2), expected));
    assert_eq!(shell.run("rules test good --junit missing/results.xml").code, Some(2));
}
