//! Identities: which requests share a subject. Sources by priority, kinds and tenants kept apart, forged headers without effect.

use std::collections::HashSet;

use tidegate::Request;
use tidegate::spi::Subject;
use tidegate_rules::RuleFile;

const IDENTIFY: &str = "
version: 1
identify:
  client: [header:x-api-key, header:x-user-id, ip]
  user: header:x-user-id
  tenant: header:x-tenant-id
  device: cookie:device
  authenticated: [x-api-key, x-user-id, x-tenant-id, authorization]
  trusted_proxies: [10.0.0.0/8, '2001:db8:ffff::/48']
";

/// A file with one rule that counts `per`.
fn file(per: &str) -> RuleFile {
    let rule = "rules:\n- { id: r, token_bucket: { capacity: 5, refill: 1/s }, per: ";
    RuleFile::parse("rules.yaml", &format!("{IDENTIFY}{rule}{per} }}\n")).expect("a valid file")
}

/// The subject that is counted for a request with these attributes.
fn subject(file: &RuleFile, attributes: &[(&str, &str)]) -> Subject {
    let request =
        attributes.iter().fold(Request::new(""), |request, (name, value)| request.with_attribute(name, value));
    file.rules().resolve(&request).checks()[0].key().subject()
}

fn assert_same(per: &str, requests: &[&[(&str, &str)]]) {
    let file = file(per);
    let subjects: HashSet<_> = requests.iter().map(|request| subject(&file, request)).collect();
    assert_eq!(subjects.len(), 1, "{per}: {requests:?}");
}

fn assert_different(per: &str, requests: &[&[(&str, &str)]]) {
    let file = file(per);
    let subjects: HashSet<_> = requests.iter().map(|request| subject(&file, request)).collect();
    assert_eq!(subjects.len(), requests.len(), "{per}: {requests:?}");
}

#[test]
fn the_first_identity_that_is_present_counts() {
    let key = ("header:x-api-key", "k1");
    assert_same(
        "[client]",
        &[&[key, ("header:x-user-id", "ann"), ("ip", "192.0.2.1")], &[key], &[key, ("ip", "192.0.2.2")]],
    );
    assert_different("[client]", &[&[key], &[("header:x-user-id", "ann")], &[("ip", "192.0.2.1")], &[]]);
}

#[test]
fn an_empty_identity_counts_as_missing() {
    let ip = ("ip", "192.0.2.1");
    assert_same("[client]", &[&[ip], &[("header:x-api-key", ""), ip], &[("header:x-api-key", "  "), ip]]);
}

#[test]
fn a_user_named_like_an_address_or_a_key_is_a_different_subject() {
    let name = "192.0.2.1";
    assert_different("[client]", &[&[("header:x-api-key", name)], &[("header:x-user-id", name)], &[("ip", name)]]);
}

#[test]
fn requests_without_an_identity_share_one_subject_and_are_not_exempt() {
    assert_same("[user]", &[&[], &[("ip", "192.0.2.1")], &[("header:x-user-id", " ")]]);
    assert_same("[client]", &[&[], &[("ip", "not an address")]]);
    assert_eq!(file("[user]").rules().resolve(&Request::new("")).checks().len(), 1);
}

#[test]
fn users_and_keys_belong_to_their_tenant_and_addresses_do_not() {
    let in_tenant = |tenant| ("header:x-tenant-id", tenant);
    let (user, key) = (("header:x-user-id", "42"), ("header:x-api-key", "k"));
    assert_different("[user]", &[&[user, in_tenant("acme")], &[user, in_tenant("blue")], &[user]]);
    assert_different("[client]", &[&[key, in_tenant("acme")], &[key, in_tenant("blue")]]);
    assert_same("[client]", &[&[("ip", "192.0.2.1"), in_tenant("acme")], &[("ip", "192.0.2.1"), in_tenant("blue")]]);
    assert_same("[ip]", &[&[("ip", "192.0.2.1"), in_tenant("acme")], &[("ip", "192.0.2.1"), in_tenant("blue")]]);
    assert_same("[user], scope: global", &[&[user, in_tenant("acme")], &[user, in_tenant("blue")], &[user]]);
    assert_same("[tenant]", &[&[user, in_tenant("acme")], &[key, in_tenant("acme")]]);
    assert_different(
        "[tenant, user]",
        &[&[user, in_tenant("acme")], &[user, in_tenant("blue")], &[user], &[in_tenant("acme")], &[]],
    );
    assert_same("[tenant, user]", &[&[user, in_tenant("acme")], &[in_tenant("acme"), user, ("ip", "192.0.2.9")]]);
}

