//! The arguments of `tidegate`, with the words of `--help`. What they mean is decided by the commands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::request::RequestArgs;
use tidegate_bench::BenchArgs;
use tidegate_bench::SurgeArgs;
use tidegate_server::command::{ColorChoice, SecretArgs, ServeArgs};

/// Rate limits for any service: write, check, explain and test them
#[derive(Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// When to write in colour
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t, help_heading = "Everywhere")]
    pub(crate) color: ColorChoice,
    /// A file of flags, such as `http: 0.0.0.0:8080`; flags and variables go before it
    #[arg(long, global = true, value_name = "FILE", env = "TIDEGATE_CONFIG", help_heading = "Everywhere")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Work on rule files: validate, explain, test
    #[command(after_help = RULES_EXAMPLES, arg_required_else_help = true)]
    Rules {
        #[command(subcommand)]
        command: RulesCommand,
    },
    Serve(Box<ServeArgs>),
    Check(CheckArgs),
    Bench(BenchArgs),
    Surge(SurgeArgs),
    /// Print a script that completes commands and flags in your shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write all of them
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// Write a page for each command into this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
pub(crate) enum RulesCommand {
    Validate(ValidateArgs),
    Explain(ExplainArgs),
    Test(TestArgs),
    Schema(SchemaArgs),
}

/// Read rule files and show every problem at once, each with its place
///
/// Exit code: 0 if the files can be used, 1 if one has errors (with --strict: or warnings), 2 for wrong arguments.
#[derive(Args)]
#[command(after_help = VALIDATE_EXAMPLES)]
pub(crate) struct ValidateArgs {
    /// The rule files; `-` is the standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Let warnings fail, too
    #[arg(long)]
    pub(crate) strict: bool,
    /// Go through the checklist for production as well; what is not met fails
    #[arg(long)]
    pub(crate) production: bool,
    /// The store of production, for its checklist
    #[arg(long, value_name = "URL", env = "TIDEGATE_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    /// Write one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say what a rule file makes of a request: which rules apply, whom they count, and what comes next
///
/// Nothing is decided and no store is asked: the timeline is what would happen to somebody new who sends this request
/// again and again. Exit code: 0, or 2 for wrong arguments or a file that cannot be used.
#[derive(Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// The rule file; `-` is the standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Write one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
}

/// Run the tests of rule files, in virtual time
///
/// Exit code: 0 if all pass, 1 if one fails or cannot be read, 2 for wrong arguments.
#[derive(Args)]
#[command(after_help = TEST_EXAMPLES)]
pub(crate) struct TestArgs {
    /// Test files, or directories: all *.test.yaml in them
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Write one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the results as XML, too, in the form of `JUnit`, which CI systems read
    #[arg(long, value_name = "PATH")]
    pub(crate) junit: Option<PathBuf>,
}

/// Print the JSON Schema of rule files, for editors
#[derive(Args)]
#[command(after_help = SCHEMA_EXAMPLES)]
pub(crate) struct SchemaArgs {
    /// That of test files instead
    #[arg(long)]
    pub(crate) tests: bool,
}

/// Decide a request by a rule file, once or several times
///
/// Exit code: 0 if it is allowed, also if it is to be held (see --wait), 1 if it is denied (of several, if any is), 2 for
/// wrong arguments or a file that cannot be used, 3 if the store failed.
#[derive(Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckArgs {
    /// The rule file; `-` is the standard input
    #[arg(long, value_name = "FILE", env = "TIDEGATE_RULES")]
    pub(crate) rules: PathBuf,
    /// Where the state is: `memory:`, which forgets it at the end, or redis://host:port, or with
    /// redis+sentinel:// or redis+cluster:// several; rediss for TLS
    #[arg(long, value_name = "URL", env = "TIDEGATE_STORE", hide_env_values = true, default_value = "memory:")]
    pub(crate) store: String,
    /// How many times to ask, one right after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) times: u64,
    /// Say what would be decided, and consume nothing
    #[arg(long)]
    pub(crate) peek: bool,
    /// Wait as long as an allowed request is to be held, so that what follows comes at its time
    #[arg(long, conflicts_with = "peek")]
    pub(crate) wait: bool,
    /// Write one JSON object for each decision, as POST /v1/check answers
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
}

const EXAMPLES: &str = "\
Examples:
  tidegate rules validate examples/ride-hailing.yaml
  tidegate rules explain examples/login.yaml --action login --attr account=a7 --ip 203.0.113.9
  tidegate rules test examples
  tidegate check --rules examples/minimal.yaml --ip 203.0.113.9 --times 30   # some denied: exit 1

Each command has a longer text: tidegate help rules explain";

const RULES_EXAMPLES: &str = "\
Examples:
  tidegate rules validate examples/login.yaml    # every problem of a file
  tidegate rules explain examples/login.yaml --action login --attr account=a7
  tidegate rules test examples                   # all tests of a directory
  tidegate rules schema > tidegate.schema.json   # for your editor";

const VALIDATE_EXAMPLES: &str = "\
Examples:
  tidegate rules validate examples/login.yaml examples/plans.yaml
  tidegate rules validate --strict examples/login.yaml     # in CI: warnings fail
  tidegate rules validate --production --store redis://cache:6379 \\
      examples/plans.yaml                                  # no secret: exit 1
  tidegate rules validate --json - < examples/login.yaml   # for programs";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  tidegate rules explain examples/ride-hailing.yaml -X POST --path /api/rides/request \\
      -H 'x-api-key: k1' --ip 203.0.113.9
  tidegate rules explain examples/login.yaml --action login --attr account=a7 --ip 203.0.113.9
  tidegate rules explain examples/plans.yaml -X GET --path /api/items --tenant acme --json";

const TEST_EXAMPLES: &str = "\
Examples:
  tidegate rules test examples/ride-hailing.test.yaml
  tidegate rules test examples                       # all *.test.yaml in it
  tidegate rules test --junit results.xml examples   # for CI";

const SCHEMA_EXAMPLES: &str = "\
Examples:
  tidegate rules schema > tidegate.schema.json
  tidegate rules schema --tests > tidegate-test.schema.json

An editor with the YAML language server then completes and checks a file that begins with
  # yaml-language-server: $schema=tidegate.schema.json";

const CHECK_EXAMPLES: &str = "\
Examples:
  tidegate check --rules examples/minimal.yaml --ip 203.0.113.9
  tidegate check --rules examples/ride-hailing.yaml -X POST --path /api/rides/request \\
      -H 'x-api-key: k1' --ip 203.0.113.9 --times 25       # some denied: exit 1
  tidegate check --rules examples/login.yaml --store redis://127.0.0.1:6379 \\
      --action login --attr account=a7 --ip 203.0.113.9 --peek --json
  tidegate check --rules examples/webhooks.yaml --action webhook --attr endpoint=e1 --wait \\
      && ./deliver";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate
  tidegate completions zsh > ~/.zfunc/_tidegate
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  tidegate man | man -l -
  tidegate man --dir ~/.local/share/man/man1";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples_that_name_it() {
        fn look(command: &clap::Command, path: &str) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Examples:") && help.contains(path), "{path} has no examples:\n{help}");
            for below in command.get_subcommands() {
                look(below, &format!("{path} {}", below.get_name()));
            }
        }
        look(&Cli::command(), "tidegate");
    }
}
