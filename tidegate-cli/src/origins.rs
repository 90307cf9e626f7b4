//! `Origins`: where the values of settings come from, if not from the command line. Errors that are found after the arguments are parsed begin
//! with the name of a flag; whoever wrote a variable or a config file looks for the mistake there.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use tidegate_server::command::Failure;

use crate::config::Config;

/// The flags with a value from a variable or the config file, and the names of these places.
#[derive(Debug, Default)]
pub(crate) struct Origins(Vec<(String, String)>);

impl Origins {
    /// The origins of the values of a command and its subcommands.
    pub(crate) fn new(command: &Command, matches: &ArgMatches, config: Option<&Config>) -> Self {
        let mut origins = Vec::new();
        for argument in command.get_arguments() {
            let Some(name) = argument.get_long() else { continue };
            let place = match (matches.value_source(argument.get_id().as_str()), argument.get_env()) {
                (Some(ValueSource::EnvVariable), Some(variable)) => Some(variable_name(&variable.to_string_lossy())),
                (Some(ValueSource::DefaultValue), _) => config.and_then(|config| config.place(name)),
                _ => None,
            };
            origins.extend(place.map(|place| (format!("--{name}"), place)));
        }
        if let Some((name, matches)) = matches.subcommand()
            && let Some(command) = command.find_subcommand(name)
        {
            origins.extend(Self::new(command, matches, config).0);
        }
        Self(origins)
    }

    /// The failure, with the place of the value in front in place of the flag.
    pub(crate) fn blame(&self, failure: Failure) -> Failure {
        let Failure::Usage(message) = failure else { return failure };
        let blamed = self.0.iter().find_map(|(flag, place)| {
            let rest = message.strip_prefix(flag.as_str())?;
            rest.starts_with([':', ' ']).then(|| format!("{place}{rest}"))
        });
        Failure::Usage(blamed.unwrap_or(message))
    }
}

/// How errors name a variable.
pub(crate) fn variable_name(variable: &str) -> String {
    format!("the variable {variable}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_flag_at_the_beginning_is_replaced() {
        let origins = Origins(vec![("--store".to_owned(), "the variable TIDEGATE_STORE".to_owned())]);
        let blamed = |message: &str| match origins.blame(Failure::usage(message)) {
            Failure::Usage(message) => message,
            _ => String::new(),
        };
        assert_eq!(blamed("--store: x"), "the variable TIDEGATE_STORE: x");
        for message in ["--store-budget: x", "the --store: x", "--http needs --store"] {
            assert_eq!(blamed(message), message);
        }
        assert!(
            matches!(origins.blame(Failure::Server("--store: x".into())), Failure::Server(text) if text == "--store: x")
        );
    }
}
