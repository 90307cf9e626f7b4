//! Random requests: the denied values in every spelling, among ordinary ones, with fields that would hide, repeat or replace them.

use fastrand::Rng;

use crate::canonical::rules::{
    ACCOUNT, COUNTED_KEY, EXEMPT_PATH, HOST, MATCHED_KEY, METHOD, PATH, SESSION, USER, token,
};

/// Which spellings of paths and methods are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathAlphabet {
    /// One spelling for each.
    Plain,
    /// Escapes, dot segments, empty segments, parameters, backslashes, and methods in other letters.
    Hostile,
}

impl PathAlphabet {
    #[allow(clippy::disallowed_methods, reason = "the alphabet comes from the environment")]
    pub(crate) fn from_environment() -> Option<Self> {
        match std::env::var("TIDEGATE_PATHS").ok()?.as_str() {
            "plain" => Some(Self::Plain),
            "hostile" => Some(Self::Hostile),
            other => panic!("TIDEGATE_PATHS={other}: neither plain nor hostile"),
        }
    }
}

/// Adds fields of one kind.
type Aspect = fn(&mut Rng, &mut Vec<Vec<u8>>);

/// The bytes of a request. The same seed gives the same request.
pub(crate) fn request(seed: u64, alphabet: PathAlphabet) -> Vec<u8> {
    let rng = &mut Rng::with_seed(seed);
    let mut fields: Vec<Vec<u8>> = Vec::new();
    let hosts = [
        "shop.example",
        "shop.example",
        "shop.example",
        "shop.example",
        "shop.example",
        HOST,
        "ADMIN.example",
        "admin.example:80",
        "admin.example.",
        "shop.example, admin.example",
    ];
    let host = pick(rng, &hosts);
    fields.push(field("host", host));
    let mut aspects: [Aspect; 6] = [keys, cookies, authorization, connection, claims_of_proxies, strange_names];
    rng.shuffle(&mut aspects);
    for aspect in aspects {
        if rng.u8(..3) == 0 {
            aspect(rng, &mut fields);
        }
    }
    if rng.bool() {
        rng.shuffle(&mut fields);
    }
    let method = method(rng, alphabet);
    let body = body(rng, &mut fields);
    let mut target = path(rng, alphabet);
    if rng.bool() {
        target = format!("{target}?{}", query(rng));
    }
    if rng.u8(..20) == 0 {
        target = format!("http://{}{target}", pick(rng, &["shop.example", HOST, "me@admin.example"]));
    }
    [format!("{method} {target} HTTP/1.1\r\n").into_bytes(), fields.concat(), b"\r\n".to_vec(), body].concat()
}

fn pick<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())]
}

fn field(name: &str, value: impl AsRef<[u8]>) -> Vec<u8> {
    [name.as_bytes(), b": ", value.as_ref(), b"\r\n"].concat()
}

fn method(rng: &mut Rng, alphabet: PathAlphabet) -> &'static str {
    let plain = ["GET", "GET", "GET", "POST", "POST", "PUT", "PATCH", METHOD];
    match alphabet {
        PathAlphabet::Hostile if rng.u8(..8) == 0 => pick(rng, &["get", "Delete", "delete", "post", "dELETE"]),
        _ => pick(rng, &plain),
    }
}

fn path(rng: &mut Rng, alphabet: PathAlphabet) -> String {
    const PIECES: [&str; 32] = [
        "/",
        "/",
        "/",
        "/",
        "api",
        "api",
        "api",
        "login",
        "login",
        "login",
        "healthz",
        "healthz",
        "..",
        ".",
        "%2e",
        "%2E%2e",
        "%2F",
        "%2f",
        "%252F",
        "%5C",
        "\\",
        "//",
        ";x=1",
        ";",
        "%61pi",
        "log%69n",
        "x",
        "%00",
        "%20",
        "a%2Fb",
        "%3B",
        "%2e%2e%2f",
    ];
    if alphabet == PathAlphabet::Plain || rng.u8(..4) == 0 {
        return pick(rng, &["/", "/a", "/a/b", "/api/other", EXEMPT_PATH, EXEMPT_PATH, PATH]).to_owned();
    }
    let pieces = rng.usize(1..9);
    let tail: String = (0..pieces).map(|_| pick(rng, &PIECES)).collect();
    let (base, before) = (pick(rng, &[PATH, EXEMPT_PATH, "/", "/api", "/x"]), rng.bool());
    if before { format!("{base}{tail}") } else { format!("/{tail}{base}") }
}

fn query(rng: &mut Rng) -> String {
    const NAMES: [&str; 10] = [
        "account",
        "account",
        "account",
        "ACCOUNT",
        "acc%6Funt",
        "+account",
        "x",
        "account[]",
        "Account",
        "account%20",
    ];
    const VALUES: [&str; 14] = [
        ACCOUNT, "%61%31", "a%31", "A1", "other", "other", "a1+", "%20a1", "a1%00", "", "a1%3Bx", "%ff", "a1#", "b=a1",
    ];
    let mut text = String::new();
    for number in 0..rng.usize(1..4) {
        if number > 0 {
            text.push_str(pick(rng, &["&", "&", "&", "&&", ";", "&amp;", "?"]));
        }
        text.push_str(pick(rng, &NAMES));
        if rng.u8(..10) > 0 {
            text.push('=');
            text.push_str(pick(rng, &VALUES));
        }
    }
    // A `#` would begin a fragment, which no client sends.
    text.replace('#', "")
}

