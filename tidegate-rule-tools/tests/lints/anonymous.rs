//! Anonymous subjects with long windows.

use tidegate_rules::Severity;

use super::{Case, case};

pub(super) const ANONYMOUS: [Case; 4] = [
    case(
        "strangers-remembered",
        Severity::Warning,
        (3, 17),
        "rules:\n- { id: a, per: ip, fixed_window: { limit: 5, window: 1d } }",
        ("1d", "1h"),
    ),
    case(
        "strangers-remembered",
        Severity::Warning,
        (3, 17),
        "rules:\n- { id: a, per: [client], token_bucket: { capacity: 5, refill: 1/h } }",
        ("per:", "anonymous: { forget_after: 10m }, per:"),
    ),
    case(
        "strangers-remembered",
        Severity::Warning,
        (4, 17),
        "identify: { device: [header:x-device, ip], authenticated: x-device }\nrules:\n\
         - { id: a, per: [device], sliding_log: { limit: 5, window: 2h } }",
        (", ip]", "]"),
    ),
    case(
        "strangers-remembered",
        Severity::Warning,
        (4, 17),
        "plans: { pro: { a: { fixed_window: { limit: 5, window: month } } } }\nrules:\n\
         - { id: a, per: [ip, path], fixed_window: { limit: 5, window: 1h } }",
        ("[ip, path]", "[ip, user]"),
    ),
];
