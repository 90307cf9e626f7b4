//! Forgeable or missing identities.

use tidegate_rules::Severity;

use super::{Case, case};

pub(super) const IDENTITY: [Case; 30] = [
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
        "unauthenticated-header",
        Severity::Warning,
        (3, 18),
        "rules:\n- { id: a, per: [host, path], token_bucket: { capacity: 9, refill: 1/s } }",
        ("path", "ip"),
    ),
    case(
        "unauthenticated-header",
        Severity::Warning,
        (3, 17),
        "rules:\n- { id: a, per: host, token_bucket: { capacity: 9, refill: 1/s } }",
        ("per:", "match: { host: [a.example, b.example] }, per:"),
    ),
    case(
        "unauthenticated-header",
        Severity::Warning,
        (2, 35),
        "identify: { site: [header:x-site, host], authenticated: [x-site] }\n\
         rules:\n- { id: a, per: site, token_bucket: { capacity: 9, refill: 1/s } }",
        ("[x-site]", "[x-site, Host]"),
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
    case(
        "exempt-by-header",
        Severity::Warning,
        (2, 13),
        "exempt: [ { host: internal.example } ]",
        ("example }", "example, path: /healthz }"),
    ),
    case(
        "exempt-by-tenant",
        Severity::Error,
        (3, 13),
        "identify: { tenant: header:x-tenant }\nexempt: [ { tenant: bigco } ]",
        ("x-tenant }", "x-tenant, authenticated: x-tenant }"),
    ),
    case(
        "exempt-by-tenant",
        Severity::Error,
        (3, 13),
        "identify: { tenant: host }\nexempt: [ { tenant: big.example, header: { x-a: 1 } } ]",
        ("host }", "host, authenticated: Host }"),
    ),
    case(
        "exempt-by-tenant",
        Severity::Error,
        (3, 13),
        "identify: { tenant: [header:x-tenant, 'query:org'], authenticated: x-tenant }\nexempt: [ { tenant: bigco } ]",
        ("bigco", "bigco, ip: 10.0.0.0/8"),
    ),
    case(
        "exempt-by-tenant",
        Severity::Error,
        (3, 13),
        "identify: { plan: 'body:plan' }\nexempt: [ { plan: pro } ]\ntenants: { acme: pro }\nplans: { pro: {} }",
        ("body:plan", "attr:tier"),
    ),
    case(
        "exempt-by-tenant",
        Severity::Error,
        (3, 13),
        "identify: { tenant: header:x-tenant }\nexempt: [ { plan: pro } ]\ntenants: { acme: pro }\nplans: { pro: {} }",
        ("x-tenant }", "x-tenant, authenticated: x-tenant }"),
    ),
    case(
        "exempt-by-tenant",
        Severity::Error,
        (2, 13),
        "exempt: [ { plan: free } ]\nplans: { free: {} }\ndefault_plan: free",
        ("default_plan: free", ""),
    ),
    case(
        "exempt-from-protection",
        Severity::Warning,
        (2, 13),
        "exempt: [ { tenant: bigco } ]\nrules:\n\
         - { id: login, match: { path: /login }, per: attr:account, security: true, on_failure: share, sliding_log: { limit: 5, window: 10m } }\n\
         - { id: all, per: [], on_failure: share, token_bucket: { capacity: 9, refill: 1/s } }\n\
         - { id: api, match: { path: '/api/*' }, per: tenant, token_bucket: { capacity: 9, refill: 1/s } }",
        ("bigco", "bigco, rules: [api]"),
    ),
    case(
        "repeated-values",
        Severity::Warning,
        (2, 56),
        "identify: { user: attr:user, repeated: { header:x-key: first } }\n\
         rules:\n- { id: a, per: [header:x-key, user], token_bucket: { capacity: 9, refill: 1/s } }",
        ("first", "reject"),
    ),
    case("repeated-values", Severity::Warning, (2, 23), "identify: { repeated: last }", ("last", "reject")),
    case("unused-identity", Severity::Warning, (2, 13), "identify: { tennant: attr:org }", ("tennant", "tenant")),
    case(
        "credential-spellings",
        Severity::Warning,
        (2, 21),
        "identify: { client: header:x-forwarded-authorization, authenticated: x-forwarded-authorization }\nrules:\n- { id: a, per: client, sliding_log: { limit: 5, window: 10m } }",
        ("authorization,", "authorization | credentials,"),
    ),
    case(
        "credential-spellings",
        Severity::Warning,
        (4, 18),
        "identify: { authenticated: cookie }\nrules:\n- { id: a, per: [header:cookie], sliding_log: { limit: 5, window: 10m } }",
        ("header:cookie", "cookie:session"),
    ),
    case(
        "unauthenticated-tenant",
        Severity::Warning,
        (2, 21),
        "identify: { tenant: host }",
        ("}", ", authenticated: host }"),
    ),
];
