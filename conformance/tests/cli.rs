//! `tidegate check` on a real server: separate calls share one limit.

use conformance::server::{Kind, Server};
use tempfile::NamedTempFile;
use tidegate_cli::{Exit, Output, run};

/// A refill too slow to matter in a test.
const RULES: &str = "\
version: 1
rules:
  - id: rides
    match: { action: ride }
    per: [attr:rider]
    token_bucket: { capacity: 3, refill: 1/d }
    on_failure: open
";

/// Exit code and output of a command.
#[derive(Debug)]
struct RunOutput {
    exit: Exit,
    out: String,
    err: String,
}

fn check(url: &str, flags: &str) -> RunOutput {
    let rules = NamedTempFile::new().unwrap();
    std::fs::write(&rules, RULES).unwrap();
    let rules = rules.path().to_str().unwrap();
    let line = ["tidegate", "check", "--rules", rules, "--store", url, "--action", "ride", "--attr", "rider=r1"];
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = run(line.into_iter().chain(flags.split_whitespace()), &mut Output::new(&mut out, &mut err));
    RunOutput { exit, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

#[test]
fn separate_processes_share_one_limit() {
    let server = Server::start(Kind::Redis);
    for remaining in [2, 1, 0] {
        let output = check(&server.url(), "--secret s1 --json");
        assert_eq!((output.exit, output.err.as_str()), (Exit::Success, ""), "{output:?}");
        assert!(output.out.contains(&format!("\"remaining\":{remaining},")), "{output:?}");
    }
    let denied = check(&server.url(), "--secret s1");
    assert_eq!(denied.exit, Exit::Negative);
    assert!(denied.out.starts_with("denied by rides, retry after 1d\n"), "{denied:?}");
    // Another secret hashes to other subjects.
    assert_eq!(check(&server.url(), "--secret s2").exit, Exit::Success);
}

#[test]
fn a_command_decides_in_its_namespace() {
    let server = Server::start(Kind::Redis);
    let shop = "--secret s1 --namespace shop --json";
    for (flags, remaining) in [(shop, 2), ("--secret s1 --json", 2), (shop, 1)] {
        let output = check(&server.url(), flags);
        assert!(output.out.contains(&format!("\"remaining\":{remaining},")), "{flags}: {output:?}");
    }
    let output = check(&server.url(), "--namespace tg2");
    assert_eq!(output.exit, Exit::Usage, "{output:?}");
    assert!(output.err.starts_with("error: --namespace <NAME> does not take this value: "), "{output:?}");
    assert!(output.err.contains("`tg` is the default one"), "{output:?}");
}

#[test]
fn a_peek_consumes_nothing_on_a_server() {
    let server = Server::start(Kind::Valkey);
    let peeked = check(&server.url(), "--secret s1 --times 9 --peek");
    assert!(peeked.exit == Exit::Success && peeked.out.starts_with("1 to 9       allowed\n"), "{peeked:?}");
    let spent = check(&server.url(), "--secret s1 --times 4");
    assert!(spent.out.starts_with("1 to 3       allowed\n4            denied by rides\n"), "{spent:?}");
}

#[test]
fn harmful_server_settings_cause_warnings() {
    let server = Server::start_with(Kind::Redis, &["--maxmemory-policy", "allkeys-lru"]);
    let output = check(&server.url(), "--json");
    assert_eq!((output.exit, output.out.lines().count()), (Exit::Success, 1));
    let warnings: Vec<_> = output.err.lines().collect();
    assert_eq!(warnings[0], "warning: anyone who reads the store can guess subjects; set TIDEGATE_SECRET");
    assert!(warnings.len() == 2 && warnings[1].contains("set it to noeviction"), "{output:?}");
}

#[test]
fn an_authentication_failure_does_not_print_the_password() {
    let server = Server::start_with(Kind::Redis, &["--requirepass", "hunter2"]);
    assert_eq!(check(&server.url(), "--secret s1").exit, Exit::Success);
    let wrong = server.url().replace("hunter2", "hunter3");
    for url in [server.bare_url(), wrong] {
        let output = check(&url, "--secret s1");
        assert_eq!((output.exit, output.out.as_str()), (Exit::Store, ""), "{output:?}");
        assert!(output.err.starts_with("error: the store failed: ") && !output.err.contains("hunter"), "{output:?}");
        assert!(output.err.contains("password"), "{output:?}");
    }
}
