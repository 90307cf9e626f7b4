//! The public API of every library crate, as text in `api/`. A change of it shows up as a diff here and in a review.
//!
//! rustdoc writes the API as JSON, the crate `public-api` turns it into lines. `make api` writes the files.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use public_api::Builder;

const CRATES: [&str; 7] = [
    "tidegate",
    "tidegate-rules",
    "tidegate-rule-tools",
    "tidegate-redis",
    "tidegate-ledger",
    "tidegate-tower",
    "tidegate-server",
];

/// The format of rustdoc's JSON that `api/` was written from, which is the one of Rust 1.95.
const RUSTDOC_FORMAT: u64 = 57;

#[test]
fn the_public_api_is_the_one_in_the_folder_api() {
    let accept = std::env::var_os("TIDEGATE_ACCEPT_API").is_some();
    let (folder, mut report) = (rustdoc_json(), String::new());
    for name in CRATES {
        let json = folder.join(format!("{}.json", name.replace('-', "_")));
        let current = public_api(name, &json);
        let file = root().join("api").join(format!("{name}.txt"));
        if accept {
            fs::write(&file, current).unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
            continue;
        }
        let accepted = fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}; `make api` writes it", file.display()));
        if accepted != current {
            let _ = write!(report, "\napi/{name}.txt\n{}", diff(&accepted, &current));
            report += &toolchain_note(&json);
        }
    }
    assert!(
        report.is_empty(),
        "the public API has changed; if that is intended, run `make api` and commit it\n{report}"
    );
}

#[test]
fn a_diff_of_two_apis_shows_removed_and_added_items() {
    let accepted = "# header\npub fn a()\npub fn b(u32)\npub fn c()\n";
    let current = "# header\npub fn a()\npub fn b(u64)\npub fn c()\n";
    assert_eq!(diff(accepted, current), "- pub fn b(u32)\n+ pub fn b(u64)\n");
    assert_eq!(diff("pub fn a()\npub fn b()\n", "pub fn b()\npub fn a()\n"), "  the same lines in another order\n");
}

/// Lets rustdoc describe the crates of the workspace, without their dependencies, and returns the folder of the JSON files. All at once,
/// because dependencies of a single one may have other features, and would be compiled again.
fn rustdoc_json() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the folder has a parent");
    let mut cargo = Command::new(env!("CARGO"));
    // `cargo test` sets these for this test. Build scripts that watch them, such as that of ring, would run again, and everything that
    // depends on them would be compiled again, here and in the next `make test`.
    for (name, _) in std::env::vars_os() {
        let of_this_package =
            name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"));
        if of_this_package {
            cargo.env_remove(name);
        }
    }
    let done = cargo
        .current_dir(root())
        .env("RUSTDOC", root().join("scripts/rustdoc-json"))
        .env("RUSTDOCFLAGS", "-Z unstable-options --output-format json --cap-lints allow")
        .args(["doc", "--quiet", "--workspace", "--lib", "--no-deps", "--target-dir"])
        .arg(target)
        .output()
        .expect("cargo starts");
    assert!(
        done.status.success(),
        "rustdoc wrote no JSON; the API is read from the unstable JSON output of rustdoc, as Rust 1.95 has it\n{}",
        String::from_utf8_lossy(&done.stderr)
    );
    target.join("doc")
}

/// One line for each public item. Of derived traits only that they are implemented, without their methods.
fn public_api(name: &str, json: &Path) -> String {
    let items = |derived: bool| -> Vec<String> {
        let builder = Builder::from_rustdoc_json(json).omit_blanket_impls(true).omit_auto_trait_impls(true);
        let api = builder.omit_auto_derived_impls(!derived).build();
        let api = api.unwrap_or_else(|error| {
            panic!("cannot read what rustdoc wrote for {name}: {error}\n{}", toolchain_note(json));
        });
        api.items().map(ToString::to_string).collect()
    };
    let essential: BTreeSet<String> = items(false).into_iter().collect();
    let mut text = format!("# The public API of {name}. `make api` writes this file, a test compares it.\n");
    for line in items(true) {
        let derived = line.starts_with("impl") && !line.contains("StructuralPartialEq");
        if derived || essential.contains(&line) {
            text += &line;
            text += "\n";
        }
    }
    text
}

/// Lines of which there are more in one text than in the other; `-` is gone, `+` is new.
fn diff(accepted: &str, current: &str) -> String {
    let mut gone: Vec<&str> = accepted.lines().collect();
    let mut new = Vec::new();
    for line in current.lines() {
        match gone.iter().position(|other| *other == line) {
            Some(at) => drop(gone.remove(at)),
            None => new.push(line),
        }
    }
    if gone.is_empty() && new.is_empty() {
        return "  the same lines in another order\n".to_owned();
    }
    let gone = gone.iter().map(|line| format!("- {line}\n"));
    gone.chain(new.iter().map(|line| format!("+ {line}\n"))).collect()
}

/// Names the toolchain as a possible cause where it is not the one that `api/` was written with.
fn toolchain_note(json: &Path) -> String {
    let text = fs::read_to_string(json).unwrap_or_default();
    let format = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|json| json["format_version"].as_u64());
    if format == Some(RUSTDOC_FORMAT) {
        return String::new();
    }
    let format = format.map_or("an unknown format".to_owned(), |format| format!("format {format}"));
    format!(
        "  note: this rustdoc writes {format} and api/ was written from format {RUSTDOC_FORMAT} (Rust 1.95), so the toolchain may be \
         the reason;\n  compare with that toolchain before you accept the change\n"
    )
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate stands in the workspace")
}
