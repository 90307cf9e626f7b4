//! Rules that never take effect.

use tidegate_rules::Severity;

use super::{Case, case};

pub(super) const REACHABILITY: [Case; 16] = [
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
        "never-applies",
        Severity::Error,
        (3, 54),
        "rules:\n- { id: a, match: { action: x }, front_ends: [check, gateway], per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        ("[check, gateway]", "[check, tower]"),
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
        "colon-segment",
        Severity::Note,
        (3, 21),
        "rules:\n- { id: a, match: { path: '/users/:id/cars/:car_id' }, per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        (":id/cars/:car_id", "{id}/cars/:"),
    ),
    case(
        "colon-segment",
        Severity::Note,
        (2, 13),
        "exempt: [ { path: ['/a:batch', '/:health'] } ]\n\
         rules:\n- { id: a, per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        ("/:health", "/health"),
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
        "rules:\n- { id: a, per: ip, fixed_window: { limit: 20, window: month } }\n\
         - { id: b, per: ip, fixed_window: { limit: 10, window: month } }",
        ("limit: 10, window: month", "limit: 10, window: 31d"),
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
