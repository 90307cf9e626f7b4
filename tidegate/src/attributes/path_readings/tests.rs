//! Readings by example, and compared with models of servers.

use proptest::prelude::*;

use super::super::path_escape::push_normalized;
use super::super::{EscapedSlashes, canonical_path, normalize_path_segment};
use super::*;

fn readings(path: &str) -> Result<Vec<String>, PathError> {
    PathReadings::new(path).map(|readings| readings.iter().map(str::to_owned).collect())
}

#[test]
fn a_path_that_servers_agree_on_has_one_reading() {
    for (path, expected) in [
        ("/api/login", "/api/login"),
        ("/api/login/", "/api/login"),
        ("/%61pi/%6C%6fgin", "/api/login"),
        ("/api/login?next=%2F", "/api/login"),
        ("/api/login#top", "/api/login"),
        ("http://host/api/login", "/api/login"),
        ("api/login", "/api/login"),
        ("/", "/"),
        ("", "/"),
        ("*", "*"),
        ("/A", "/A"),
        ("/.well-known/x", "/.well-known/x"),
        ("/...", "/..."),
        ("/a%2ejs", "/a.js"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/caf\u{e9}", "/caf%C3%A9"),
        ("/a%20b", "/a%20b"),
        ("/a%3Fb%23", "/a%3Fb%23"),
        ("/100%", "/100%25"),
        ("/100%25", "/100%25"),
        ("/%zz%4", "/%25zz%254"),
        ("/a%00", "/a%00"),
        ("/@me:8/a,b=c+d", "/@me:8/a,b=c+d"),
    ] {
        assert_eq!(readings(path).as_deref(), Ok(&[expected.to_owned()][..]), "{path}");
    }
}

#[test]
fn a_path_that_servers_read_differently_has_every_reading() {
    for (path, expected) in [
        ("/api%2Flogin", &["/api%2Flogin", "/api/login"][..]),
        ("/api%2flogin", &["/api%2Flogin", "/api/login"]),
        ("/%2Flogin", &["/%2Flogin", "//login", "/login"]),
        ("/x%2F..%2Flogin", &["/x%2F..%2Flogin", "/x/../login", "/login"]),
        ("/a%252Fb", &["/a%252Fb", "/a%2Fb", "/a/b"]),
        ("/a%25%32%66b", &["/a%252fb", "/a%2Fb", "/a/b"]),
        ("/a%2Fb%252Fc", &["/a%2Fb%252Fc", "/a/b%252Fc", "/a/b%2Fc", "/a/b/c"]),
        ("/%2561pi", &["/%2561pi", "/api"]),
        ("/100%25ab%2Fc", &["/100%25ab%2Fc", "/100%25ab/c", "/100%AB/c"]),
        ("//api/login", &["//api/login", "/api/login"]),
        ("/api//login", &["/api//login", "/api/login"]),
        ("/api/login//", &["/api/login/", "/api/login"]),
        ("/fetch/https://x", &["/fetch/https://x", "/fetch/https:/x"]),
        ("/fetch/https%3A%2F%2Fx", &["/fetch/https:%2F%2Fx", "/fetch/https://x", "/fetch/https:/x"]),
        ("/projects/group%2Fname", &["/projects/group%2Fname", "/projects/group/name"]),
        ("/api;x/login", &["/api;x/login", "/api/login"]),
        ("/api%3Bx/login", &["/api;x/login", "/api/login"]),
        ("/api/login;x=1", &["/api/login;x=1", "/api/login"]),
        ("/x/..;/login", &["/x/..;/login", "/x/../login", "/login"]),
        ("/;x/login", &["/;x/login", "//login", "/login"]),
        ("/api\\login", &["/api%5Clogin", "/api/login"]),
        ("/api%5Clogin", &["/api%5Clogin", "/api/login"]),
        ("/x\\..\\login", &["/x%5C..%5Clogin", "/x/../login", "/login"]),
        ("/x/../login", &["/x/../login", "/login"]),
        ("/x/%2e%2E/login", &["/x/../login", "/login"]),
        ("/x/%252e%252e/login", &["/x/%252e%252e/login", "/x/../login", "/login"]),
        ("/a/..", &["/a/..", "/"]),
        ("/%%36%31pi", &["/%2561pi", "/api"]),
        ("/a;x=b%2Fc", &["/a;x=b%2Fc", "/a", "/a;x=b/c", "/a/c"]),
    ] {
        assert_eq!(readings(path).unwrap(), expected, "{path}");
    }
    // However often it is escaped.
    let percent_signs = "%25".repeat(1_000);
    assert_eq!(readings(&format!("/{percent_signs}2F")).unwrap().len(), 3);
}

#[test]
fn the_order_of_resolving_dots_and_empty_segments_does_not_hide_a_reading() {
    let mut found = readings("/a//../b").unwrap();
    found.sort_unstable();
    assert_eq!(found, ["/a/../b", "/a//../b", "/a/b", "/b"]);
    // `/a/b//c`, `/b/c` and `/a/b/c` after resolving, and two before.
    assert_eq!(readings("/a//../b//c"), Err(PathError::TooManyReadings));
}

#[test]
fn a_path_with_more_than_four_readings_is_refused() {
    for path in [
        "/a;b%2Fc\\d",
        "/a%2525252Fb",
        "/fetch/https%3A%2F%2Fx;y",
        "/a%2F..%2F%2Fb",
        "/a%2F%5C\\b",
        "/a;b%2Fc/d%2Fe",
        &format!("/%{}2F", "25".repeat(10_000)),
        &"/;%2F\\..//".repeat(5_000),
    ] {
        let start: String = path.chars().take(40).collect();
        assert_eq!(readings(path), Err(PathError::TooManyReadings), "{start}");
    }
}

#[test]
fn a_path_with_one_reading_is_not_copied() {
    for path in ["/", "/api/login", "/api/login?x=%zz", "/@me", "/a%20b", "/.well-known/x", "*", "http://host/api"] {
        assert!(matches!(PathReadings::new(path).unwrap().as_written, Cow::Borrowed(_)), "{path}");
    }
}

/// How a server reads a path: which segments its handlers see, decoded.
struct ServerModel {
    name: &'static str,
    /// How often it decodes the path before it splits it. A proxy in front that decodes counts too.
    decodes_before: usize,
    /// How often it decodes each segment afterwards.
    decodes_after: usize,
    /// Whether a backslash separates segments.
    backslash: bool,
    /// Whether it removes parameters, before it decodes.
    parameters: bool,
    /// What it removes, in this order.
    removes: &'static [Removal],
}

#[derive(Clone, Copy)]
enum Removal {
    EmptySegments,
    DotSegments,
}

use Removal::{DotSegments, EmptySegments};

const SERVERS: [ServerModel; 12] = [
    server("raw, such as Node's http", 0, 0, &[]),
    server("segments decoded, such as Express", 0, 1, &[]),
    server("decoded, such as Werkzeug", 1, 0, &[]),
    server("decoded and merged, such as Werkzeug's default", 1, 0, &[EmptySegments]),
    server("decoded, merged and resolved, such as nginx", 1, 0, &[EmptySegments, DotSegments]),
    server("merged and resolved, such as Go's ServeMux", 0, 1, &[EmptySegments, DotSegments]),
    server("resolved by RFC 3986", 0, 1, &[DotSegments]),
    server("resolved, then merged, such as Jetty", 1, 0, &[DotSegments, EmptySegments]),
    server("decoded twice", 2, 0, &[EmptySegments, DotSegments]),
    server("decoded by a proxy, then segment by segment", 1, 1, &[]),
    ServerModel {
        parameters: true,
        ..server("without parameters, such as Tomcat", 1, 0, &[EmptySegments, DotSegments])
    },
    ServerModel { backslash: true, ..server("with backslashes, such as IIS", 1, 0, &[EmptySegments, DotSegments]) },
];

const fn server(
    name: &'static str,
    decodes_before: usize,
    decodes_after: usize,
    removes: &'static [Removal],
) -> ServerModel {
    ServerModel { name, decodes_before, decodes_after, backslash: false, parameters: false, removes }
}

impl ServerModel {
    /// The path that the server sees, with the escapes of the normal form.
    fn read(&self, path: &str) -> String {
        let mut text = path.as_bytes().to_vec();
        if self.parameters {
            let segments = text
                .split(|byte| *byte == b'/')
                .map(|segment| segment.split(|byte| *byte == b';').next().unwrap_or_default().to_vec());
            text = segments.collect::<Vec<_>>().join(&b'/');
        }
        for _ in 0..self.decodes_before {
            text = decode(&text);
        }
        let separates = |byte: &u8| *byte == b'/' || (self.backslash && *byte == b'\\');
        let mut segments: Vec<Vec<u8>> = text.split(separates).skip(1).map(<[u8]>::to_vec).collect();
        for removal in self.removes {
            segments = removal.apply(segments, self.decodes_before == 0);
        }
        if segments.len() > 1 && segments.last().is_some_and(Vec::is_empty) {
            segments.pop();
        }
        for segment in &mut segments {
            for _ in 0..self.decodes_after {
                *segment = decode(segment);
            }
        }
        let mut normal = String::new();
        for segment in segments {
            normal.push('/');
            // A server that decodes nothing sees escapes, of which the normal form is that of the path.
            if self.decodes_before + self.decodes_after == 0 {
                push_normalized(&mut normal, &segment);
            } else {
                for byte in segment {
                    push_byte(&mut normal, byte);
                }
            }
        }
        normal
    }
}

impl Removal {
    /// `escaped` is whether the segments are not decoded yet.
    fn apply(self, segments: Vec<Vec<u8>>, escaped: bool) -> Vec<Vec<u8>> {
        let count = segments.len();
        let mut left: Vec<Vec<u8>> = Vec::new();
        for (index, segment) in segments.into_iter().enumerate() {
            let is_last = index + 1 == count;
            let text = if escaped { decode(&segment) } else { segment.clone() };
            match (self, text.as_slice()) {
                (EmptySegments, []) if !is_last => {}
                (DotSegments, dots @ (b"." | b"..")) => {
                    if dots == b".." {
                        left.pop();
                    }
                    if is_last {
                        left.push(Vec::new());
                    }
                }
                _ => left.push(segment),
            }
        }
        left
    }
}

fn assert_every_server_is_covered(path: &str) {
    // Front ends that cannot change a path judge it as it is; the gateway forwards the canonical path.
    for path in [path, &canonical_path(path, EscapedSlashes::Both).unwrap()] {
        let Ok(readings) = PathReadings::new(path) else { continue };
        for server in &SERVERS {
            let read = server.read(path);
            assert!(readings.iter().any(|reading| reading == read), "{path:?}: {}: {read:?} {readings:?}", server.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_server_model_reads_one_of_the_readings(
        path in "(/|%2F|%2f|%252F|\\\\|%5C|//|;|;x=1|\\.|\\.\\.|%2e|%252e|%|%25|%41|a|b|5|F|é|%ff){0,8}"
    ) {
        assert_every_server_is_covered(&format!("/{path}"));
    }

    #[test]
    fn readings_are_normal_and_distinct(path in "/[a.%/2eE5fFcC;\\\\]{0,16}") {
        if let Ok(readings) = PathReadings::new(&path) {
            let all: Vec<_> = readings.iter().collect();
            prop_assert!(all.len() <= MAX_READINGS);
            for (index, reading) in all.iter().enumerate() {
                prop_assert!(reading.starts_with('/') && !all[..index].contains(reading), "{:?}", readings);
                for segment in reading[1..].split('/') {
                    prop_assert_eq!(normalize_path_segment(segment), segment);
                }
            }
            // One of them is the form without dots and empty segments.
            prop_assert!(all.contains(&&*normalize_path(&path)), "{:?}", readings);
        }
    }

    #[test]
    fn the_quick_test_finds_every_ambiguous_path(path in "/[a.%/2eE5fF3bBcC;\\\\]{0,8}") {
        if !may_be_ambiguous(&path) {
            let normal = normalize_path(&path);
            for server in &SERVERS {
                prop_assert_eq!(server.read(&path), normal.as_ref(), "{}", server.name);
            }
        }
    }
}

#[test]
fn no_path_panics() {
    bolero::check!().with_type::<String>().for_each(|text| {
        let _ = PathReadings::new(text);
        assert_every_server_is_covered(&format!("/{}", text.replace(['?', '#'], "")));
    });
}
