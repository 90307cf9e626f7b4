//! The mistakes, each as a small file, and what mends it.

use tidegate_rules::Severity;

/// A file that draws a lint, where, and how to mend it.
pub(crate) struct Case {
    pub(crate) code: &'static str,
    pub(crate) severity: Severity,
    /// Line and column; the first line is `version: 1`.
    pub(crate) at: (usize, usize),
    pub(crate) file: &'static str,
    /// What to replace, and with what.
    pub(crate) mended: (&'static str, &'static str),
}

const fn case(
    code: &'static str,
    severity: Severity,
    at: (usize, usize),
    file: &'static str,
    mended: (&'static str, &'static str),
) -> Case {
    Case { code, severity, at, file, mended }
}

/// Who can pretend to be whom.
const IDENTITY: [Case; 15] = [
    case(
        "trust-everyone",
        Severity::Warning,
        (2, 43),
        "identify: { trusted_proxies: [10.0.0.0/8, 0.0.0.0/0] }",
        ("0.0.0.0/0", "192.0.2.0/24"),
    ),
    case(
        "trust-everyone",
        Severity::Warning,
        (2, 31),
        "identify: { trusted_proxies: [\"::/0\"] }",
        ("::/0", "fc00::/7"),
    ),
    case("trust-everyone", Severity::Warning, (2, 31), "identify: { trusted_proxies: [128.0.0.0/1] }", ("/1", "/8")),
    case("trust-everyone", Severity::Warning, (2, 31), "identify: { trusted_proxies: [\"2000::/3\"] }", ("/3", "/32")),
    case(
        "unauthenticated-header",
        Severity::Warning,
        (3, 18),
        "rules:\n- { id: a, per: [header:x-api-key], token_bucket: { capacity: 9, refill: 1/s } }",
        ("[header:x-api-key]", "[ip, header:x-api-key]"),
    ),
    case(
        "unauthenticated-header",
        Severity::Warning,
        (2, 22),
        "identify: { client: [header:x-api-key, ip] }\n\
         rules:\n- { id: a, per: client, token_bucket: { capacity: 9, refill: 1/s } }",
        ("[header:x-api-key, ip]", "[ip, header:x-api-key]"),
    ),
    case(
        "unauthenticated-header",
        Severity::Warning,
        (2, 40),
        "identify: { client: [header:x-api-key, query:key, ip], authenticated: [x-api-key] }\n\
         rules:\n- { id: a, per: client, token_bucket: { capacity: 9, refill: 1/s } }",
        ("[x-api-key]", "[X-Api-Key, query:key]"),
    ),
    case(
        "unauthenticated-header",
        Severity::Warning,
        (3, 18),
        "rules:\n- { id: a, per: [cookie:session, path], token_bucket: { capacity: 9, refill: 1/s } }",
        ("path", "tenant"),
    ),
    case(
        "unverified-claim",
        Severity::Error,
        (2, 19),
        "identify: { user: claim:sub, authenticated: x-tenant }",
        ("x-tenant", "authorization"),
    ),
    case(
        "unverified-claim",
        Severity::Error,
        (4, 18),
        "identify: { token: X-Token, authenticated: authorization }\n\
         rules:\n- { id: a, per: [claim:sub], token_bucket: { capacity: 9, refill: 1/s } }",
        ("authenticated: authorization", "authenticated: x-token"),
    ),
    case(
        "unverified-claim",
        Severity::Error,
        (3, 27),
        "rules:\n- { id: a, per: ip, cost: 'attr[\"claim:tier\"] == \"a\" ? 1 : 2', sliding_log: { limit: 9, window: 1m } }",
        ("claim:tier", "tier"),
    ),
    case(
        "unauthenticated-tenant",
        Severity::Warning,
        (2, 21),
        "identify: { tenant: header:x-tenant }",
        ("}", ", authenticated: x-tenant }"),
    ),
    case(
        "unauthenticated-tenant",
        Severity::Warning,
        (2, 19),
        "identify: { plan: query:plan }",
        ("query:plan", "attr:tier"),
    ),
    case(
        "exempt-by-header",
        Severity::Warning,
        (2, 13),
        "exempt: [ { header: { x-internal: \"1\" } } ]",
        ("\"1\" }", "\"1\" }, ip: 10.0.0.0/8"),
    ),
    case("unused-identity", Severity::Warning, (2, 13), "identify: { tennant: attr:org }", ("tennant", "tenant")),
];

