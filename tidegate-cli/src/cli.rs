//! The commands and flags of `tidegate`, with the texts of `--help`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::admin_client::AdminArgs;
use crate::quota::{EXAMPLES as QUOTA_EXAMPLES, QuotaCommand};
use crate::request::RequestArgs;
use tidegate_rules::FrontDoor;
use tidegate_server::command::{ColorChoice, NamespaceArgs, SecretArgs, ServeArgs};

/// Rate limits for any service: serve, check, explain and test them
#[derive(Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// When to use color
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t, help_heading = "Global options")]
    pub(crate) color: ColorChoice,
    /// A YAML file with flags, such as `http: 0.0.0.0:8080`. Flags and environment variables override it
    #[arg(long, global = true, value_name = "FILE", env = "TIDEGATE_CONFIG", help_heading = "Global options")]
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
    /// Show or reset the limits of one subject, such as an API key, a user or an address, in a running server
    #[command(after_help = SUBJECT_EXAMPLES, arg_required_else_help = true)]
    Subject {
        #[command(subcommand)]
        command: SubjectCommand,
    },
    /// Show, correct, reconcile and export what the ledger of a running server has of quotas
    #[command(after_help = QUOTA_EXAMPLES, arg_required_else_help = true)]
    Quota {
        #[command(subcommand)]
        command: QuotaCommand,
    },
    Status(StatusArgs),
    /// Print a completion script for your shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell that completes commands and flags
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all commands
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// Write one page per command into this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
pub(crate) enum SubjectCommand {
    /// Show the buckets of a subject, and what its next request would get
    ///
    /// Describe the subject by as much of a request as identifies it. Every rule that counts by it is shown, whether or not it matches
    /// the request. Nothing is consumed. Without --path and --action, the first line is about the limits of the subject, not about a
    /// request. Exit code: 0 if the request would be allowed, or no limit of the subject denies, 1 if one denies, 2 for wrong arguments or a
    /// missing token, 3 if the server or its store does not answer.
    #[command(after_help = SUBJECT_SHOW_EXAMPLES)]
    Show(SubjectArgs),
    /// Reset the buckets of a subject, so that it starts with full limits
    ///
    /// All instances of the server admit it within a second. Limits that all senders share are not reset. The server writes the reset
    /// to its log, with a hash of the subject. Needs the admin token. Exit code: 0 if something was reset, 1 if there was nothing to
    /// reset, 2 for wrong arguments or a missing token, 3 if the server or its store does not answer.
    ///
    /// A quota with a ledger is reset by an entry of the ledger, which has an author and a reason.
    #[command(after_help = SUBJECT_RESET_EXAMPLES)]
    Reset(ResetArgs),
}

/// The subject, and who resets it.
#[derive(Args)]
pub(crate) struct ResetArgs {
    /// Why, for quotas with a ledger
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Who resets it, for quotas with a ledger
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true)]
    pub(crate) author: Option<String>,
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,
}

