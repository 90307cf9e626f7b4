//! YAML files of the reference server: what is accepted, and errors with their positions.

use std::fs;

use tidegate_server::envoy::{ConfigErrors, EnvoyConfig, EnvoyOptions};

pub(crate) fn parse(text: &str) -> Result<EnvoyConfig, ConfigErrors> {
    EnvoyConfig::parse([("a.yaml", text)], &EnvoyOptions::default())
}

#[test]
fn each_error_is_reported_with_its_position() {
    let cases = [
        ("descriptors: []\n", "a.yaml:1:1: the file has no domain; add `domain: NAME`"),
        ("domain: ''\n", "a.yaml:1:1: the file has no domain; add `domain: NAME`"),
        ("[1]\n", "a.yaml:1:1: expected a map with `domain` and `descriptors`, found a list"),
        ("domain: d\nlimits: 1\n", "a.yaml:2:1: unknown key \"limits\"; remove or correct it"),
        (
            "domain: d\n---\ndomain: e\n",
            "a.yaml:2:1: the file has a second YAML document; write one document in each file, and remove this `---`",
        ),
        ("domain: d\ndescriptors:\n  - value: v\n", "a.yaml:3:5: the descriptor has no key; add `key: NAME`"),
        (
            "domain: d\ndescriptors:\n  - { key: k, value: v }\n  - { key: k, value: v }\n",
            "a.yaml:4:7: duplicate descriptor \"k_v\" at this level; keep one",
        ),
        ("domain: d\ndescriptors:\n  - key\n", "a.yaml:3:5: expected a descriptor with a `key`, found text"),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      unit: fortnight\n      requests_per_unit: 1\n",
            "a.yaml:5:13: unknown unit \"fortnight\"; write second, minute, hour, day, week, month or year",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { requests_per_unit: 1 }\n",
            "a.yaml:4:19: the limit has no unit; write second, minute, hour, day, week, month or year",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: -1 }\n",
            "a.yaml:4:49: `requests_per_unit` must be an integer from 0 to 4294967295",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unlimited: true, unit: day }\n",
            "a.yaml:4:42: an `unlimited` limit has no unit; remove one of the two",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      unlimited: true\n      replaces:\n        - name: ''\n",
            "a.yaml:7:11: the limit to replace has no name; add `name: NAME`",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      unlimited: true\n      name: n\n      replaces:\n        - name: n\n",
            "a.yaml:8:11: the limit replaces itself; name another limit",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    value: v\n    share_threshold: true\n",
            "a.yaml:5:22: `share_threshold` needs a value with a `*`, whose matches share one counter",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    shadow_mode: maybe\n",
            "a.yaml:4:18: `shadow_mode` must be true or false",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 1, algorithm: magic }\n",
            "a.yaml:4:63: unknown algorithm \"magic\"; write fixed_window, token_bucket, sliding_log or sliding_window",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 70000, algorithm: sliding_log }\n",
            "a.yaml:4:67: sliding_log.limit: 70000 is above the largest value, 65535 (it keeps every request; use sliding_window)",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(text).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = "
domain: d
descriptors:
  - key: a
    limit: 3
    rate_limit: { unit: eon, requests_per_unit: many }
    descriptors:
      - value: v
";
    let errors = EnvoyConfig::parse([("a.yaml", text), ("b.yaml", "- x\n")], &EnvoyOptions::default()).unwrap_err();
    let places: Vec<_> = errors.problems().iter().map(|problem| (problem.line(), problem.column())).collect();
    assert_eq!(places, [(5, 5), (6, 25), (6, 49), (8, 9), (1, 3)]);
}

#[test]
fn invalid_yaml_is_reported_with_its_position() {
    for text in ["domain: [\n", "domain: d\ndomain: e\n", "a: &a [*a, *a]\n", "domain: 'd\n"] {
        let errors = parse(text).unwrap_err();
        assert!(errors.problems()[0].line() > 0, "{errors}");
    }
    let deep = format!("domain: d\ndescriptors: {}{}\n", "[".repeat(10_000), "]".repeat(10_000));
    assert!(parse(&deep).is_err());
}

#[test]
fn a_key_at_a_level_where_it_has_no_effect_is_a_warning() {
    let text = "domain: d\ndescriptors:\n  - key: k\n    unit: day\n    metadata: { any: thing }\n    detailed_metric: true\n    value_to_metric: true\n";
    let config = parse(text).unwrap();
    let warnings: Vec<String> = config.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings, ["a.yaml:4:5: \"unit\" has no effect at this level"]);
}

#[test]
fn a_window_is_a_unit_a_multiple_or_a_duration() {
    let limit = |text: &str| format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{ {text} }}\n");
    for (text, expected) in [
        ("window: 90s, requests_per_unit: 1", "unit=UNKNOWN requests_per_unit=1"),
        ("window: 1h, requests_per_unit: 1", "unit=HOUR requests_per_unit=1"),
        ("unit: minute, unit_multiplier: 5, requests_per_unit: 1", "unit=UNKNOWN requests_per_unit=1"),
        ("unit: minute, unit_multiplier: 60, requests_per_unit: 1", "unit=HOUR requests_per_unit=1"),
        ("unit: month, unit_multiplier: 1, requests_per_unit: 1", "unit=MONTH requests_per_unit=1"),
    ] {
        let lines = parse(&limit(text)).unwrap().lines();
        assert!(lines[0].contains(expected), "{text}: {lines:?}");
    }
    for (text, expected) in [
        ("window: 90, requests_per_unit: 1", "a.yaml:4:27: \"90\" lacks a unit; write 10s or 10m"),
        ("window: 2 months, requests_per_unit: 1", "a.yaml:4:27: months differ in length; write 30d"),
        ("unit: day, window: 90s", "a.yaml:4:38: a limit has either a `unit` or a `window`; remove one of the two"),
        ("unit: day, unit_multiplier: 0", "a.yaml:4:47: `unit_multiplier` must be an integer from 1 to 4294967295"),
        (
            "unit: month, unit_multiplier: 3",
            "a.yaml:4:49: months and years differ in length; write a `window`, such as 90d",
        ),
        ("window: 0s", "a.yaml:4:19: fixed_window.window: it is zero; it must be at least 1 microsecond"),
        ("unlimited: true, window: 90s", "a.yaml:4:44: an `unlimited` limit has no unit; remove one of the two"),
        ("unit: day, metadata: 7", "a.yaml:4:40: expected a map, found a number"),
    ] {
        assert_eq!(parse(&limit(text)).unwrap_err().to_string(), expected, "{text}");
    }
}

