//! `Config`: the optional config file, a YAML map of flags. `--envoy-config` is `envoy-config:` in the file and
//! `TIDEGATE_ENVOY_CONFIG` in the environment. A flag overrides its variable, and both override the file.
//!
//! Errors name line and column without an excerpt: a line may contain a password.

use std::path::Path;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};
use tidegate_rules::yaml::{self, Node, NodeKind, SourceFile};
use tidegate_rules::{Report, sanitize, suggest};
use tidegate_server::command::Failure;

/// The values of the file, by flag name.
#[derive(Debug)]
pub(crate) struct Config {
    settings: Vec<Setting>,
}

/// The value of a flag.
#[derive(Debug)]
struct Setting {
    name: String,
    value: String,
    /// The file with the line and column of the value.
    position: String,
}

impl Config {
    /// Reads the file. Each name must be a flag of `command` or its subcommands, and each value valid for it.
    pub(crate) fn load(path: &Path, command: &Command) -> Result<Self, Failure> {
        let unreadable = |reason: String| Failure::usage(format!("{}: {reason}", path.display()));
        let source = SourceFile::load(path).map_err(unreadable)?;
        let root = yaml::parse(&source).map_err(|report| Failure::usage(without_excerpt(&report)))?;
        let position = |node: &Node| {
            let (line, column) = source.position(node.span.start);
            format!("{}:{line}:{column}", path.display())
        };
        let problem = |node: &Node, message: String| format!("{}: {message}", position(node));
        let fields = match &root.kind {
            NodeKind::Map(fields) => fields.as_slice(),
            NodeKind::Null => &[],
            _ => {
                return Err(Failure::usage(problem(&root, "expected flags, such as `http: 127.0.0.1:8080`".into())));
            }
        };
        let (mut settings, mut problems) = (Vec::new(), Vec::new());
        for (key, value) in fields {
            match parse_setting(key, value, command) {
                Ok((name, value_text)) => {
                    settings.push(Setting { name, value: value_text, position: position(value) });
                }
                Err(SettingError::Name(message)) => problems.push(problem(key, message)),
                Err(SettingError::Value(message)) => problems.push(problem(value, message)),
            }
        }
        if problems.is_empty() { Ok(Self { settings }) } else { Err(Failure::usage(problems.join("\n"))) }
    }

    /// Makes the values of the file the defaults of their flags.
    pub(crate) fn apply(&self, command: Command) -> Command {
        let command = command.mut_args(|argument| {
            match self.settings.iter().rfind(|setting| is_flag(&argument, &setting.name)) {
                Some(setting) => {
                    let is_switch = matches!(argument.get_action(), ArgAction::SetTrue);
                    let argument = argument.default_value(setting.value.clone()).required(false);
                    // The value may be a password, and help would show it.
                    if is_switch { argument } else { argument.hide_default_value(true) }
                }
                None => argument,
            }
        });
        command.mut_subcommands(|command| self.apply(command))
    }

    /// The place of a flag in the file, if the file has it.
    pub(crate) fn place(&self, name: &str) -> Option<String> {
        let setting = self.settings.iter().rfind(|setting| setting.name == name)?;
        Some(format!("{}: --{name}", setting.position))
    }
}