fn keys(rng: &mut Rng, fields: &mut Vec<Vec<u8>>) {
    const NAMES: [&str; 7] =
        ["X-Api-Key", "X-Api-Key", "x-api-key", "X_Api_Key", "X-API_KEY", "x_api_key", "X-Api-Key"];
    const VALUES: [&[u8]; 14] = [
        MATCHED_KEY.as_bytes(),
        COUNTED_KEY.as_bytes(),
        b"other",
        b"other",
        b"k",
        b"k1, x",
        b"x, k2",
        b"k2\xff",
        b"\"k1\"",
        b"",
        b"K1",
        b"k1;",
        b"\tk1 ",
        b"k2\t\t",
    ];
    for _ in 0..pick(rng, &[1, 1, 1, 2, 3]) {
        fields.push(field(pick(rng, &NAMES), pick(rng, &VALUES)));
    }
}

fn cookies(rng: &mut Rng, fields: &mut Vec<Vec<u8>>) {
    const NAMES: [&str; 8] = ["sid", "sid", "sid", "SID", "x", "$Version", " sid ", "sid\t"];
    const VALUES: [&str; 16] = [
        SESSION,
        "\"s1\"",
        "%731",
        "\"\\163\\061\"",
        "\"s\\1\"",
        "S1",
        "s1%",
        "other",
        "other",
        "",
        "\"s1",
        "s1\\",
        "\"s1;x\"",
        "s1,x",
        " s1 ",
        "%73%31",
    ];
    for _ in 0..pick(rng, &[1, 1, 2]) {
        let mut line = String::new();
        for number in 0..rng.usize(1..4) {
            if number > 0 {
                line.push_str(pick(rng, &["; ", "; ", ";", " ; ", ","]));
            }
            line.push_str(pick(rng, &NAMES));
            line.push('=');
            line.push_str(pick(rng, &VALUES));
        }
        fields.push(field("Cookie", line));
    }
}

fn authorization(rng: &mut Rng, fields: &mut Vec<Vec<u8>>) {
    for _ in 0..pick(rng, &[1, 1, 1, 2]) {
        let token = token(pick(rng, &[USER, USER, "other", "else"]));
        let between = match rng.u8(..7) {
            0 => " ".repeat(8_300),
            1 => "\t".to_owned(),
            2 => "  \t ".to_owned(),
            _ => " ".to_owned(),
        };
        let value = match rng.u8(..8) {
            0 => token,
            1 => format!("Basic{between}{token}"),
            2 => format!("bEARER{between}{token} "),
            3 => format!("Bearer{between}{token}.{}", "x".repeat(9_000)),
            _ => format!("Bearer{between}{token}"),
        };
        fields.push(field("Authorization", value));
    }
}

/// Names in `Connection` are removed by the next server.
fn connection(rng: &mut Rng, fields: &mut Vec<Vec<u8>>) {
    const VALUES: [&str; 14] = [
        "close",
        "keep-alive",
        "close, X-Api-Key",
        "X-Api-Key",
        "host",
        "x-forwarded-for, close",
        "upgrade",
        "te",
        "cookie",
        "Authorization",
        "x-forwarded-host",
        "content-length",
        "x-mine",
        "close,,\tx-api-key",
    ];
    for _ in 0..pick(rng, &[1, 1, 2]) {
        fields.push(field("Connection", pick(rng, &VALUES)));
    }
    fields.push(field("TE", "trailers, gzip"));
}

/// Fields that only a proxy should set.
fn claims_of_proxies(rng: &mut Rng, fields: &mut Vec<Vec<u8>>) {
    for _ in 0..rng.usize(1..4) {
        let (name, value) = pick(
            rng,
            &[
                ("X-Forwarded-For", "198.51.100.7"),
                ("X-Forwarded-Host", HOST),
                ("X-Forwarded-Proto", "https"),
                ("X-Forwarded-Prefix", "/api"),
                ("Forwarded", "for=198.51.100.7;host=admin.example"),
                ("X-Real-IP", "198.51.100.7"),
                ("X-Original-URL", PATH),
                ("X-Rewrite-Url", PATH),
                ("Proxy", "http://198.51.100.7"),
            ],
        );
        fields.push(field(name, value));
    }
}

/// Names that a server may take for others.
fn strange_names(rng: &mut Rng, fields: &mut Vec<Vec<u8>>) {
    for _ in 0..rng.usize(1..3) {
        let (name, value) = pick(
            rng,
            &[
                ("X_Forwarded_For", "198.51.100.7"),
                ("X_Forwarded_Host", HOST),
                ("X_Original_URL", PATH),
                ("Content_Length", "3"),
                ("Transfer_Encoding", "chunked"),
                ("Cookie2", "sid=s1"),
                ("X-Api-Key-", "k1"),
            ],
        );
        fields.push(field(name, value));
    }
}

/// A body, with its length in one of several spellings.
fn body(rng: &mut Rng, fields: &mut Vec<Vec<u8>>) -> Vec<u8> {
    let (name, value, body): (&str, &str, &[u8]) = match rng.u8(..14) {
        0 => ("Content-Length", "5", b"hello"),
        1 => ("Content-Length", "05", b"hello"),
        2 => ("Content-Length", "+5", b"hello"),
        3 => ("Transfer-Encoding", "chunked", b"5\r\nhello\r\n0\r\n\r\n"),
        4 => ("Transfer-Encoding", "gzip, chunked", b"5\r\nhello\r\n0\r\n\r\n"),
        _ => return Vec::new(),
    };
    fields.push(field(name, value));
    body.to_vec()
}
