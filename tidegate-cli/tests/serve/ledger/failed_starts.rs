//! A start that fails, whatever it fails at, leaves no journal behind, and one that was there as it was.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::process::Command;

use super::{Fixture, RULES, SECRET};

/// A server that does not start: its arguments beside those of a good one, and what it says.
struct FailedStart {
    arguments: Vec<String>,
    has_secret: bool,
    reason: &'static str,
    /// Whether it fails only after it has posted what is in the journal.
    is_late: bool,
}

impl FailedStart {
    fn new(line: &str, reason: &'static str) -> Self {
        let arguments = line.split(' ').map(str::to_owned).collect();
        Self { arguments, has_secret: true, reason, is_late: false }
    }

    fn late(self) -> Self {
        Self { is_late: true, ..self }
    }

    /// Its arguments, with those of a good server that it does not replace.
    fn command(&self, fixture: &Fixture) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("serve").args(&self.arguments).env_remove("TIDEGATE_SECRET");
        let (any_port, ledger) = ("127.0.0.1:0".to_owned(), format!("sqlite:{}", fixture.path("ledger.db")));
        let usual = [
            ("--http", any_port.clone()),
            ("--grpc", any_port.clone()),
            ("--admin", any_port),
            ("--rules", fixture.path("rules.yaml")),
            ("--ledger", ledger),
            ("--ledger-journal", fixture.path("journal")),
        ];
        for (flag, value) in usual.into_iter().filter(|(flag, _)| !self.arguments.iter().any(|own| own == flag)) {
            command.arg(flag).arg(value);
        }
        if self.has_secret {
            command.env("TIDEGATE_SECRET", SECRET);
        }
        command
    }

    fn fails(&self, fixture: &Fixture) {
        let output = self.command(fixture).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(self.reason), "{:?}: {error}", self.arguments);
    }
}

/// The files of the journal, with what is in them.
fn journal(fixture: &Fixture) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(fixture.folder.path()).unwrap().map(|file| file.unwrap());
    let named = files.map(|file| (file.file_name().into_string().unwrap(), file.path()));
    named.filter(|(name, _)| name.starts_with("journal")).map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

/// In the order in which a start comes to them.
fn failed_starts(fixture: &Fixture, port: u16) -> Vec<FailedStart> {
    fs::write(fixture.path("bad.yaml"), "version: 1\nrules: [{ id: x }]\n").unwrap();
    fs::write(fixture.path("no-database"), "this is text\n".repeat(100)).unwrap();
    let path = |name: &str| fixture.path(name);
    let mut starts = vec![
        FailedStart::new(&format!("--rules {}", path("bad.yaml")), "error"),
        FailedStart { has_secret: false, ..FailedStart::new("--log-level info", "--ledger needs TIDEGATE_SECRET") },
        FailedStart::new("--ledger sqlite:/no/such/l.db", "there is no directory /no/such"),
        FailedStart::new("--ledger-journal /no/such/folder/j", "the journal of the ledger cannot be opened"),
        FailedStart::new(&format!("--ledger-journal {}", path("rules.yaml")), "is no journal of this version"),
        FailedStart::new(&format!("--ledger sqlite:{}", path("no-database")), "no SQLite database"),
        FailedStart::new(&format!("--ledger sqlite:{}", fixture.folder.path().display()), "SQLite"),
        FailedStart::new("--envoy-config /no/such/folder", "/no/such/folder").late(),
        FailedStart::new(&format!("--tls-cert {0} --tls-key {0}", path("no-database")), "certificate").late(),
    ];
    let taken = |flag: &str| FailedStart::new(&format!("{flag} 127.0.0.1:{port}"), "choose another address").late();
    starts.extend(["--http", "--grpc", "--admin", "--upstream http://127.0.0.1:1 --gateway"].map(taken));
    starts
}

#[test]
fn a_failed_start_leaves_no_journal_behind() {
    let fixture = Fixture::without_server();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    for start in failed_starts(&fixture, other.local_addr().unwrap().port()) {
        start.fails(&fixture);
        assert_eq!(journal(&fixture).into_keys().collect::<Vec<_>>(), [] as [String; 0], "{:?}", start.arguments);
    }
    assert_eq!(fs::read_to_string(fixture.path("rules.yaml")).unwrap(), RULES, "a mistyped path harms no file");
}

#[test]
fn a_failed_start_leaves_a_journal_that_was_there_as_it_was() {
    let mut fixture = Fixture::without_server();
    fixture.server = Some(fixture.spawn_server(&["--ledger-journal", &fixture.path("journal")]));
    fixture.server.as_mut().unwrap().wait_for_log("store and ledger are ready");
    fixture.consume("/calls", "acme", 5);
    drop(fixture.server.take());
    let before = journal(&fixture);
    assert_eq!(before.len(), 2);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    for start in failed_starts(&fixture, other.local_addr().unwrap().port()) {
        start.fails(&fixture);
        let after = journal(&fixture);
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "{:?}", start.arguments);
        assert!(start.is_late || after == before, "{:?}", start.arguments);
        for (name, content) in &before {
            fs::write(fixture.path(name), content).unwrap();
        }
    }
    fixture.server = Some(fixture.spawn_server(&["--ledger-journal", &fixture.path("journal")]));
    fixture.usage_of("calls", 5);
}