/// Rules against guessing.
const SECURITY: [Case; 11] = [
    case(
        "looks-like-security",
        Severity::Note,
        (3, 21),
        "rules:\n- { id: a, match: { action: login }, per: attr:account, sliding_log: { limit: 5, window: 10m } }",
        ("login", "blogging"),
    ),
    case(
        "looks-like-security",
        Severity::Note,
        (3, 21),
        "rules:\n- { id: a, match: { path: /v1/password-reset }, per: attr:a, sliding_log: { limit: 5, window: 10m } }",
        ("per:", "security: true, per:"),
    ),
    case(
        "looks-like-security",
        Severity::Note,
        (3, 21),
        "rules:\n- { id: a, match: { path: /signIn }, per: attr:account, sliding_log: { limit: 5, window: 10m } }",
        ("per:", "security: false, per:"),
    ),
    case(
        "fixed-window-on-security",
        Severity::Warning,
        (3, 63),
        "rules:\n- { id: a, per: attr:account, security: true, fixed_window: { limit: 5, window: 10m } }",
        ("fixed_window", "sliding_log"),
    ),
    case(
        "fixed-window-on-security",
        Severity::Warning,
        (4, 9),
        "plans: { pro: { a: { fixed_window: { limit: 9, window: 10m } } } }\nrules:\n\
         - { id: a, per: attr:account, security: true, sliding_log: { limit: 5, window: 10m } }",
        ("fixed_window", "sliding_log"),
    ),
    case(
        "fixed-window-on-security",
        Severity::Warning,
        (3, 81),
        "rules:\n- { id: a, match: { action: otp }, on_failure: closed, per: a1, fixed_window: { limit: 5, window: 10m } }\n\
         identify: { a1: attr:account }",
        ("per:", "security: false, per:"),
    ),
    case(
        "security-fails-open",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: attr:account, security: true, sliding_log: { limit: 5, window: 10m } }",
        ("security: true", "security: true, on_failure: closed"),
    ),
    case(
        "security-fails-open",
        Severity::Warning,
        (3, 43),
        "rules:\n- { id: a, per: attr:account, on_failure: degraded, security: true, sliding_log: { limit: 5, window: 10m } }",
        ("degraded", "local"),
    ),
    case(
        "local-refuses",
        Severity::Note,
        (3, 43),
        "rules:\n- { id: a, per: attr:account, on_failure: local, sliding_log: { limit: 5, window: 10m } }",
        ("local", "closed"),
    ),
    case(
        "login-by-ip-alone",
        Severity::Warning,
        (3, 43),
        "rules:\n- { id: a, match: { action: login }, per: [ip, net:24/56], sliding_log: { limit: 5, window: 10m } }\n\
         - { id: b, match: { action: login }, per: client, sliding_log: { limit: 50, window: 10m } }\n\
         - { id: c, match: { action: export }, per: attr:account, sliding_log: { limit: 5, window: 10m } }",
        ("export", "login"),
    ),
    case(
        "login-by-ip-alone",
        Severity::Warning,
        (3, 56),
        "rules:\n- { id: a, match: { method: POST, path: /login }, per: [ip], sliding_log: { limit: 5, window: 10m } }\n\
         - { id: b, match: { method: GET, path: /* }, per: attr:account, sliding_log: { limit: 5, window: 10m } }",
        ("GET", "POST"),
    ),
];