/// The subject, and the server that is asked.
#[derive(Args)]
pub(crate) struct SubjectArgs {
    /// Only the buckets of this rule
    #[arg(long, value_name = "ID")]
    pub(crate) rule: Option<String>,
    /// In place of a request: the digits of the subject in a line of the log, 8 or more. They are looked for among the subjects that the server
    /// has refused in the last hour
    #[arg(long, value_name = "DIGITS")]
    pub(crate) hash: Option<String>,
    /// Print the answer of the server as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// Show the state of a running server: front ends, store, circuit breakers, ledger, rules, instances
///
/// Exit code: 0 if all is well, 1 if the store or the ledger does not answer, a changed file could not be loaded, or instances have had different
/// rules for ten minutes, 2 for wrong arguments or a
/// missing token, 3 if the server does not answer.
#[derive(Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub(crate) struct StatusArgs {
    /// Print the answer of the server as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

#[derive(Subcommand)]
pub(crate) enum RulesCommand {
    Validate(ValidateArgs),
    Explain(ExplainArgs),
    Test(TestArgs),
    Schema(SchemaArgs),
}

/// Check rule files and show all problems at once, each with its position
///
/// Exit code: 0 if all files are usable (with --door: at these front ends), 1 if one has errors (with --strict: or warnings), 2 for wrong
/// arguments.
#[derive(Args)]
#[command(after_help = VALIDATE_EXAMPLES)]
pub(crate) struct ValidateArgs {
    /// Rule files; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Treat warnings as errors
    #[arg(long)]
    pub(crate) strict: bool,
    /// Check everything that this front end never has of a request, and what its callers must send: gateway, forward-auth, check, tower,
    /// envoy, library; may be repeated. Without it, the rules that never apply at a front end, or share one count there, are named for all
    #[arg(long, value_name = "DOOR", value_parser = door_parser(), hide_possible_values = true)]
    pub(crate) door: Vec<FrontDoor>,
    /// Also check the production checklist; unmet items are errors
    #[arg(long)]
    pub(crate) production: bool,
    /// The store used in production, for the checklist
    #[arg(long, value_name = "URL", env = "TIDEGATE_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Explain what a rule file does with a request: which rules apply, what they count by, and when requests are denied
///
/// No store is used. The timeline shows what happens to a new subject that repeats this request. Exit code: 0, or 2 for wrong
/// arguments or an unusable file.
#[derive(Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// The rule file; `-` is standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
}

/// Run tests of rule files in virtual time
///
/// Exit code: 0 if all tests pass, 1 if one fails or a file is unusable, 2 for wrong arguments.
#[derive(Args)]
#[command(after_help = TEST_EXAMPLES)]
pub(crate) struct TestArgs {
    /// Test files, or directories with *.test.yaml files
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write the results as `JUnit` XML, for CI systems
    #[arg(long, value_name = "PATH")]
    pub(crate) junit: Option<PathBuf>,
}

/// Print the JSON Schema of rule files, for editors
#[derive(Args)]
#[command(after_help = SCHEMA_EXAMPLES)]
pub(crate) struct SchemaArgs {
    /// Print the schema of test files instead
    #[arg(long)]
    pub(crate) tests: bool,
}

/// Decide a request with a rule file, once or several times
///
/// Exit code: 0 if it is allowed, even with a delay (see --wait), 1 if it is denied (with --times: at least once), 2 for wrong
/// arguments or an unusable file, 3 if the store failed.
///
/// Slots of concurrency limits are held until the last decision and then released.
#[derive(Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckArgs {
    /// The rule file; `-` is standard input
    #[arg(long, value_name = "FILE", env = "TIDEGATE_RULES")]
    pub(crate) rules: PathBuf,
    /// The store: `memory:`, which lasts only for this command, or redis://host:port, redis+sentinel:// or
    /// redis+cluster://; rediss for TLS
    #[arg(long, value_name = "URL", env = "TIDEGATE_STORE", hide_env_values = true, default_value = "memory:")]
    pub(crate) store: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// How many times to decide, without a pause
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) times: u64,
    /// Show the decision without consuming anything
    #[arg(long)]
    pub(crate) peek: bool,
    /// Wait for the delay of an allowed request, so that a following command runs at the right time
    #[arg(long, conflicts_with = "peek")]
    pub(crate) wait: bool,
    /// Print each decision as one JSON object, in the format of POST /v1/check
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

More about a command: tidegate help rules explain";

const RULES_EXAMPLES: &str = "\
Examples:
  tidegate rules validate examples/login.yaml    # all problems of a file
  tidegate rules explain examples/login.yaml --action login --attr account=a7
  tidegate rules test examples                   # all tests of a directory
  tidegate rules schema > tidegate.schema.json   # for your editor";

const VALIDATE_EXAMPLES: &str = "\
Examples:
  tidegate rules validate examples/login.yaml examples/plans.yaml
  tidegate rules validate --strict examples/login.yaml     # in CI: warnings fail
  tidegate rules validate --door gateway --door forward-auth examples/ride-hailing.yaml
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

An editor with the YAML language server completes and checks a file that begins with
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

const SUBJECT_EXAMPLES: &str = "\
Examples:
  tidegate subject show -H 'x-api-key: k1'     # why is this customer blocked?
  tidegate subject reset -H 'x-api-key: k1'    # let it start again";

const SUBJECT_SHOW_EXAMPLES: &str = "\
Examples:
  tidegate subject show -H 'x-api-key: k1'
  tidegate subject show --ip 203.0.113.9 -X POST --path /api/rides/request
  tidegate subject show --action login --attr account=a7 --rule login-account --json
  tidegate subject show --hash 5b0c63d1        # the digits of a line of the log
  TIDEGATE_ADMIN_TOKEN=... tidegate subject show --admin http://10.0.0.7:8082 --tenant acme";

const SUBJECT_RESET_EXAMPLES: &str = "\
Examples:
  tidegate subject reset -H 'x-api-key: k1' --admin-token-file admin-token
  tidegate subject reset --attr account=a7 --rule login-account
  tidegate subject reset --hash 5b0c63d1 --rule login-account
  tidegate subject reset --tenant acme --rule export-units --reason 'trial restarted'   # a quota with a ledger";

const STATUS_EXAMPLES: &str = "\
Examples:
  tidegate status
  tidegate status --admin http://10.0.0.7:8082 --admin-token-file read-token --json";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate
  tidegate completions zsh > ~/.zfunc/_tidegate
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  tidegate man | man -l -
  tidegate man --dir ~/.local/share/man/man1";

/// The front ends by name.
fn door_parser() -> impl TypedValueParser<Value = FrontDoor> {
    PossibleValuesParser::new(FrontDoor::ALL.map(|door| PossibleValue::new(door.as_str())))
        .try_map(|name| name.parse::<FrontDoor>())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flag_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        fn check(command: &clap::Command, path: &str) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Examples:") && help.contains(path), "{path} has no examples:\n{help}");
            for subcommand in command.get_subcommands() {
                check(subcommand, &format!("{path} {}", subcommand.get_name()));
            }
        }
        check(&Cli::command(), "tidegate");
    }
}
