//! Mistakes in the amounts of limits.

use tidegate_rules::Severity;

use super::{Case, case};

pub(super) const LIMITS: [Case; 16] = [
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
        "long-lease",
        Severity::Note,
        (3, 36),
        "rules:\n- { id: a, per: ip, concurrency: { max: 3, lease: 301s } }",
        ("301s", "5m"),
    ),
    case(
        "many-slots",
        Severity::Warning,
        (4, 9),
        "plans: { large: { a: { concurrency: { max: 1001 } } } }\nrules:\n- { id: a, per: ip, concurrency: { max: 3 } }",
        ("1001", "1000"),
    ),
    case(
        "slots-for-one",
        Severity::Note,
        (3, 28),
        "rules:\n- { id: a, match: {}, per: [], on_failure: share, concurrency: { max: 100 } }\n\
         - { id: b, match: {}, per: ip, fixed_window: { limit: 9, window: 1s } }",
        ("fixed_window: { limit: 9, window: 1s }", "concurrency: { max: 10 }"),
    ),
    case(
        "zero-limit",
        Severity::Note,
        (3, 36),
        "rules:\n- { id: a, per: ip, concurrency: { max: 0 } }",
        ("max: 0", "max: 1"),
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
        "plan-of-another-shape",
        Severity::Note,
        (2, 22),
        "plans: { pro: { a: { sliding_log: { limit: 9, window: 1m } } } }\n\
         rules:\n- { id: a, per: ip, fixed_window: { limit: 5, window: 1m } }",
        ("sliding_log", "fixed_window"),
    ),
    case(
        "plan-of-another-shape",
        Severity::Note,
        (2, 22),
        "plans: { pro: { a: { fixed_window: { limit: 9, window: 1h } } } }\n\
         rules:\n- { id: a, per: ip, fixed_window: { limit: 5, window: 60s } }",
        ("1h", "1m"),
    ),
    case(
        "plan-of-another-shape",
        Severity::Note,
        (2, 22),
        "plans: { pro: { a: { sliding_window: { limit: 9, window: 1m, slices: 12 } } } }\n\
         rules:\n- { id: a, per: ip, sliding_window: { limit: 5, window: 1m } }",
        ("slices: 12", "slices: 6"),
    ),
    case(
        "plan-of-another-shape",
        Severity::Note,
        (2, 22),
        "plans: { pro: { a: { concurrency: { max: 9 } } } }\n\
         rules:\n- { id: a, per: ip, on_failure: share, concurrency: { max: 3, lease: 2m } }",
        ("max: 9", "max: 9, lease: 2m"),
    ),
    case(
        "unused-identity",
        Severity::Note,
        (2, 13),
        "identify: { device: attr:device }\nrules:\n- { id: a, per: ip, token_bucket: { capacity: 9, refill: 1/s } }",
        ("per: ip", "per: device"),
    ),
];
