//! The example of exports that are billed: `examples/exports`, on the memory store with a SQLite ledger.

use std::path::Path;
use std::process::Command;

/// What the exports of the example print, and what its README shows.
const EXPORTS: &str = "\
== an export uses less than it reserved
first: reserved 250 units
first: committed 240 units
== an export that fails costs nothing
second: reserved 250 units
second: failed, released
== three run at a time
sixth: denied by exports
third: reserved 100 units
third: committed 100 units
fourth: reserved 100 units
fourth: committed 100 units
fifth: reserved 100 units
fifth: committed 100 units
== a worker is killed: after ten seconds its slot and its units are free again, and nothing is charged
eighth: denied by export-units
eighth: reserved 9000 units
eighth: committed 500 units
== the server is killed: the worker commits when it is back
ninth: reserved 100 units
ninth: committed 100 units
== store and ledger agree
";

#[test]
fn the_example_charges_every_export_once_whoever_is_killed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/exports");
    let mut script = Command::new(folder.join("run.sh"));
    let output = script.arg(env!("CARGO_BIN_EXE_tidegate-under-test")).output().expect("the script starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let end = text.strip_prefix(EXPORTS).unwrap_or_else(|| panic!("{text}{errors}"));
    assert!(end.starts_with("store and ledger agree, 1 account compared\n"), "{end}");
    let units = 240 + 3 * 100 + 500 + 100;
    assert!(end.replace(',', "").contains(&units.to_string()), "{end}");
    let readme = std::fs::read_to_string(folder.join("README.md")).expect("the README");
    assert!(readme.contains(EXPORTS), "the README shows other output than the script has");
}
