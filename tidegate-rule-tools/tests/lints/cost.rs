//! Forgeable costs, and costs that are settled too late.

use tidegate_rules::Severity;

use super::{Case, case};

pub(super) const COST: [Case; 16] = [
    case(
        "forgeable-cost",
        Severity::Warning,
        (3, 27),
        "rules:\n- { id: a, per: ip, cost: 'int(request.query.rows)', token_bucket: { capacity: 9, refill: 1/s } }",
        ("rules:", "identify: { authenticated: [query:rows] }\nrules:"),
    ),
    case(
        "forgeable-cost",
        Severity::Warning,
        (3, 29),
        "rules:\n- { id: a, per: ip, cost: { expression: 'request.headers[\"X-Kind\"] == \"bulk\" ? 5 : 1', max: 5 }, \
         token_bucket: { capacity: 9, refill: 1/s } }",
        ("request.headers[\"X-Kind\"]", "attr.kind"),
    ),
    case(
        "forgeable-cost",
        Severity::Warning,
        (3, 27),
        "rules:\n- { id: a, per: ip, cost: '1 + request.size / 1024 + size(request.cookies.cart)', \
         token_bucket: { capacity: 9k, refill: 9/s } }",
        (" + size(request.cookies.cart)", " + size(request.path)"),
    ),
    case(
        "forgeable-cost",
        Severity::Warning,
        (4, 27),
        "identify: { user: [header:x-user, ip] }\n\
         rules:\n- { id: a, per: ip, cost: 'user == \"admin\" ? 0 : 1', token_bucket: { capacity: 9, refill: 1/s } }",
        (" }", ", authenticated: x-user }"),
    ),
    case(
        "unknown-size",
        Severity::Note,
        (3, 27),
        "rules:\n- { id: a, per: ip, cost: 1 + request.size / 1024, token_bucket: { capacity: 2048, refill: 1/s } }",
        ("capacity: 2048", "capacity: 2049"),
    ),
    case(
        "unknown-size",
        Severity::Note,
        (4, 29),
        "unknown_size: 10k\n\
         rules:\n- { id: a, per: ip, cost: { expression: request.size, max: 10_000 }, token_bucket: { capacity: 9k, refill: 9/s } }",
        ("unknown_size: 10k", "unknown_size: 9k"),
    ),
    case(
        "free-until-settled",
        Severity::Warning,
        (3, 29),
        "rules:\n- { id: a, per: ip, cost: { default: 0, actual: x-used }, token_bucket: { capacity: 9, refill: 1/s } }",
        ("default: 0", "default: 1"),
    ),
    case(
        "free-until-settled",
        Severity::Warning,
        (3, 29),
        "rules:\n- { id: a, per: ip, cost: { GET: 0, actual: x-used }, token_bucket: { capacity: 9, refill: 1/s } }",
        (", actual: x-used", ""),
    ),
    case(
        "free-until-settled",
        Severity::Warning,
        (3, 29),
        "rules:\n- { id: a, per: ip, cost: { expression: 'int(attr.rows)', default: 0, actual: x-used }, \
         token_bucket: { capacity: 9, refill: 1/s } }",
        ("default: 0, ", ""),
    ),
    case(
        "free-until-settled",
        Severity::Warning,
        (3, 29),
        "rules:\n- { id: a, per: ip, cost: { expression: 'int(attr.rows)', max: 0, actual: x-used }, \
         token_bucket: { capacity: 9, refill: 1/s } }",
        ("max: 0", "max: 1"),
    ),
    case(
        "free-until-settled",
        Severity::Warning,
        (3, 29),
        "rules:\n- { id: a, per: ip, cost: { expression: 'int(request.body.max_tokens)', default: 0, usage: total }, \
         token_bucket: { capacity: 9, refill: 1/s } }",
        ("default: 0, ", ""),
    ),
    case(
        "shared-usage",
        Severity::Note,
        (3, 28),
        "rules:\n- { id: a, match: {}, per: [], cost: { usage: total, expression: request.size }, on_failure: share, \
         token_bucket: { capacity: 9, refill: 1/s } }",
        ("per: []", "per: [tenant]"),
    ),
    case(
        "shared-usage",
        Severity::Note,
        (3, 28),
        "rules:\n- { id: a, match: {}, per: [], cost: { usage: total, expression: request.size }, on_failure: share, \
         token_bucket: { capacity: 9, refill: 1/s } }\n\
         - { id: b, match: {}, per: ip, fixed_window: { limit: 9, window: 1s } }",
        ("fixed_window: { limit: 9, window: 1s }", "concurrency: { max: 10 }"),
    ),
    case(
        "usage-without-estimate",
        Severity::Warning,
        (3, 29),
        "rules:\n- { id: a, per: ip, cost: { usage: total, default: 5 }, token_bucket: { capacity: 9, refill: 1/s } }",
        ("default: 5", "expression: 'int(request.body.max_tokens, 5)'"),
    ),
    case(
        "forgeable-cost",
        Severity::Warning,
        (3, 29),
        "rules:\n- { id: a, per: ip, cost: { expression: 'int(request.body.rows, 5)', actual: x-rows }, \
         token_bucket: { capacity: 9, refill: 1/s } }",
        ("actual: x-rows", "usage: output"),
    ),
    case(
        "colon-segment",
        Severity::Note,
        (3, 29),
        "rules:\n- { id: a, per: ip, cost: { '/users/:id': 3, default: 1 }, token_bucket: { capacity: 9, refill: 1/s } }",
        (":id", "{id}"),
    ),
];
