//! Help, schema, completions and manual pages.

use crate::cli::shell::Shell;

#[test]
fn completions_contain_every_command() {
    let shell = Shell::new();
    for name in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = shell.run(&format!("completions {name}"));
        assert_eq!(output.code, Some(0));
        for word in ["validate", "explain", "check", "junit"] {
            assert!(output.out.contains(word), "{name} lacks {word}");
        }
    }
}

#[test]
fn the_manual_has_a_page_for_every_command() {
    let shell = Shell::new();
    let page = shell.run("man").out;
    assert!(page.contains(".TH tidegate 1") && page.contains("tidegate\\-check(1)"), "{page}");
    assert_eq!(shell.run("man --dir man/man1").code, Some(0));
    for name in ["tidegate", "tidegate-check", "tidegate-rules", "tidegate-rules-explain", "tidegate-rules-validate"] {
        assert!(shell.read(&format!("man/man1/{name}.1")).contains("Examples:"), "{name}");
    }
    assert_eq!(shell.run("man --dir rules.yaml").code, Some(2));
}

#[test]
fn schemas_are_json_with_the_field_names() {
    let shell = Shell::new();
    for (line, field) in [("rules schema", "token_bucket"), ("rules schema --tests", "retry_after")] {
        let output = shell.run(line);
        assert!(output.json()["$schema"].is_string() && output.out.contains(field), "{line}");
    }
    assert!(shell.run("rules schema --help").out.contains("# yaml-language-server: $schema="));
}

#[test]
fn help_goes_to_stdout_and_errors_to_stderr() {
    let shell = Shell::new();
    for line in ["--help", "-h", "help check", "check --help", "rules test --help", "--version"] {
        let output = shell.run(line);
        assert_eq!((output.code, output.err.as_str(), output.out.is_empty()), (Some(0), "", false), "{line}");
    }
    for line in ["", "rules", "chekc", "rules explain", "check", "completions cobol", "check --cost -1 --rules x"] {
        let output = shell.run(line);
        assert_eq!((output.code, output.out.as_str(), output.err.is_empty()), (Some(2), "", false), "{line}");
    }
    assert!(shell.run("chekc").err.contains("check"), "the error suggests the correct command");
    assert!(shell.run("check --help").out.contains("3 if the store failed"));
}

/// Each example exits with 0, or states its exit code.
#[test]
fn the_examples_of_every_help_text_run() {
    let shell = Shell::with_examples();
    shell.write("deliver", "#!/bin/sh\necho delivered\n");
    assert_eq!(shell.sh("chmod +x deliver").code, Some(0));
    let (mut run, mut delivered) = (0, 0);
    for command in ["", "rules", "rules validate", "rules explain", "rules test", "rules schema", "check"] {
        let help = shell.run(&format!("{command} -h")).out.replace("\\\n     ", "");
        for line in help.lines().filter(|line| line.starts_with("  tidegate ")) {
            if line.contains("check ") && line.contains("--store redis") {
                continue; // needs a Redis server
            }
            let output = shell.sh(line);
            let code = line.split_once("exit ").map_or(0, |(_, code)| code.trim().parse().unwrap());
            assert_eq!((output.code, output.err.as_str()), (Some(code), ""), "{line}\n{}", output.out);
            delivered += usize::from(output.out.ends_with("delivered\n"));
            run += 1;
        }
    }
    assert!(run >= 19 && delivered == 1, "only {run} examples were found");
}
