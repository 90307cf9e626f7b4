//! Tests of description requests.

use super::*;

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn value(description: &RequestDescription, name: &str) -> Option<String> {
    description.attributes().unwrap().request().attribute(name).map(str::to_owned)
}

#[test]
fn header_lines_are_joined_as_front_doors_join_them() {
    let headers = pairs(&[
        ("X-A", " 1 "),
        ("Via", "1"),
        ("Cookie", "a=1"),
        ("x-a", "2"),
        ("via", "2"),
        ("cookie", "b=2"),
        ("Host", "h.example"),
    ]);
    let description = RequestDescription { headers, ..RequestDescription::default() };
    let attributes = description.attributes().unwrap();
    assert_eq!(attributes.request().further_values("header:x-a").collect::<Vec<_>>(), ["2"]);
    assert_eq!(attributes.request().repeated_names().collect::<Vec<_>>(), ["header:x-a"]);
    for (name, expected) in [
        ("header:x-a", Some("1")),
        ("header:via", Some("1, 2")),
        ("header:cookie", Some("a=1; b=2")),
        ("header:host", Some("h.example")),
        ("host", Some("h.example")),
        ("header:X-A", None),
        ("method", None),
        ("query", None),
    ] {
        assert_eq!(value(&description, name).as_deref(), expected, "{name}");
    }
    let host = Some("other.example".to_owned());
    assert_eq!(value(&RequestDescription { host, ..description.clone() }, "host").as_deref(), Some("other.example"));
}

/// As in the target of a request: otherwise a caller that passes it on names another host.
#[test]
fn user_information_is_no_part_of_a_host() {
    let description = RequestDescription::new().with_host("me@API.example:443");
    assert_eq!(value(&description, "host").as_deref(), Some("api.example"));
}

#[test]
fn the_size_of_a_body_is_stated_or_follows_from_the_request() {
    let post = || RequestDescription::new().with_method("POST");
    let size = |description: RequestDescription| value(&description, "request:size");
    assert_eq!(size(post().with_size(7).with_header("content-length", "9")).as_deref(), Some("7"));
    assert_eq!(size(post().with_header("Content-Length", "09")).as_deref(), Some("9"));
    assert_eq!(size(post().with_body("tide")).as_deref(), Some("4"));
    assert_eq!(size(RequestDescription::new().with_method("GET")).as_deref(), Some("0"));
    for unknown in [
        post(),
        RequestDescription::new(),
        post().with_header("content-length", "many"),
        // As at every other front end, of two lengths none counts.
        post().with_header("content-length", "1").with_header("Content-Length", "2"),
        RequestDescription::new().with_method("GET").with_header("transfer-encoding", "chunked"),
        post().with_header("transfer-encoding", "chunked").with_header("content-length", "9"),
    ] {
        assert_eq!(size(unknown.clone()), None, "{unknown:?}");
    }
}

#[test]
fn a_path_is_split_from_its_query_and_its_fragment_is_dropped() {
    for (path, expected) in [
        ("/a", (Some("/a"), None)),
        ("/a?", (Some("/a"), Some(""))),
        ("/a?b=c?d#e", (Some("/a"), Some("b=c?d"))),
        ("/a#b?c", (Some("/a"), None)),
        ("*", (Some("*"), None)),
    ] {
        let description = RequestDescription { path: Some(path.into()), ..RequestDescription::default() };
        let found = (value(&description, "path"), value(&description, "query"));
        assert_eq!((found.0.as_deref(), found.1.as_deref()), expected, "{path}");
    }
}

#[test]
fn attributes_of_the_application_keep_their_names() {
    let description = RequestDescription {
        tenant: Some("acme".into()),
        action: Some("export".into()),
        attributes: pairs(&[("account", "a7"), ("plan", "pro")]),
        body: Some("{}".into()),
        ip: Some("::ffff:203.0.113.9".into()),
        cost: Some(3),
        ..RequestDescription::default()
    };
    for (name, expected) in
        [("tenant", "acme"), ("account", "a7"), ("plan", "pro"), ("body", "{}"), ("ip", "203.0.113.9")]
    {
        assert_eq!(value(&description, name).as_deref(), Some(expected), "{name}");
    }
    let attributes = description.attributes().unwrap();
    assert_eq!((attributes.request().action(), attributes.request().cost()), ("export", 3));
}

#[test]
fn an_attribute_cannot_have_a_name_that_front_doors_set() {
    for (name, expected) in [
        ("ip", "attributes: `ip` is set by the front end; write it as a field of the request"),
        ("", "attributes: a name is empty"),
        ("tenant", "attributes: `tenant` is given twice; keep the field of the request"),
        (
            "x-key:secret.7",
            "attributes: a name with a colon is reserved for front ends; write a header under `headers`",
        ),
    ] {
        let attributes = pairs(&[(name, "7")]);
        let description =
            RequestDescription { attributes, tenant: Some("acme".into()), ..RequestDescription::default() };
        assert_eq!(description.attributes().unwrap_err().to_string(), expected);
    }
}

#[test]
fn invalid_fields_are_rejected_without_quoting_their_values() {
    let wrong = [
        RequestDescription { method: Some("post".into()), ..RequestDescription::default() },
        RequestDescription { ip: Some("secret.7".into()), ..RequestDescription::default() },
        RequestDescription { path: Some("https://secret.7/a".into()), ..RequestDescription::default() },
        RequestDescription { headers: pairs(&[("x-a", "secret.7\r\nx-b: 1")]), ..RequestDescription::default() },
        RequestDescription { headers: pairs(&[("x-key secret.7", "1")]), ..RequestDescription::default() },
        RequestDescription { headers: pairs(&[("secret.7", "1\n")]), ..RequestDescription::default() },
        RequestDescription { attributes: pairs(&[("x-key:secret.7", "=")]), ..RequestDescription::default() },
    ];
    for (description, field) in
        wrong.iter().zip(["method", "ip", "path", "headers", "headers", "headers", "attributes"])
    {
        let error = description.attributes().unwrap_err();
        assert_eq!(error.field(), field);
        assert!(!error.to_string().contains("secret.7"), "{error}");
    }
    assert!(!format!("{:?}", wrong[1]).contains("secret.7"));
}
