//! Which limit applies to a descriptor.

use crate::envoy::{EnvoyClient, hit};

/// The entries of a descriptor, and the expected result.
type Case<T> = (&'static [(&'static str, &'static str)], T);

const TREE: &str = "
domain: edge
descriptors:
  - key: path
    value: /a*
    rate_limit: { unit: minute, requests_per_unit: 12 }
  - key: path
    value: '*z'
    rate_limit: { unit: minute, requests_per_unit: 13 }
  - key: path
    value: /abc
    rate_limit: { unit: minute, requests_per_unit: 11 }
  - key: path
    rate_limit: { unit: minute, requests_per_unit: 14 }
  - key: path
    value: /open
  - key: tenant
    value: acme
    rate_limit: { unit: minute, requests_per_unit: 21 }
    descriptors:
      - key: user
        rate_limit: { unit: minute, requests_per_unit: 22 }
      - key: user
        value: root
        rate_limit: { unit: minute, requests_per_unit: 23 }
        descriptors:
          - key: verb
            value: D*E
            rate_limit: { unit: minute, requests_per_unit: 24 }
  - key: tenant
    descriptors:
      - key: user
        rate_limit: { unit: minute, requests_per_unit: 25 }
  - key: code
    value: 0042
    rate_limit: { unit: minute, requests_per_unit: 31 }
  - key: wild*
    rate_limit: { unit: minute, requests_per_unit: 32 }
";

#[tokio::test]
async fn an_exact_value_takes_precedence_over_wildcards_and_those_over_the_key_alone() {
    let cases: [Case<Option<u32>>; 22] = [
        (&[("path", "/abc")], Some(11)),
        (&[("path", "/abcd")], Some(12)),
        (&[("path", "/az")], Some(12)),
        (&[("path", "/z")], Some(13)),
        (&[("path", "/q")], Some(14)),
        (&[("path", "")], Some(14)),
        (&[("path", "/ABC")], Some(14)),
        (&[("Path", "/abc")], None),
        // A descriptor without a limit exempts, although the key alone has one.
        (&[("path", "/open")], None),
        (&[("tenant", "acme")], Some(21)),
        (&[("tenant", "acme"), ("user", "ann")], Some(22)),
        (&[("tenant", "acme"), ("user", "root")], Some(23)),
        (&[("tenant", "acme"), ("user", "root"), ("verb", "DELETE")], Some(24)),
        (&[("tenant", "acme"), ("user", "root"), ("verb", "GET")], None),
        // Neither a shallower nor a deeper limit applies, and the lookup does not backtrack.
        (&[("tenant", "acme"), ("user", "ann"), ("verb", "DELETE")], None),
        (&[("tenant", "other")], None),
        (&[("tenant", "other"), ("user", "ann")], Some(25)),
        (&[("user", "ann"), ("tenant", "other")], None),
        (&[("code", "0042")], Some(31)),
        (&[("code", "42")], None),
        (&[("wildest", "x")], Some(32)),
        (&[], None),
    ];
    let mut client = EnvoyClient::with_config(TREE).await;
    for (entries, expected) in cases {
        let response = client.send(hit("edge", &[entries])).await.unwrap();
        let found = response.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit);
        assert_eq!(found, expected, "{entries:?}");
    }
}

#[tokio::test]
async fn values_have_separate_counters_unless_they_share_a_threshold() {
    let yaml = "
domain: edge
descriptors:
  - key: each
    value: a*
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: shared
    value: a*
    share_threshold: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
    descriptors:
      - key: user
        rate_limit: { unit: minute, requests_per_unit: 1 }
";
    let cases: [Case<&str>; 7] = [
        (&[("each", "a1")], "OK"),
        (&[("each", "a2")], "OK"),
        (&[("shared", "a1")], "OK"),
        (&[("shared", "a2")], "OVER_LIMIT"),
        (&[("shared", "a1"), ("user", "ann")], "OK"),
        (&[("shared", "a2"), ("user", "ann")], "OVER_LIMIT"),
        (&[("shared", "a2"), ("user", "bob")], "OK"),
    ];
    let mut client = EnvoyClient::with_config(yaml).await;
    for (entries, expected) in cases {
        let summary = client.summary(hit("edge", &[entries])).await;
        assert!(summary.starts_with(&format!("{expected}:")), "{entries:?}: {summary}");
    }
}

/// Joined with `_`, these would share one counter.
#[tokio::test]
async fn no_two_descriptors_share_a_counter_by_accident() {
    let yaml = "
domain: edge
descriptors:
  - key: a
    rate_limit: { unit: minute, requests_per_unit: 1 }
    descriptors:
      - key: b
        rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: a_b
    rate_limit: { unit: minute, requests_per_unit: 1 }
";
    let mut client = EnvoyClient::with_config(yaml).await;
    let descriptors: [&[(&str, &str)]; 4] =
        [&[("a", "b_c")], &[("a_b", "c")], &[("a", "x_b_y"), ("b", "z")], &[("a", "x"), ("b", "y_b_z")]];
    for descriptor in descriptors {
        assert!(client.summary(hit("edge", &[descriptor])).await.starts_with("OK:"), "{descriptor:?}");
        assert!(client.summary(hit("edge", &[descriptor])).await.starts_with("OVER_LIMIT:"), "{descriptor:?}");
    }
}