/// Rules that never come to a word.
const REACH: [Case; 12] = [
    case(
        "no-rules",
        Severity::Warning,
        (1, 1),
        "rules: []",
        ("[]", "\n- { id: a, per: ip, token_bucket: { capacity: 9, refill: 1/s } }"),
    ),
    case(
        "never-matches",
        Severity::Note,
        (3, 21),
        "rules:\n- { id: a, match: { tenant: acme }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        ("rules:", "identify: { tenant: attr:org }\nrules:"),
    ),
    case(
        "never-matches",
        Severity::Note,
        (4, 21),
        "tenants: { acme: pro }\n\
         rules:\n- { id: a, match: { plan: pro }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        ("rules:", "default_plan: pro\nrules:"),
    ),
    case(
        "unreachable",
        Severity::Warning,
        (4, 21),
        "exempt: [ { path: /health/* } ]\n\
         rules:\n- { id: a, match: { path: /health/live }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        ("/health/live", "/health"),
    ),
    case(
        "duplicate-rule",
        Severity::Warning,
        (4, 9),
        "rules:\n- { id: a, match: { path: /x }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }\n\
         - { id: b, match: { path: /x }, per: ip, token_bucket: { capacity: 9, refill: 60/m } }",
        ("60/m", "61/m"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (4, 9),
        "rules:\n- { id: a, match: { path: /* }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }\n\
         - { id: b, match: { path: /x }, per: ip, token_bucket: { capacity: 9, refill: 61/m } }",
        ("61/m", "59/m"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: [ip, path], sliding_log: { limit: 20, window: 1m } }\n\
         - { id: b, per: [ip], sliding_log: { limit: 20, window: 1m } }",
        ("limit: 20", "limit: 19"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: ip, sliding_window: { limit: 20, window: 1m } }\n\
         - { id: b, per: ip, sliding_window: { limit: 10, window: 1m } }",
        ("limit: 10", "slices: 3, limit: 10"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: ip, fixed_window: { limit: 20, window: 1m } }\n\
         - { id: b, per: ip, fixed_window: { limit: 10, window: 1m } }",
        ("rules:", "plans: { pro: { b: { fixed_window: { limit: 30, window: 1m } } } }\nrules:"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: [], leaky_bucket: { rate: 9/s, queue: 10 } }\n\
         - { id: b, per: [], leaky_bucket: { rate: 9/s, queue: 9 } }",
        ("rate: 9/s, queue: 9 ", "rate: 10/s, queue: 9 "),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: ip, cost: 1, fixed_window: { limit: 20, window: 1m } }\n\
         - { id: b, per: ip, cost: 1, fixed_window: { limit: 10, window: 1m } }",
        ("{ id: a,", "{ id: a, on_failure: closed,"),
    ),
    case(
        "never-decides",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: ip, fixed_window: { limit: 20, window: 1m } }\n\
         - { id: b, per: ip, fixed_window: { limit: 10, window: 1m } }",
        ("{ id: b,", "{ id: b, mode: shadow,"),
    ),
];

/// Amounts.
const LIMITS: [Case; 8] = [
    case(
        "huge-log",
        Severity::Warning,
        (3, 36),
        "rules:\n- { id: a, per: ip, sliding_log: { limit: 1001, window: 1m } }",
        ("1001", "1000"),
    ),
    case(
        "huge-log",
        Severity::Warning,
        (5, 22),
        "rules:\n- id: a\n  per: ip\n  limits: { burst: { sliding_log: { limit: 2000, window: 1m } }, \
         day: { fixed_window: { limit: 9000, window: 1d } } }",
        ("sliding_log", "sliding_window"),
    ),
    case(
        "zero-limit",
        Severity::Note,
        (3, 37),
        "rules:\n- { id: a, per: ip, fixed_window: { limit: 0, window: 1m } }",
        ("limit: 0", "limit: 1"),
    ),
    case(
        "cost-above-limit",
        Severity::Warning,
        (3, 27),
        "rules:\n- { id: a, per: ip, cost: 21, token_bucket: { capacity: 20, refill: 1/s } }",
        ("cost: 21", "cost: 20"),
    ),
    case(
        "cost-above-limit",
        Severity::Warning,
        (3, 29),
        "rules:\n- { id: a, per: ip, cost: { GET: 1, POST: 21 }, token_bucket: { capacity: 20, refill: 1/s } }",
        ("POST: 21", "POST: 20"),
    ),
    case(
        "cost-above-limit",
        Severity::Warning,
        (4, 27),
        "plans: { small: { a: { token_bucket: { capacity: 2, refill: 1/s } } } }\n\
         rules:\n- { id: a, per: ip, cost: 3, token_bucket: { capacity: 20, refill: 1/s } }",
        ("capacity: 2,", "capacity: 3,"),
    ),
    case(
        "long-queue",
        Severity::Note,
        (3, 37),
        "rules:\n- { id: a, per: [], leaky_bucket: { rate: 10/s, queue: 301 } }",
        ("301", "300"),
    ),
    case(
        "unused-identity",
        Severity::Note,
        (2, 13),
        "identify: { device: attr:device }\nrules:\n- { id: a, per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        ("per: ip", "per: device"),
    ),
];

/// All of them.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    IDENTITY.iter().chain(&SECURITY).chain(&REACH).chain(&LIMITS)
}
