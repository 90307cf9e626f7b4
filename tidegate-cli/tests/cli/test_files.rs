//! `tidegate rules test`.

use crate::shell::Shell;

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
fn a_file_and_a_directory_run_alike() {
    let shell = shell();
    for line in ["rules test good/rides.test.yaml", "rules test good"] {
        let ran = shell.run(line);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
        assert!(ran.out.contains("✓ three at once\n"), "{ran:?}");
    }
}

#[test]
fn one_that_fails_and_one_that_cannot_be_run_fail() {
    let ran = shell().run("rules test bad good");
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("✗ three at once\n") && ran.out.contains("bad/b.test.yml:1:"), "{ran:?}");
    assert!(ran.out.ends_with("3 files, 2 tests: 1 failed, 1 file cannot be run\n"), "{ran:?}");
    assert_eq!(shell().run("rules test bad/b.test.yml").code, Some(1));
}

#[test]
fn what_a_terminal_would_obey_is_shown_and_not_obeyed() {
    let shell = shell();
    shell.write("good/rides.test.yaml", TESTS.replace("three at once", "\"three\\e[2J\\e]0;title\\a at once\""));
    let ran = shell.run("rules test good");
    assert!(ran.out.contains("✓ three\\u{1b}[2J\\u{1b}]0;title\\u{7} at once\n"), "{ran:?}");
    assert!(!ran.out.contains('\x1b'), "{ran:?}");
}

#[test]
fn programs_and_ci_read_the_same_results() {
    let shell = shell();
    let ran = shell.run("rules test bad --json --junit results.xml");
    let results = ran.json();
    assert_eq!((ran.code, &results["passed"]), (Some(1), &false.into()));
    let failure = &results["runs"][0]["tests"][0]["failures"][0];
    assert_eq!((&failure["expected"], &failure["got"]), (&"2d".into(), &"1d".into()));
    assert_eq!(results["unusable"][0]["file"], "bad/b.test.yml");
    assert_eq!(results["unusable"][0]["problems"][0]["line"], 1);
    let xml = shell.read("results.xml");
    assert!(xml.contains("tests=\"2\" failures=\"2\"") && xml.contains("bad/b.test.yml can be run"), "{xml}");
}

#[test]
fn a_directory_without_tests_is_a_mistake() {
    let shell = shell();
    shell.write("empty/rules.yaml", "version: 1\n");
    let ran = shell.run("rules test empty");
    let expected = "error: there are no tests in empty: name the files *.test.yaml, or give them one by one\n";
    assert_eq!((ran.code, ran.err.as_str()), (Some(2), expected));
    assert_eq!(shell.run("rules test good --junit missing/results.xml").code, Some(2));
}
