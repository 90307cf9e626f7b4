//! Limits that a flood could pass while the store fails or an instance is overloaded.

use tidegate_rules::Severity;

use super::{Case, case};

pub(super) const FAILURE: [Case; 11] = [
    case(
        "static-for-concurrency",
        Severity::Note,
        (3, 39),
        "rules:\n- { id: a, per: [user], on_failure: { static: 10/s }, concurrency: { max: 2 } }",
        ("{ static: 10/s }", "share"),
    ),
    case(
        "fails-open",
        Severity::Warning,
        (3, 33),
        "rules:\n- { id: a, per: ip, on_failure: open, sliding_log: { limit: 5, window: 10m } }",
        ("open", "share"),
    ),
    case(
        "fails-open",
        Severity::Warning,
        (3, 35),
        "rules:\n- { id: a, per: ip, on_failure: { GET: open, POST: closed }, sliding_log: { limit: 5, window: 10m } }",
        ("GET: open", "GET: { static: 9/s }"),
    ),
    case(
        "fails-open",
        Severity::Note,
        (3, 33),
        "rules:\n- { id: a, per: ip, on_failure: degraded, sliding_log: { limit: 5, window: 10m } }",
        ("on_failure: degraded, ", ""),
    ),
    case(
        "fails-open",
        Severity::Warning,
        (3, 34),
        "rules:\n- { id: a, per: ip, on_overload: open, sliding_log: { limit: 5, window: 10m } }",
        ("open", "policy"),
    ),
    case(
        "local-changed",
        Severity::Warning,
        (3, 33),
        "rules:\n- { id: a, per: ip, on_failure: local, sliding_log: { limit: 5, window: 10m } }",
        ("local", "share"),
    ),
    case(
        "local-changed",
        Severity::Warning,
        (3, 35),
        "rules:\n- { id: a, per: ip, on_failure: { POST: local, default: closed }, sliding_log: { limit: 5, window: 10m } }",
        ("local", "share"),
    ),
    case(
        "local-changed",
        Severity::Warning,
        (3, 35),
        "rules:\n- { id: a, per: ip, on_failure: { POST: closed, default: local }, sliding_log: { limit: 5, window: 10m } }",
        (", default: local", ""),
    ),
    case(
        "local-for-everybody",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: [], sliding_log: { limit: 5, window: 10m } }",
        ("per: []", "per: [], on_failure: share"),
    ),
    case(
        "local-for-everybody",
        Severity::Warning,
        (3, 35),
        "rules:\n- { id: a, per: [], on_failure: { POST: closed }, sliding_log: { limit: 5, window: 10m } }",
        ("POST: closed", "POST: closed, default: share"),
    ),
    case(
        "local-for-everybody",
        Severity::Warning,
        (3, 9),
        "rules:\n- { id: a, per: [], sliding_log: { limit: 5, window: 10m } }",
        ("per: []", "mode: shadow, per: []"),
    ),
];
