//! The flags of `tidegate quota`, with the texts of `--help`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::admin_client::AdminArgs;
use crate::request::RequestArgs;

/// The commands about the ledger of a running server.
#[derive(Subcommand)]
pub(crate) enum QuotaCommand {
    Show(ShowArgs),
    Reconcile(ReconcileArgs),
    Correct(CorrectArgs),
    Export(ExportArgs),
    Rollup(RollupArgs),
}

/// Show what was consumed of quotas with a ledger, by tenant, rule and period
///
/// Without --from and --to, only periods that run now are shown. Tenants are shown by name where the rule has `keep_names`, otherwise by the
/// hash of the subject. Describe a single one by --tenant, or by as much of a request as identifies it. Exit code: 0, 2 for wrong
/// arguments or a missing token, 3 if the server or its ledger does not answer.
#[derive(Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Print the rows as one JSON object
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print the rows as CSV, with a line of names
    #[arg(long)]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// Which periods of which quotas.
#[derive(Args)]
pub(crate) struct SelectionArgs {
    /// Only quotas of this rule; `$NAME` for a budget
    #[arg(long, value_name = "ID")]
    pub(crate) rule: Option<String>,
    /// Only quotas with periods of this length
    #[arg(long, value_name = "LENGTH")]
    pub(crate) period: Option<PeriodLength>,
    /// The first period: the one that contains this date, such as 2026-03 or 2026-03-29
    #[arg(long, value_name = "DATE")]
    pub(crate) from: Option<String>,
    /// The last period, likewise
    #[arg(long, value_name = "DATE")]
    pub(crate) to: Option<String>,
}

/// The lengths of periods.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs, reason = "the names say it, and help would repeat them")]
pub(crate) enum PeriodLength {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// Compare what the store and the ledger have of every quota, and repair the store with --apply
///
/// The ledger is right: a repaired quota has what the ledger says. Requests go on meanwhile. Only one reconcile runs at a time. Reading
/// needs a read token, --apply the admin token. Exit code: 0 if nothing differs or all was repaired, 1 if differences stay, 2 for wrong
/// arguments or a missing token, 3 if the server, its store or its ledger does not answer.
#[derive(Args)]
#[command(after_help = RECONCILE_EXAMPLES)]
pub(crate) struct ReconcileArgs {
    /// Set quotas that differ to what the ledger has
    #[arg(long)]
    pub(crate) apply: bool,
    /// Print the answer of the server as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// Add or take back units of a quota, with author and reason
///
/// A correction is an entry of its own; no entry is ever changed. What is consumed in a period cannot become less than nothing, nor more than
/// the largest amount of a quota. The store is repaired at once. Needs the admin token. Exit code: 0 if it was made, 2 for wrong arguments, a missing token or a correction that the
/// ledger refuses, 3 if the server, its store or its ledger does not answer.
#[derive(Args)]
#[command(after_help = CORRECT_EXAMPLES)]
pub(crate) struct CorrectArgs {
    /// The rule, or the rule and the limit of those with several quotas: `exports` or `exports.day`
    #[arg(long, value_name = "ID")]
    pub(crate) rule: String,
    /// Units to add to what is consumed; negative to give back
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) amount: i64,
    /// Why, for whoever reads the ledger later
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Who makes the correction
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true)]
    pub(crate) author: String,
    /// The period that is corrected, as `quota show` writes it: 2026-03-29, or 2026-03 of a quota by month [default: the one that runs now]
    #[arg(long, value_name = "PERIOD")]
    pub(crate) period: Option<String>,
    /// A text under which this correction counts once, however often it is sent; the answer says whether it was counted before
    #[arg(long, value_name = "TEXT")]
    pub(crate) idempotency_key: Option<String>,
    /// Open an account if the ledger knows nothing of this tenant; without it, a mistyped tenant is refused
    #[arg(long)]
    pub(crate) create: bool,
    /// Print the answer of the server as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// Export the entries of the ledger, oldest first, as JSON lines or CSV
///
/// Exit code: 0, 2 for wrong arguments, a missing token or a file that cannot be written, 3 if the server or its ledger does not answer.
#[derive(Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(crate) struct ExportArgs {
    /// Only entries of this rule; `$NAME` for a budget
    #[arg(long, value_name = "ID")]
    pub(crate) rule: Option<String>,
    /// The first instant, such as 2026-03-01 or 2026-03-01T06:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,
    /// The first instant that is left out, likewise
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<String>,
    /// Write CSV, with a line of names
    #[arg(long, conflicts_with = "jsonl")]
    pub(crate) csv: bool,
    /// Write one JSON object in each line; this is the default
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// Write to this file instead of the standard output; it must not exist
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// Replace old entries by their sums
///
/// Entries before the date are deleted; what was consumed in each period stays, so no sum changes. Export them first if they are needed. Needs
/// the admin token. Exit code: 0 if it was done, 2 for wrong arguments or a missing token, 3 if the server or its ledger does not answer.
#[derive(Args)]
#[command(after_help = ROLLUP_EXAMPLES)]
pub(crate) struct RollupArgs {
    /// The first instant whose entries stay, such as 2026-01-01
    #[arg(long, value_name = "TIME")]
    pub(crate) before: String,
    /// Print the answer of the server as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

impl PeriodLength {
    /// The name in rule files.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  tidegate quota show                          # what everybody has used in the periods that run now
  tidegate quota show --tenant acme --from 2026-01
  tidegate quota reconcile                     # do store and ledger agree?
  tidegate quota correct --tenant acme --rule export-units --amount -250 --reason 'failed export, ticket 4711'
  tidegate quota export --csv --from 2026-03-01 --to 2026-04-01 --out march.csv";

const SHOW_EXAMPLES: &str = "\
Examples:
  tidegate quota show
  tidegate quota show --rule export-units --period day --from 2026-03-01 --to 2026-03-31
  tidegate quota show --tenant acme --json
  tidegate quota show --from 2026-01 --csv > usage.csv";

const RECONCILE_EXAMPLES: &str = "\
Examples:
  tidegate quota reconcile                     # exit 1 if something differs
  tidegate quota reconcile --apply --admin-token-file admin-token
  tidegate quota reconcile --json";

const CORRECT_EXAMPLES: &str = "\
Examples:
  tidegate quota correct --tenant acme --rule export-units --amount -250 --reason 'failed export, ticket 4711'
  tidegate quota correct --tenant acme --rule api-units --amount 1000 --period 2026-02 \\
      --reason 'calls of the old gateway' --author eve --idempotency-key old-gateway-2026-02";

const EXPORT_EXAMPLES: &str = "\
Examples:
  tidegate quota export > entries.jsonl
  tidegate quota export --csv --from 2026-03-01 --to 2026-04-01 --out march.csv
  tidegate quota export --tenant acme --rule export-units";

const ROLLUP_EXAMPLES: &str = "\
Examples:
  tidegate quota export --to 2026-01-01 --out until-2025.jsonl
  tidegate quota rollup --before 2026-01-01 --admin-token-file admin-token";