/// The problems of a file that is not valid YAML.
fn without_excerpt(report: &Report) -> String {
    let lines = report.problems().iter().map(|problem| {
        let (line, column) = report.position(problem);
        format!("{}:{line}:{column}: {}", report.file(), problem.message())
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What is wrong with a setting: its name or its value.
enum SettingError {
    Name(String),
    Value(String),
}

fn parse_setting(key: &Node, value: &Node, command: &Command) -> Result<(String, String), SettingError> {
    let name = key.text().unwrap_or_default();
    let known = configurable_flags(command);
    let Some(flag) = known.iter().find(|flag| is_flag(flag, name)) else {
        let help = suggest(name, known.iter().filter_map(|flag| flag.get_long()));
        return Err(SettingError::Name(format!("unknown flag --{}; {help}", sanitize(name))));
    };
    let Some(text) = value.text().filter(|_| !matches!(value.kind, NodeKind::Null)) else {
        return Err(SettingError::Value(format!("--{name} takes a single value, not {}", value.type_name())));
    };
    if matches!(flag.get_action(), ArgAction::SetTrue) {
        return match value.kind {
            NodeKind::Bool(..) => Ok((name.to_owned(), text.to_owned())),
            _ => Err(SettingError::Value(format!("--{name} does not take this value: write true or false"))),
        };
    }
    let parser = Command::new("value").arg((*flag).clone().required(false));
    match parser.try_get_matches_from(["value".to_owned(), format!("--{name}={text}")]) {
        Ok(_) => Ok((name.to_owned(), text.to_owned())),
        Err(error) => Err(SettingError::Value(format!("--{name} {}", wrong_value(&error)))),
    }
}

/// What is wrong with a value. Clap's message would repeat it; its cause and the possible values do not.
pub(crate) fn wrong_value(error: &clap::Error) -> String {
    let reason = match (std::error::Error::source(error), error.get(ContextKind::ValidValue)) {
        (Some(reason), _) => format!(": {reason}"),
        (None, Some(ContextValue::Strings(values))) => match values.as_slice() {
            [values @ .., last] if !values.is_empty() => format!(": write {} or {last}", values.join(", ")),
            _ => String::new(),
        },
        _ => String::new(),
    };
    format!("does not take this value{reason}")
}

/// The flags that the file may set: those with an environment variable.
fn configurable_flags(command: &Command) -> Vec<&Arg> {
    let is_configurable = |argument: &&Arg| argument.get_long().is_some_and(|name| is_flag(argument, name));
    let of_subcommands = command.get_subcommands().flat_map(configurable_flags);
    let mut all: Vec<&Arg> = command.get_arguments().filter(is_configurable).chain(of_subcommands).collect();
    all.sort_by_key(|flag| flag.get_long());
    all.dedup_by_key(|flag| flag.get_long());
    all
}

fn is_flag(argument: &Arg, name: &str) -> bool {
    // A config file cannot name another config file.
    argument.get_env().is_some() && argument.get_long() == Some(name) && name != "config"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_flag_of_serve_can_be_set_by_a_variable_and_by_the_file() {
        let commands = Cli::command();
        let serve = commands.find_subcommand("serve").unwrap();
        for flag in serve.get_arguments().filter(|flag| !["help", "config", "color"].contains(&flag.get_id().as_str()))
        {
            let name = flag.get_long().unwrap();
            let variable = format!("TIDEGATE_{}", name.replace('-', "_").to_uppercase());
            assert_eq!(flag.get_env().and_then(|name| name.to_str()), Some(variable.as_str()));
            assert!(configurable_flags(&commands).iter().any(|known| is_flag(known, name)), "{name}");
        }
    }

    #[test]
    fn values_of_the_file_apply_and_do_not_appear_in_help() {
        let settings =
            [("store", "redis://:hunter2@h"), ("secret", "hunter2"), ("envoy-strict", "true"), ("drain", "7")];
        let settings = settings.map(|(name, value)| Setting {
            name: name.to_owned(),
            value: value.to_owned(),
            position: String::new(),
        });
        let commands = Config { settings: settings.into() }.apply(Cli::command());
        let help = commands.clone().try_get_matches_from(["tidegate", "serve", "--help"]).unwrap_err().to_string();
        assert!(help.contains("--store <URL>") && !help.contains("hunter2"), "{help}");
        let matches = commands.try_get_matches_from(["tidegate", "serve"]).unwrap();
        let serve = matches.subcommand_matches("serve").unwrap();
        assert_eq!(
            (serve.get_flag("envoy_strict"), serve.get_one::<Duration>("drain")),
            (true, Some(&Duration::from_secs(7)))
        );
        assert_eq!(serve.get_one::<String>("store").unwrap(), "redis://:hunter2@h");
    }
}
