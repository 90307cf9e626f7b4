//! `Config`: one optional file that holds flags under their names: `--envoy-config` is `envoy-config:` there, as it is
//! `TIDEGATE_ENVOY_CONFIG` in the environment. A flag goes before its variable, and both go before the file.
//!
//! Its problems are told by line and column and without an excerpt: a line may hold a password.

use std::path::Path;

use clap::{Arg, ArgAction, Command};
use tidegate_rules::yaml::{self, Node, NodeKind, SourceFile};
use tidegate_rules::{Report, sanitize, suggest};
use tidegate_server::command::Failure;

/// What the file says, by the names of flags.
#[derive(Debug)]
pub(crate) struct Config {
    settings: Vec<(String, String)>,
}

impl Config {
    /// Reads the file for these commands: each name must be one of their flags, and each value one that it takes.
    pub(crate) fn load(path: &Path, commands: &Command) -> Result<Self, Failure> {
        let unreadable = |why: String| Failure::usage(format!("{}: {why}", path.display()));
        let source = SourceFile::load(path).map_err(unreadable)?;
        let root = yaml::parse(&source).map_err(|report| Failure::usage(without_excerpt(&report)))?;
        let problem = |node: &Node, what: String| {
            let (line, column) = source.position(node.span.start);
            format!("{}:{line}:{column}: {what}", path.display())
        };
        let fields = match &root.kind {
            NodeKind::Map(fields) => fields.as_slice(),
            NodeKind::Null => &[],
            _ => {
                return Err(Failure::usage(problem(
                    &root,
                    "flags are wanted here, such as `http: 127.0.0.1:8080`".into(),
                )));
            }
        };
        let (mut settings, mut problems) = (Vec::new(), Vec::new());
        for (key, value) in fields {
            match setting(key, value, commands) {
                Ok(setting) => settings.push(setting),
                Err(Wrong::Name(what)) => problems.push(problem(key, what)),
                Err(Wrong::Value(what)) => problems.push(problem(value, what)),
            }
        }
        if problems.is_empty() { Ok(Self { settings }) } else { Err(Failure::usage(problems.join("\n"))) }
    }

    /// The same commands, with what the file says where neither a flag nor a variable does.
    pub(crate) fn apply(&self, command: Command) -> Command {
        let command = command.mut_args(|argument| {
            let set = |(name, _): &&(String, String)| is_flag(&argument, name);
            match self.settings.iter().rfind(set) {
                Some((_, value)) => {
                    let is_switch = matches!(argument.get_action(), ArgAction::SetTrue);
                    let argument = argument.default_value(value.clone()).required(false);
                    // It may be a password, which help would show.
                    if is_switch { argument } else { argument.hide_default_value(true) }
                }
                None => argument,
            }
        });
        command.mut_subcommands(|command| self.apply(command))
    }
}

/// The problems of a file that is no YAML.
fn without_excerpt(report: &Report) -> String {
    let told = report.problems().iter().map(|problem| {
        let (line, column) = report.position(problem);
        format!("{}:{line}:{column}: {}", report.file(), problem.message())
    });
    told.collect::<Vec<_>>().join("\n")
}

/// What is wrong with a line.
enum Wrong {
    Name(String),
    Value(String),
}

fn setting(key: &Node, value: &Node, commands: &Command) -> Result<(String, String), Wrong> {
    let name = key.text().unwrap_or_default();
    let known = flags(commands);
    let Some(flag) = known.iter().find(|flag| is_flag(flag, name)) else {
        let help = suggest(name, known.iter().filter_map(|flag| flag.get_long()));
        return Err(Wrong::Name(format!("there is no flag --{}; {help}", sanitize(name))));
    };
    let Some(text) = value.text().filter(|_| !matches!(value.kind, NodeKind::Null)) else {
        return Err(Wrong::Value(format!("--{name} takes a single value, not {}", value.what())));
    };
    if matches!(flag.get_action(), ArgAction::SetTrue) {
        return match value.kind {
            NodeKind::Bool(..) => Ok((name.to_owned(), text.to_owned())),
            _ => Err(Wrong::Value(format!("--{name} is true or false"))),
        };
    }
    let alone = Command::new("value").arg((*flag).clone().required(false));
    match alone.try_get_matches_from(["value".to_owned(), format!("--{name}={text}")]) {
        Ok(_) => Ok((name.to_owned(), text.to_owned())),
        Err(error) => {
            // Clap would repeat the value; why it is wrong is enough.
            let why = std::error::Error::source(&error).map_or_else(String::new, |why| format!(": {why}"));
            Err(Wrong::Value(format!("--{name} does not take this value{why}")))
        }
    }
}

/// The flags that can be set by a variable, which are the same that can stand in the file.
fn flags(command: &Command) -> Vec<&Arg> {
    let is_known = |argument: &&Arg| argument.get_long().is_some_and(|name| is_flag(argument, name));
    let below = command.get_subcommands().flat_map(flags);
    let mut all: Vec<&Arg> = command.get_arguments().filter(is_known).chain(below).collect();
    all.sort_by_key(|flag| flag.get_long());
    all.dedup_by_key(|flag| flag.get_long());
    all
}

fn is_flag(argument: &Arg, name: &str) -> bool {
    // A file that named another file would be one more place to look.
    argument.get_env().is_some() && argument.get_long() == Some(name) && name != "config"
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_flag_of_the_server_has_its_variable_and_its_place_in_the_file() {
        let commands = Cli::command();
        let serve = commands.find_subcommand("serve").unwrap();
        for flag in serve.get_arguments().filter(|flag| !["help", "config", "color"].contains(&flag.get_id().as_str()))
        {
            let name = flag.get_long().unwrap();
            let variable = format!("TIDEGATE_{}", name.replace('-', "_").to_uppercase());
            assert_eq!(flag.get_env().and_then(|name| name.to_str()), Some(variable.as_str()));
            assert!(flags(&commands).iter().any(|known| is_flag(known, name)), "{name}");
        }
    }

    #[test]
    fn what_the_file_sets_is_taken_and_not_shown_by_help() {
        let settings =
            [("store", "redis://:hunter2@h"), ("secret", "hunter2"), ("envoy-strict", "true"), ("drain", "7")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let commands = Config { settings }.apply(Cli::command());
        let help = commands.clone().try_get_matches_from(["tidegate", "serve", "--help"]).unwrap_err().to_string();
        assert!(help.contains("--store <URL>") && !help.contains("hunter2"), "{help}");
        let found = commands.try_get_matches_from(["tidegate", "serve"]).unwrap();
        let serve = found.subcommand_matches("serve").unwrap();
        assert_eq!((serve.get_flag("envoy_strict"), serve.get_one::<u64>("drain")), (true, Some(&7)));
        assert_eq!(serve.get_one::<String>("store").unwrap(), "redis://:hunter2@h");
    }
}
