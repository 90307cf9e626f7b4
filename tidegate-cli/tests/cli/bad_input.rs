//! Bad input: an error that says what to do, never a panic, and never a value that may be secret.

use std::process::Stdio;

use crate::cli::shell::{RunOutput, Shell};

#[test]
fn an_error_names_the_flag_and_a_solution_but_never_the_value() {
    let shell = Shell::new();
    let line = "check --rules rules.yaml";
    for (flags, expected) in [
        ("-H x:1 -H hunter2", "error: --header: write 'name: value'; number 2 has no `:`\n"),
        ("--attr hunter2", "error: --attr: write name=value; number 1 has no `=`\n"),
        ("--path hunter2", "error: --path: a path begins with `/`; give the host in a field of its own\n"),
        ("--ip hunter2", "error: --ip: not an IP address; write one such as 203.0.113.9\n"),
        ("--store hunter2", "error: --store: a store is a URL: `memory:`, or one such as `redis://127.0.0.1:6379`\n"),
        ("--store valkey://:hunter2@h", "error: --store: a Valkey server is written `redis://`, too\n"),
        (
            "--store hunter2://h",
            "error: --store: there is no such store: write `memory:`, or a URL such as `redis://127.0.0.1:6379`\n",
        ),
    ] {
        let output = shell.run(&format!("{line} {flags}"));
        assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (Some(2), "", expected), "{flags}");
    }
    for (flags, expected) in [
        (
            ["-H", "x: 1", "-H", "x api hunter2: a"],
            "error: --header number 2: not a header name: it has letters, digits and signs such as `-`, and no \
             spaces\n",
        ),
        (
            ["-H", "hunter2: a\nb", "-H", "x: 1"],
            "error: --header number 1: the value has a line break; a header is one line\n",
        ),
        (
            ["--attr", "account=a7", "--attr", "x-api-key:hunter2=="],
            "error: --attr number 2: a name with a colon is reserved for front ends; write a header under \
             `headers`\n",
        ),
    ] {
        let output = RunOutput::from(shell.command().args(line.split(' ')).args(flags).output().unwrap());
        assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (Some(2), "", expected), "{flags:?}");
    }
    // Without quotes the key is an argument of its own.
    let output = shell.run(&format!("{line} -H x-api-key: hunter2"));
    assert!(
        output.code == Some(2) && output.err.contains("quote a value with spaces") && !output.err.contains("hunter2"),
        "{output:?}"
    );
    let output = shell.run(&format!("{line} --attr ip=hunter2"));
    assert!(output.code == Some(2) && output.err.contains("`ip`") && !output.err.contains("hunter2"), "{output:?}");
    let output = shell.run(&format!("{line} --store redis://:hunter2@"));
    assert!(output.code == Some(3) && !output.err.contains("hunter2"), "{output:?}");
}

#[test]
fn an_empty_secret_is_rejected() {
    let shell = Shell::new();
    let output = shell.command().args(["check", "--rules", "rules.yaml"]).env("TIDEGATE_SECRET", "").output().unwrap();
    let output = RunOutput::from(output);
    assert!(
        output.code == Some(2) && output.err.starts_with("error: the secret is empty: set TIDEGATE_SECRET"),
        "{output:?}"
    );
}

#[test]
fn no_file_causes_a_panic() {
    let shell = Shell::new();
    shell.write("bytes.yaml", [0xff, 0xfe, 0x00, 0x80]);
    shell.write("deep.yaml", "[".repeat(100_000));
    shell.write("bomb.yaml", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n");
    shell.write("empty.yaml", "");
    shell.write("list.yaml", "- 1\n- 2\n");
    for name in ["bytes.yaml", "deep.yaml", "bomb.yaml", "empty.yaml", "list.yaml", ".", "missing.yaml"] {
        for command in ["rules validate", "rules explain", "rules test", "check --rules", "rules validate --json"] {
            let output = shell.run(&format!("{command} {name}"));
            assert!(matches!(output.code, Some(0..=2)), "{command} {name}: {output:?}");
            assert!(!output.err.contains("panicked"), "{command} {name}: {output:?}");
        }
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let shell = Shell::new();
    for line in [
        "rules schema",
        "completions bash",
        "--help",
        "rules explain rules.yaml",
        "check --rules rules.yaml --times 1000000 --json",
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = shell.command().args(line.split(' ')).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()), "{line}");
    }
}

/// A full disk is not a closed pipe: a truncated result must not look complete.
#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let shell = Shell::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = shell.command().args(["rules", "schema"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.starts_with("error: cannot write the result: "), "{error}");
}

#[test]
fn a_wrong_variable_is_blamed_by_its_name_and_a_wrong_flag_by_its_own() {
    let shell = Shell::new();
    let error = |flags: &[&str], name: &str, value: &str| {
        let output = shell.command().arg("serve").args(flags).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    for (flags, name, value, expected) in [
        (
            &[][..],
            "TIDEGATE_DRAIN",
            "hunter2",
            "error: the variable TIDEGATE_DRAIN does not take this value: write a duration ",
        ),
        (&[], "TIDEGATE_HTTP", "hunter2", "error: the variable TIDEGATE_HTTP does not take this value: "),
        (
            &["--drain", "hunter2"],
            "TIDEGATE_DRAIN",
            "10s",
            "error: --drain <DURATION> does not take this value: write ",
        ),
        (&["--drain=hunter2"], "TIDEGATE_DRAIN", "10s", "error: --drain <DURATION> does not take this value: write "),
    ] {
        let error = error(flags, name, value);
        assert!(error.starts_with(expected) && !error.contains("hunter2"), "{name} {flags:?}: {error}");
    }
}
