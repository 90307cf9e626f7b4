//! The log of the server: structured events on stderr, as lines for people or as JSON. The start page is not part of it.
//!
//! | target | events |
//! |---|---|
//! | `tidegate::server` | start, reload, shutdown |
//! | `tidegate::store` | failures of the store and harmful settings |
//! | `tidegate::refusals` | [refused requests](super::refusal_log) |
//! | `tidegate::audit` | changes by administrators, and guesses of their tokens |
//! | `tidegate::access` | requests through the gateway, with `--access-log` |

use std::ffi::OsStr;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, fmt};

use super::log_writer::{FlushGuard, LogWriter};
use crate::command::failure::Failure;

/// The prefix of all targets of ours.
const OWN_TARGETS: &str = "tidegate";

/// The flags of the log.
#[derive(Args)]
pub(crate) struct LogArgs {
    /// How events are written to stderr
    #[arg(long, value_name = "FORMAT", env = "TIDEGATE_LOG_FORMAT", default_value = "pretty", help_heading = "Log")]
    pub(crate) log_format: LogFormat,
    /// The least severe events that are written; directives in `RUST_LOG`, such as `tidegate::refusals=off`, take precedence
    #[arg(long, value_name = "LEVEL", env = "TIDEGATE_LOG_LEVEL", default_value = "info", help_heading = "Log")]
    pub(crate) log_level: LogLevel,
}

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One line for people
    Pretty,
    /// One JSON object on a line
    Json,
}

/// The least severe events that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the names say it, and help shows them in one line")]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Writes events to stderr from here on. Lines that wait are written when the guard is dropped.
///
/// A program that has installed a subscriber of its own keeps it.
pub(crate) fn start(arguments: &LogArgs, rust_log: Option<&OsStr>, colour: bool) -> Result<FlushGuard, Failure> {
    let targets = targets(arguments.log_level, rust_log)?;
    let failed = |error: std::io::Error| Failure::usage(format!("the log cannot be written to stderr: {error}"));
    let (writer, guard) = LogWriter::start().map_err(failed)?;
    let layer = fmt::layer().with_writer(writer).with_ansi(colour);
    let layer = match arguments.log_format {
        LogFormat::Pretty => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    let _ = tracing::subscriber::set_global_default(Registry::default().with(layer).with(targets));
    Ok(guard)
}

/// The level for our own events, and at most warnings of the libraries below. Directives in `RUST_LOG` override both.
fn targets(level: LogLevel, rust_log: Option<&OsStr>) -> Result<Targets, Failure> {
    let level = level.filter();
    let base = Targets::new().with_default(level.min(LevelFilter::WARN)).with_target(OWN_TARGETS, level);
    let Some(text) = rust_log.filter(|text| !text.is_empty()) else { return Ok(base) };
    let refused = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("RUST_LOG: {why}; write directives such as `warn` or `info,tidegate::refusals=off`"))
    };
    let text = text.to_str().ok_or_else(|| refused(&"this is not UTF-8"))?;
    let named = Targets::from_str(text).map_err(|error| refused(&error))?;
    Ok(match named.default_level() {
        Some(_) => named,
        None => base.with_targets(named),
    })
}

impl LogLevel {
    const fn filter(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn is_written(level: LogLevel, rust_log: &str, target: &str, event: Level) -> bool {
        let targets = targets(level, Some(OsStr::new(rust_log))).map_err(|_| rust_log).unwrap();
        targets.would_enable(target, &event)
    }

    #[test]
    fn the_level_is_for_our_own_events_and_libraries_only_warn() {
        assert!(is_written(LogLevel::Debug, "", "tidegate::server", Level::DEBUG));
        assert!(!is_written(LogLevel::Debug, "", "tidegate::server", Level::TRACE));
        assert!(!is_written(LogLevel::Debug, "", "hyper::proto", Level::INFO));
        assert!(is_written(LogLevel::Debug, "", "hyper::proto", Level::WARN));
        assert!(!is_written(LogLevel::Error, "", "hyper::proto", Level::WARN));
    }

    #[test]
    fn a_directive_changes_its_target_and_a_bare_level_everything() {
        let off = "tidegate::refusals=off";
        assert!(!is_written(LogLevel::Info, off, "tidegate::refusals", Level::ERROR));
        assert!(is_written(LogLevel::Info, off, "tidegate::server", Level::INFO));
        assert!(is_written(LogLevel::Error, "debug", "tidegate::server", Level::DEBUG));
        assert!(is_written(LogLevel::Error, "debug", "hyper::proto", Level::DEBUG));
        assert!(targets(LogLevel::Info, Some(OsStr::new("tidegate=loud"))).is_err());
    }
}
