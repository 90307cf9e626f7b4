//! Reading the arguments: what clap makes of them, in the colours that they ask for. It must not repeat a value: that may be
//! a key, a password or a person.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches, ValueEnum};

use crate::cli::Cli;
use crate::config::Config;
use tidegate_server::command::{ColorChoice, Exit, Failure, Output};

/// The arguments; or, after help, a version or an error was shown, how to end.
pub(crate) fn read(arguments: &[OsString], output: &mut Output<'_>) -> Result<Cli, Exit> {
    let commands = match configured(arguments) {
        Ok(commands) => commands,
        Err(failure) => {
            output.set_color(colour(arguments));
            let exit = output.report_failure(&failure);
            return Err(output.finish(exit));
        }
    };
    let answer = match commands.try_get_matches_from(arguments).and_then(|found| Cli::from_arg_matches(&found)) {
        Ok(cli) => {
            output.set_color(cli.color);
            return Ok(cli);
        }
        Err(answer) => answer,
    };
    output.set_color(colour(arguments));
    Err(match astray(&answer) {
        Some(message) => {
            let exit = output.report_failure(&Failure::usage(message));
            output.finish(exit)
        }
        None => output.print_clap_error(&answer),
    })
}

/// The commands, with what the config file says, if one is named. The arguments are looked at for nothing but its name: what is
/// wrong with them is told later.
fn configured(arguments: &[OsString]) -> Result<Command, Failure> {
    let found = Cli::command().ignore_errors(true).try_get_matches_from(arguments);
    let file = found.ok().and_then(|found| found.get_one::<PathBuf>("config").cloned());
    let commands = Cli::command();
    match file {
        None => Ok(commands),
        Some(file) => Ok(Config::load(&file, &commands)?.apply(commands)),
    }
}

/// What `--color` says, where clap has no arguments to tell it: beside `--help`, or beside a mistake.
fn colour(arguments: &[OsString]) -> ColorChoice {
    let mut words = arguments.iter().map(|word| word.to_str().unwrap_or_default()).take_while(|word| *word != "--");
    let mut chosen = ColorChoice::default();
    while let Some(word) = words.next() {
        let value = if word == "--color" { words.next() } else { word.strip_prefix("--color=") };
        if let Some(colour) = value.and_then(|value| ColorChoice::from_str(value, false).ok()) {
            chosen = colour;
        }
    }
    chosen
}

/// What to say of a value that stands where none belongs, which clap would repeat: most often it is the second word of one
/// that should have been quoted, as in `-H x-api-key: k1`.
fn astray(answer: &clap::Error) -> Option<String> {
    let text = |kind| match answer.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let message = match answer.kind() {
        ErrorKind::UnknownArgument if text(ContextKind::InvalidArg).is_some_and(|word| !word.starts_with('-')) => {
            "there is a word too many; a value with spaces must be quoted, as in -H 'name: value'".to_owned()
        }
        ErrorKind::ValueValidation => {
            let flag = text(ContextKind::InvalidArg).unwrap_or("one of the flags");
            let why = std::error::Error::source(answer).map_or_else(String::new, |why| format!(": {why}"));
            format!("{flag} does not take this value{why}")
        }
        ErrorKind::TooManyValues => {
            format!("{} takes no value", text(ContextKind::InvalidArg).unwrap_or("one of the flags"))
        }
        _ => return None,
    };
    let usage = match answer.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => format!("\n\n{usage}"),
        _ => String::new(),
    };
    Some(format!("{message}{usage}\n\nFor more information, try '--help'."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What goes to the results and to the errors of a terminal.
    fn on_terminal(line: &str) -> (Exit, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut output = Output::new(&mut out, &mut err).with_color(true).with_error_color(true);
        let exit = crate::run(line.split(' '), &mut output);
        (exit, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn who_wants_no_colour_gets_none_in_help_and_mistakes_either() {
        let coloured = |line: &str| {
            let (_, out, err) = on_terminal(line);
            assert!(!out.is_empty() || !err.is_empty(), "{line}");
            out.contains('\x1b') || err.contains('\x1b')
        };
        for line in ["--help", "check --help", "--colour", "check x", "--color auto --help", "-- --color never"] {
            assert!(coloured(&format!("tidegate {line}")), "{line}");
        }
        for line in
            ["--color never --help", "check --help --color=never", "--color never --colour", "--color never check x"]
        {
            assert!(!coloured(&format!("tidegate {line}")), "{line}");
        }
    }

    #[test]
    fn a_value_that_went_astray_is_not_repeated() {
        for (line, begins) in [
            (
                "check --rules r.yaml -H x-api-key: hunter2",
                "there is a word too many; a value with spaces must be quoted, as in -H 'name: value'\n\n\
                 Usage: tidegate check ",
            ),
            ("check --rules r.yaml --json=hunter2", "--json takes no value\n\n"),
            ("serve --http hunter2", "--http <ADDR> does not take this value: invalid socket address syntax"),
            ("serve --upstream http://user:hunter2<@h", "--upstream <URL> does not take this value: "),
        ] {
            let (exit, out, err) = on_terminal(&format!("tidegate --color never {line}"));
            assert_eq!((exit, out.as_str()), (Exit::Usage, ""), "{line}");
            assert!(err.starts_with(&format!("error: {begins}")) && !err.contains("hunter2"), "{line}: {err}");
        }
        let (_, _, err) = on_terminal("tidegate --color never check --patth /");
        assert!(err.contains("'--patth'") && err.contains("'--path'"), "a flag is named, with what was meant: {err}");
    }
}
