//! Mistakes in rules that protect logins and other secrets against guessing.

use tidegate_rules::Severity;

use super::{Case, case};

pub(super) const SECURITY: [Case; 17] = [
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
        (3, 43),
        "rules:\n- { id: a, per: attr:account, on_failure: degraded, security: true, sliding_log: { limit: 5, window: 10m } }",
        ("degraded", "share"),
    ),
    case(
        "security-fails-open",
        Severity::Warning,
        (3, 45),
        "rules:\n- { id: a, per: attr:account, on_failure: { GET /pin: open, default: share }, security: true, sliding_log: { limit: 5, window: 10m } }",
        ("open", "{ static: 10/s }"),
    ),
    case(
        "security-fails-open",
        Severity::Warning,
        (3, 77),
        "rules:\n- { id: a, per: attr:account, match: { method: [POST, PUT] }, on_failure: { POST: closed, default: open }, security: true, sliding_log: { limit: 5, window: 10m } }",
        ("POST: closed", "POST: closed, PUT: share"),
    ),
    case(
        "concurrency-on-security",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: attr:account, security: true, on_failure: share, limits: { active: { concurrency: { max: 2 } } } }",
        ("limits: {", "limits: { guesses: { sliding_log: { limit: 5, window: 10m } },"),
    ),
    case(
        "penalty-by-account",
        Severity::Warning,
        (3, 124),
        "rules:\n- { id: a, match: { action: login }, per: attr:account, security: true, sliding_log: { limit: 5, window: 10m }, penalty: { after: 3, block: 1m, max: 1h } }",
        ("per: attr:account", "per: [attr:account, ip]"),
    ),
    case(
        "penalty-by-account",
        Severity::Warning,
        (3, 96),
        "rules:\n- { id: a, per: body:email, security: true, sliding_log: { limit: 5, window: 10m }, penalty: { after: 3, block: 1m, max: 1h } }",
        ("body:email", "ip"),
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
    case(
        "account-spellings",
        Severity::Note,
        (3, 43),
        "rules:\n- { id: a, match: { action: login }, per: attr:account, sliding_log: { limit: 5, window: 10m } }",
        ("per:", "security: true, per:"),
    ),
    case(
        "account-spellings",
        Severity::Note,
        (3, 18),
        "rules:\n- { id: a, per: [body:phone], security: true, sliding_log: { limit: 5, window: 10m } }",
        ("body:phone", "body:phone | nfkc"),
    ),
    case(
        "account-spellings",
        Severity::Note,
        (3, 22),
        "rules:\n- { id: a, per: [ip, body:user.email], sliding_log: { limit: 5, window: 10m } }",
        ("user.email", "user.email | exact"),
    ),
];