/// The examples in docs/envoy.md are valid.
#[test]
fn the_examples_of_the_documentation_are_valid() {
    let page = include_str!("../../../docs/envoy.md");
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let (mut files, mut rules) = (0, 0);
    for block in blocks {
        if block.starts_with("domain:") {
            let config = parse(block).unwrap_or_else(|errors| panic!("{errors}\n{block}"));
            assert!(config.warnings().is_empty(), "{:?}", config.warnings());
            files += 1;
        } else if block.starts_with("version:") {
            tidegate_rules::RuleFile::parse("rules.yaml", block).unwrap();
            rules += 1;
        }
    }
    assert_eq!((files, rules), (1, 1));
}

#[test]
fn strict_mode_rejects_extension_keys() {
    for ours in ["algorithm: sliding_log", "window: 90s", "unit_multiplier: 2", "count_refused: true"] {
        let text = format!("domain: d\ndescriptors:\n  - {{ key: k, rate_limit: {{ {ours} }} }}\n");
        let errors =
            EnvoyConfig::parse([("a.yaml", text.as_str())], &EnvoyOptions::default().with_strict(true)).unwrap_err();
        assert!(errors.to_string().contains("a.yaml:3:29: unknown key"), "{errors}");
    }
}

#[test]
fn strict_mode_rejects_the_algorithm_key() {
    let text = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 1, algorithm: sliding_log }\n";
    assert!(parse(text).is_ok());
    let errors = EnvoyConfig::parse([("a.yaml", text)], &EnvoyOptions::default().with_strict(true)).unwrap_err();
    assert_eq!(errors.to_string(), "a.yaml:4:52: unknown key \"algorithm\"; remove or correct it");
}

#[test]
fn a_domain_in_two_files_is_an_error_unless_domains_are_merged() {
    let limit =
        |key: &str| format!("domain: d\ndescriptors:\n  - {{ key: {key}, rate_limit: {{ unlimited: true }} }}\n");
    let (first, second) = (limit("a"), limit("b"));
    let files = || [("a.yaml", first.as_str()), ("b.yaml", second.as_str())];
    let errors = EnvoyConfig::parse(files(), &EnvoyOptions::default()).unwrap_err();
    assert_eq!(errors.to_string(), "b.yaml:1:9: another file has the domain \"d\", too; use each domain in one file");
    let merging = EnvoyOptions::default().with_merge_domains(true);
    assert_eq!(EnvoyConfig::parse(files(), &merging).unwrap().lines().len(), 2);
    let duplicates = [("a.yaml", first.as_str()), ("b.yaml", first.as_str())];
    let errors = EnvoyConfig::parse(duplicates, &merging).unwrap_err();
    assert_eq!(errors.to_string(), "b.yaml:1:9: another file of the domain has the descriptor \"a\", too; keep one");
}

#[test]
fn a_directory_with_an_invalid_file_is_rejected_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    let empty = EnvoyConfig::load(directory.path(), &EnvoyOptions::default()).unwrap();
    assert!(empty.warnings()[0].message().contains("nothing is limited"));
    write("a.yaml", "domain: a\ndescriptors:\n  - { key: k, rate_limit: { unit: day, requests_per_unit: 1_000 } }\n");
    write(
        "b.yml",
        "domain: b\ndescriptors:\n  - { key: k, value: v*, shadow_mode: yes, rate_limit: { unlimited: true } }\n",
    );
    write("notes.txt", "not: read");
    write(".hidden.yaml", "not: read");
    let config = EnvoyConfig::load(directory.path(), &EnvoyOptions::default()).unwrap();
    let expected = [
        "a.k: unit=DAY requests_per_unit=1000, shadow_mode: false, quota_mode: false",
        "b.k_v*: unit=UNKNOWN requests_per_unit=0, shadow_mode: true, quota_mode: false, unlimited: true",
    ];
    assert_eq!(config.lines(), expected);
    let [warning] = config.warnings() else { panic!("{:?}", config.warnings()) };
    let text = warning.to_string();
    assert!(text.ends_with("notes.txt: the file is not read: its name must end in `.yaml` or `.yml`"), "{text}");
    write("c.yaml", "domain: c\nlimits: []\n");
    let errors = EnvoyConfig::load(directory.path(), &EnvoyOptions::default()).unwrap_err();
    assert!(errors.to_string().ends_with("c.yaml:2:1: unknown key \"limits\"; remove or correct it"));
    fs::write(directory.path().join("c.yaml"), [0xff]).unwrap();
    assert!(EnvoyConfig::load(directory.path(), &EnvoyOptions::default()).unwrap_err().to_string().contains("UTF-8"));
    assert!(EnvoyConfig::load(directory.path().join("nowhere"), &EnvoyOptions::default()).is_err());
}
