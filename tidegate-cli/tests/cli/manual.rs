//! Help, schema, completions and manual pages.

use crate::shell::Shell;

#[test]
fn completions_know_every_command() {
    let shell = Shell::new();
    for name in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = shell.run(&format!("completions {name}"));
        assert_eq!(ran.code, Some(0));
        for word in ["validate", "explain", "check", "junit"] {
            assert!(ran.out.contains(word), "{name} does not know {word}");
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
fn schemas_are_json_that_names_the_fields() {
    let shell = Shell::new();
    for (line, field) in [("rules schema", "token_bucket"), ("rules schema --tests", "retry_after")] {
        let ran = shell.run(line);
        assert!(ran.json()["$schema"].is_string() && ran.out.contains(field), "{line}");
    }
    assert!(shell.run("rules schema --help").out.contains("# yaml-language-server: $schema="));
}

#[test]
fn help_is_a_result_and_a_wrong_word_an_error() {
    let shell = Shell::new();
    for line in ["--help", "-h", "help check", "check --help", "rules test --help", "--version"] {
        let ran = shell.run(line);
        assert_eq!((ran.code, ran.err.as_str(), ran.out.is_empty()), (Some(0), "", false), "{line}");
    }
    for line in ["", "rules", "chekc", "rules explain", "check", "completions cobol", "check --cost -1 --rules x"] {
        let ran = shell.run(line);
        assert_eq!((ran.code, ran.out.as_str(), ran.err.is_empty()), (Some(2), "", false), "{line}");
    }
    assert!(shell.run("chekc").err.contains("check"), "the word that was meant is named");
    assert!(shell.run("check --help").out.contains("3 if the store failed"));
}

/// Examples that do not work teach nothing. They end with 0, or say how else.
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
                continue; // it needs a server
            }
            let ran = shell.sh(line);
            let code = line.split_once("exit ").map_or(0, |(_, code)| code.trim().parse().unwrap());
            assert_eq!((ran.code, ran.err.as_str()), (Some(code), ""), "{line}\n{}", ran.out);
            delivered += usize::from(ran.out.ends_with("delivered\n"));
            run += 1;
        }
    }
    assert!(run >= 19 && delivered == 1, "only {run} examples were found");
}
