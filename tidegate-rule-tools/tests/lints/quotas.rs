//! Quotas.

use tidegate_rules::Severity;

use super::{Case, case};

pub(super) const QUOTAS: [Case; 6] = [
    case(
        "large-grace",
        Severity::Warning,
        (3, 36),
        "rules:\n- { id: a, per: [tenant], quota: { amount: 5, period: day, grace: 6 }, on_failure: closed }",
        ("grace: 6", "grace: 5"),
    ),
    case(
        "large-grace",
        Severity::Warning,
        (5, 9),
        "plans: { pro: { a: { quota: { amount: 100, period: day, grace: 101% } } } }\ntenants: { acme: pro }\n\
         rules:\n- { id: a, per: [tenant], quota: { amount: 5, period: day, grace: 5% }, on_failure: closed }",
        ("grace: 101%", "grace: 100%"),
    ),
    case(
        "unauthenticated-quota",
        Severity::Note,
        (3, 17),
        "rules:\n- { id: a, per: [ip], quota: { amount: 5, period: day }, anonymous: { forget_after: 1d } }",
        ("[ip]", "[attr:account]"),
    ),
    case(
        "fixed-window-on-security",
        Severity::Warning,
        (3, 68),
        "rules:\n- { id: a, match: { action: login }, per: [attr:account], quota: { amount: 5, period: day }, on_failure: share, security: true }",
        ("quota: { amount: 5, period: day }", "sliding_log: { limit: 5, window: 1d }"),
    ),
    case(
        "plan-of-another-shape",
        Severity::Note,
        (2, 22),
        "plans: { pro: { a: { quota: { amount: 5, period: week, timezone: Asia/Tokyo } } } }\ntenants: { acme: pro }\n\
         rules:\n- { id: a, per: [tenant], quota: { amount: 5, period: day }, on_failure: closed }",
        ("period: week", "period: day"),
    ),
    case(
        "cost-above-limit",
        Severity::Warning,
        (3, 33),
        "rules:\n- { id: a, per: [tenant], cost: 12, quota: { amount: 10, grace: 1, period: day }, on_failure: closed }",
        ("grace: 1,", "grace: 2,"),
    ),
];