#[test]
fn all_requests_share_one_subject_if_per_is_empty() {
    assert_same("[]", &[&[], &[("ip", "192.0.2.1")], &[("header:x-api-key", "k")]]);
    assert_same("['const:all']", &[&[], &[("ip", "192.0.2.1")]]);
}

#[test]
fn the_application_can_set_an_identity_and_a_client_cannot() {
    assert_same(
        "[user]",
        &[&[("user", "ann")], &[("header:x-user-id", "ann")], &[("user", "ann"), ("header:x-user-id", "bob")]],
    );
    assert_different("['attr:account']", &[&[("account", "a7")], &[("header:account", "a7")]]);
}

#[test]
fn every_source_is_read() {
    let token = "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4iLCJvcmciOnsiaWQiOjd9fQ.";
    let read = |per: &str, request: &[(&str, &str)], missing: &[(&str, &str)]| {
        assert_different(per, &[request, missing]);
        assert_same(per, &[missing, &[]]);
    };
    read("['query:page']", &[("query", "a=1&page=7")], &[("query", "a=1")]);
    read("['cookie:sid']", &[("header:cookie", "a=b; sid=x1")], &[("header:cookie", "a=b")]);
    read("[device]", &[("header:cookie", "device=d1")], &[("header:cookie", "devices=d1")]);
    read("['claim:sub']", &[("header:authorization", token)], &[("header:authorization", "Bearer a.b.c")]);
    read("['claim:org.id']", &[("header:authorization", token)], &[("header:authorization", "Basic eyJ9")]);
    read("['body:account.id']", &[("body", r#"{"account":{"id":7}}"#)], &[("body", "{")]);
    read("['header:X-Device']", &[("header:x-device", "d")], &[("header:x-other", "d")]);
    read("[path]", &[("path", "/a")], &[("host", "x")]);
    read("[host]", &[("host", "a.example")], &[("path", "/a")]);
    read("[method]", &[("method", "GET")], &[("path", "/a")]);
    assert_same(
        "['body:account.id']",
        &[&[("body", r#"{"account":{"id":7}}"#)], &[("body", r#"{"account":{"id":"7"}}"#)]],
    );
}

#[test]
fn spellings_of_one_path_are_one_subject() {
    let path = |path| [("path", path)];
    assert_same(
        "[path]",
        &[&path("/a/b"), &path("/%61/b"), &path("/a/b/"), &path("/%61/%62/"), &path("/a/b?x=1"), &path("/a/b#x")],
    );
    assert_different("[path]", &[&path("/a/b"), &path("/a%2Fb"), &path("/A/b")]);
}

/// Trap: the client chooses the leftmost address.
#[test]
fn a_spoofed_forwarded_header_does_not_change_the_subject() {
    let via = |peer: &'static str, header: &'static str| [("ip", peer), ("header:x-forwarded-for", header)];
    // A peer that is not a trusted proxy is the client; its header is ignored.
    assert_same(
        "[ip]",
        &[&via("192.0.2.1", "203.0.113.1"), &via("192.0.2.1", "203.0.113.2, 10.0.0.1"), &[("ip", "192.0.2.1")]],
    );
    // Behind a proxy, only the last address before the trusted proxies counts.
    let honest = via("10.0.0.1", "203.0.113.9");
    assert_same(
        "[ip]",
        &[
            &honest,
            &via("10.0.0.1", "1.1.1.1, 203.0.113.9"),
            &via("10.0.0.1", "rubbish, 203.0.113.9:443, 10.2.2.2"),
            &[("ip", "203.0.113.9")],
        ],
    );
    assert_different("[ip]", &[&honest, &via("10.0.0.1", "203.0.113.8")]);
}

#[test]
fn a_forwarded_header_with_ten_thousand_hops_is_not_searched_to_the_end() {
    let hops = |count: usize| vec!["10.0.0.1"; count].join(", ");
    let (some, many) = (hops(80), hops(10_000));
    let client = format!("203.0.113.9, {some}");
    assert_same(
        "[ip]",
        &[
            &[("ip", "10.0.0.1"), ("header:x-forwarded-for", &many)],
            &[("ip", "10.0.0.1"), ("header:x-forwarded-for", &client)],
        ],
    );
}

/// Traps: all IPv4-mapped addresses shared one bucket, and a client with an IPv6 /64 could be any number of subjects.
#[test]
fn spellings_of_one_address_and_one_ipv6_network_are_one_subject() {
    let ip = |ip| [("ip", ip)];
    assert_same(
        "[ip]",
        &[
            &ip("203.0.113.9"),
            &ip("::ffff:203.0.113.9"),
            &ip("::ffff:cb00:7109"),
            &ip("64:ff9b::203.0.113.9"),
            &ip("203.0.113.9:443"),
        ],
    );
    assert_different("[ip]", &[&ip("::ffff:203.0.113.9"), &ip("::ffff:203.0.113.10")]);
    assert_same("[ip]", &[&ip("2001:db8:1:2::1"), &ip("2001:db8:1:2:ffff::9"), &ip("[2001:db8:1:2::3]:443")]);
    assert_different("[ip]", &[&ip("2001:db8:1:2::1"), &ip("2001:db8:1:3::1")]);
    assert_same("['net:24/48']", &[&ip("203.0.113.9"), &ip("203.0.113.200")]);
    assert_same("['net:24/48']", &[&ip("2001:db8:1:2::1"), &ip("2001:db8:1:3::1")]);
}

#[test]
fn long_and_unusual_subjects_are_hashed_like_any_other() {
    let long = "x".repeat(1_000_000);
    let longer = format!("{long}y");
    assert_different(
        "[user]",
        &[
            &[("header:x-user-id", &long)],
            &[("header:x-user-id", &longer)],
            &[("header:x-user-id", "a\u{0}b\r\n{}%")],
            &[("header:x-user-id", "a\u{0}b\r\n{}")],
        ],
    );
    let file = file("[user]");
    let request = Request::new("").with_attribute("header:x-user-id", "a\u{0}b\r\n{}%");
    let mut name = Vec::new();
    file.rules().resolve(&request).checks()[0].key().write_name("tg", &mut name);
    assert_eq!(name.len(), "tg1{pp}r:t".len() + 16);
}

#[test]
fn the_rule_set_lists_the_attributes_that_it_reads() {
    let reads: Vec<String> = file("[client]").rules().reads();
    let expected = [
        "client",
        "header:x-api-key",
        "header:x-forwarded-for",
        "header:x-tenant-id",
        "header:x-user-id",
        "ip",
        "plan",
        "tenant",
    ];
    assert_eq!(reads, expected);
}

/// If the hash changed, every subject would start with a full limit after an update.
#[test]
fn the_hash_of_a_subject_does_not_change_between_versions() {
    let request = [("header:x-api-key", "k1"), ("header:x-tenant-id", "acme")];
    assert_eq!(subject(&file("[client]"), &request).to_string(), "2f9c2a75a86304da98866fde5192cefc");
    assert_eq!(subject(&file("[ip]"), &[("ip", "203.0.113.9")]).to_string(), "f79e036a66a822b0e7fbab34771f8546");
    assert_eq!(subject(&file("[tenant]"), &request).to_string(), "ec2b449b16e816f88ae9ba8be2aff904");
}
