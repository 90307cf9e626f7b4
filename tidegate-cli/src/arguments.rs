//! Parsing the arguments with clap. Errors never repeat a value: it may be a key, a password or a personal identifier.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches, ValueEnum};

use crate::cli::Cli;
use crate::config::{Config, wrong_value};
use crate::origins::{Origins, variable_name};
use tidegate_server::command::{ColorChoice, Exit, Failure, Output};

/// Parses the arguments, and finds out where values come from. After help, version or an error was printed, returns the exit code instead.
pub(crate) fn parse(arguments: &[OsString], output: &mut Output<'_>) -> Result<(Cli, Origins), Exit> {
    let (mut command, config) = match command_with_config(arguments) {
        Ok(configured) => configured,
        Err(failure) => {
            output.set_color(color_choice(arguments));
            let exit = output.report_failure(&failure);
            return Err(output.finish(exit));
        }
    };
    let matches = command.try_get_matches_from_mut(arguments);
    let parsed = matches.and_then(|matches| {
        let origins = Origins::new(&command, &matches, config.as_ref());
        Cli::from_arg_matches(&matches).map(|cli| (cli, origins))
    });
    let error = match parsed {
        Ok((cli, origins)) => {
            output.set_color(cli.color);
            return Ok((cli, origins));
        }
        Err(error) => error,
    };
    output.set_color(color_choice(arguments));
    Err(match private_message(&error, arguments) {
        Some(message) => {
            let exit = output.report_failure(&Failure::usage(message));
            output.finish(exit)
        }
        None => output.print_clap_error(&error),
    })
}

/// The command definition, with the values of the config file, if one is named. Only the name of the file is read from the
/// arguments here; errors in them are reported later.
fn command_with_config(arguments: &[OsString]) -> Result<(Command, Option<Config>), Failure> {
    let matches = Cli::command().ignore_errors(true).try_get_matches_from(arguments);
    let file = matches.ok().and_then(|matches| matches.get_one::<PathBuf>("config").cloned());
    let command = Cli::command();
    match file {
        None => Ok((command, None)),
        Some(file) => {
            let config = Config::load(&file, &command)?;
            Ok((config.apply(command), Some(config)))
        }
    }
}

/// The value of `--color` where clap returns no arguments: with `--help`, or after an error.
fn color_choice(arguments: &[OsString]) -> ColorChoice {
    let mut words = arguments.iter().map(|word| word.to_str().unwrap_or_default()).take_while(|word| *word != "--");
    let mut choice = ColorChoice::default();
    while let Some(word) = words.next() {
        let value = if word == "--color" { words.next() } else { word.strip_prefix("--color=") };
        if let Some(parsed) = value.and_then(|value| ColorChoice::from_str(value, false).ok()) {
            choice = parsed;
        }
    }
    choice
}

/// A message for errors in which clap would repeat a value; most often it is the second word of a value without quotes, as
/// in `-H x-api-key: k1`.
fn private_message(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let message = match error.kind() {
        ErrorKind::UnknownArgument if text(ContextKind::InvalidArg).is_some_and(|word| !word.starts_with('-')) => {
            "unexpected argument; quote a value with spaces, as in -H 'name: value'".to_owned()
        }
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let flag = text(ContextKind::InvalidArg).unwrap_or("a flag");
            let mut command = Cli::command();
            // Without it, flags have no names for messages.
            command.build();
            let variable = variable(&command, flag, arguments).map(|name| variable_name(&name));
            let is_missing = text(ContextKind::InvalidValue).is_none_or(str::is_empty);
            if error.kind() == ErrorKind::InvalidValue && is_missing && variable.is_none() {
                return None;
            }
            format!("{} {}", variable.as_deref().unwrap_or(flag), wrong_value(error))
        }
        ErrorKind::TooManyValues => {
            format!("{} takes no value", text(ContextKind::InvalidArg).unwrap_or("a flag"))
        }
        _ => return None,
    };
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => format!("\n\n{usage}"),
        _ => String::new(),
    };
    Some(format!("{message}{usage}\n\nFor more information, try '--help'."))
}

/// The environment variable that a value came from: that of the flag, if the arguments do not have the flag.
fn variable(command: &Command, flag: &str, arguments: &[OsString]) -> Option<String> {
    let is_given = |name: &str| {
        let words = arguments.iter().filter_map(|word| word.to_str()).take_while(|word| *word != "--");
        words.filter_map(|word| word.strip_prefix("--")).any(|word| word.split('=').next() == Some(name))
    };
    let of_flag = command.get_arguments().find(|argument| argument.to_string() == flag);
    let name =
        of_flag.filter(|argument| !argument.get_long().is_some_and(is_given)).and_then(|argument| argument.get_env());
    match name.filter(|name| std::env::var_os(name).is_some()) {
        Some(name) => Some(name.to_string_lossy().into_owned()),
        None => command.get_subcommands().find_map(|command| variable(command, flag, arguments)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a command line as on a terminal with color; returns exit code, stdout and stderr.
    fn run_on_terminal(line: &str) -> (Exit, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut output = Output::new(&mut out, &mut err).with_color(true).with_error_color(true);
        let exit = crate::run(line.split(' '), &mut output);
        (exit, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn color_never_applies_to_help_and_errors_too() {
        let has_color = |line: &str| {
            let (_, out, err) = run_on_terminal(line);
            assert!(!out.is_empty() || !err.is_empty(), "{line}");
            out.contains('\x1b') || err.contains('\x1b')
        };
        for line in ["--help", "check --help", "--colour", "check x", "--color auto --help", "-- --color never"] {
            assert!(has_color(&format!("tidegate {line}")), "{line}");
        }
        for line in
            ["--color never --help", "check --help --color=never", "--color never --colour", "--color never check x"]
        {
            assert!(!has_color(&format!("tidegate {line}")), "{line}");
        }
    }

    #[test]
    fn an_error_does_not_repeat_a_misplaced_value() {
        for (line, start) in [
            (
                "check --rules r.yaml -H x-api-key: hunter2",
                "unexpected argument; quote a value with spaces, as in -H 'name: value'\n\n\
                 Usage: tidegate check ",
            ),
            ("check --rules r.yaml --json=hunter2", "--json takes no value\n\n"),
            (
                "serve --http hunter2",
                "--http <ADDR> does not take this value: write an IP address and a port, such as 127.0.0.1:8080",
            ),
            ("serve --upstream http://user:hunter2<@h", "--upstream <URL> does not take this value: "),
        ] {
            let (exit, out, err) = run_on_terminal(&format!("tidegate --color never {line}"));
            assert_eq!((exit, out.as_str()), (Exit::Usage, ""), "{line}");
            assert!(err.starts_with(&format!("error: {start}")) && !err.contains("hunter2"), "{line}: {err}");
        }
        let (_, _, err) = run_on_terminal("tidegate --color never check --patth /");
        assert!(
            err.contains("'--patth'") && err.contains("'--path'"),
            "an unknown flag is named, with a suggestion: {err}"
        );
    }
}
