//! `tidegate-lab bench` as a process: results, load and clean-up. No number is judged.

mod front_doors;
mod url;

use serde_json::Value;

use crate::parse_output;

fn bench(line: &str) -> std::process::Command {
    crate::lab("bench", line)
}

fn json(line: &str) -> Value {
    let (code, out, err) = parse_output(bench(line).output().unwrap());
    assert_eq!(code, Some(0), "{line}: {err}");
    serde_json::from_str(&out).unwrap()
}
