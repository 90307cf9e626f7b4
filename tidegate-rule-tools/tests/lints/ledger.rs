//! Ledgers.

use tidegate_rules::Severity;

use super::{Case, case};

pub(super) const LEDGER: [Case; 16] = [
    case(
        "quota-without-ledger",
        Severity::Warning,
        (3, 58),
        "rules:\n- { id: a, per: [tenant], match: { action: x }, quota: { amount: 5, period: day } }\n\
         - { id: b, per: [tenant], match: { action: y }, quota: { amount: 5, period: day, ledger: sync } }",
        ("period: day }", "period: day, ledger: none }"),
    ),
    case(
        "quota-without-ledger",
        Severity::Warning,
        (3, 58),
        "rules:\n- { id: a, per: [tenant], match: { action: x }, quota: { amount: 5, period: day } }\n\
         - { id: b, per: [tenant], match: { action: y }, quota: { amount: 5, period: day, ledger: sync } }",
        ("ledger: sync", "grace: 1"),
    ),
    case(
        "unauthenticated-ledger",
        Severity::Error,
        (3, 17),
        "rules:\n- { id: a, per: [ip], quota: { amount: 5, period: day, ledger: async } }",
        ("[ip]", "[attr:account]"),
    ),
    case(
        "unauthenticated-ledger",
        Severity::Error,
        (4, 17),
        "identify: { tenant: header:x-tenant-id }\n\
         rules:\n- { id: a, per: [tenant], quota: { amount: 5, period: day, ledger: async } }",
        ("header:x-tenant-id", "header:x-tenant-id, authenticated: [x-tenant-id]"),
    ),
    case(
        "unauthenticated-ledger",
        Severity::Error,
        (4, 17),
        "identify: { client: [header:x-api-key, ip], authenticated: [x-api-key] }\n\
         rules:\n- { id: a, per: [client], quota: { amount: 5, period: day, ledger: async } }",
        (", ip]", "]"),
    ),
    case(
        "ledger-in-shadow",
        Severity::Warning,
        (3, 82),
        "rules:\n- { id: a, mode: shadow, per: [tenant], quota: { amount: 5, period: day, ledger: async } }",
        ("mode: shadow, ", ""),
    ),
    case(
        "ledger-fails-open",
        Severity::Warning,
        (3, 39),
        "rules:\n- { id: a, per: [tenant], on_failure: open, quota: { amount: 5, period: day, ledger: async } }",
        ("on_failure: open, ", ""),
    ),
    case(
        "ledger-fails-open",
        Severity::Warning,
        (3, 39),
        "rules:\n- { id: a, per: [tenant], on_failure: degraded, quota: { amount: 5, period: day, ledger: async } }",
        ("degraded", "closed"),
    ),
    case(
        "ledger-fails-open",
        Severity::Warning,
        (3, 41),
        "rules:\n- { id: a, per: [tenant], on_failure: { GET: open }, quota: { amount: 5, period: day, ledger: async } }",
        ("GET: open", "GET: share"),
    ),
    case(
        "ledger-fails-open",
        Severity::Note,
        (3, 39),
        "rules:\n- { id: a, per: [tenant], on_failure: local, quota: { amount: 5, period: day, ledger: async } }",
        ("local", "share"),
    ),
    case(
        "sync-ledger-on-reads",
        Severity::Note,
        (3, 68),
        "rules:\n- { id: a, per: [tenant], quota: { amount: 5, period: day, ledger: sync } }",
        ("sync", "async"),
    ),
    case(
        "sync-ledger-on-reads",
        Severity::Note,
        (3, 114),
        "rules:\n- { id: a, match: { method: [GET, POST], path: /api/* }, per: [tenant], quota: { amount: 5, period: day, ledger: sync } }",
        ("[GET, POST]", "[POST, PUT]"),
    ),
    case(
        "sync-ledger-on-reads",
        Severity::Note,
        (3, 93),
        "rules:\n- { id: a, match: { path: /api/* }, per: [tenant], quota: { amount: 5, period: day, ledger: sync } }",
        ("/api/*", "/api/exports"),
    ),
    case(
        "sync-ledger-on-reads",
        Severity::Note,
        (3, 98),
        "rules:\n- { id: a, per: [tenant], cost: { GET: 1, default: 5 }, quota: { amount: 5, period: day, ledger: sync } }",
        ("GET: 1", "GET: 0"),
    ),
    case(
        "plan-without-ledger",
        Severity::Warning,
        (2, 22),
        "plans: { pro: { a: { token_bucket: { capacity: 5, refill: 5/s } } } }\ntenants: { acme: pro }\n\
         rules:\n- { id: a, per: [tenant], quota: { amount: 5, period: day, ledger: async } }",
        ("token_bucket: { capacity: 5, refill: 5/s }", "quota: { amount: 9, period: day }"),
    ),
    case(
        "ledger-without-tenant",
        Severity::Error,
        (4, 17),
        "identify: { client: header:x-api-key, tenant: header:x-tenant-id, authenticated: [x-api-key] }\nrules:\n- { id: a, per: [client], quota: { amount: 5, period: day, ledger: async } }",
        ("[x-api-key]", "[x-api-key, x-tenant-id]"),
    ),
];
