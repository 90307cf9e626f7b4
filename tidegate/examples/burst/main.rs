//! Sends one stream of requests through five kinds of limit, and draws in the terminal which pass and when.
//!
//! `make run`, or `cargo run --example burst -- --help`. The clock is simulated, so it ends at once with the same picture every time.

mod json;
mod picture;
mod scenario;

use std::io::{ErrorKind, IsTerminal, Write, stdout};
use std::process::ExitCode;

use picture::Style;

const HELP: &str = "\
Sends one stream of requests through each of the five kinds of limit and draws who gets through.

Usage: burst [--plain | --json]

  --plain   ASCII only, no colour
  --json    the same as JSON: one line for what was sent, then one for each limit
  --help    this text

Colour is used on a terminal, unless NO_COLOR is set.
";

fn main() -> ExitCode {
    let mut style = if in_colour() { Style::Colour } else { Style::Unicode };
    let mut as_json = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--plain" => style = Style::Plain,
            "--json" => as_json = true,
            "--help" | "-h" => return print(HELP),
            unknown => {
                eprintln!("burst: there is no option {unknown:?}; see --help");
                return ExitCode::from(2);
            }
        }
    }
    let sent = scenario::sent();
    match scenario::lanes(&sent) {
        Ok(lanes) if as_json => print(&json::lines(&sent, &lanes)),
        Ok(lanes) => print(&picture::draw(&sent, &lanes, style)),
        Err(error) => {
            eprintln!("burst: {error}");
            ExitCode::FAILURE
        }
    }
}

fn in_colour() -> bool {
    stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn print(text: &str) -> ExitCode {
    match stdout().write_all(text.as_bytes()) {
        // The reader may close the pipe early, as `head` does.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}
