//! What to do about a gap: constant sentences, which never repeat a value of the file.

use tidegate::attributes;
use tidegate_rules::internals::Source;

use super::GapEffect;

/// What to write, by the effect and what is missing.
pub(super) fn help(effect: GapEffect, missing: Option<&Source>) -> &'static str {
    match missing {
        _ if effect == GapEffect::ProxyAddress => {
            "list the networks of the proxies in front: `trusted_proxies` below `identify`"
        }
        _ if effect == GapEffect::AppliesAnyway => {
            "name the front end, too, or match what only the others have, such as an action"
        }
        _ if effect == GapEffect::UnverifiedClaim => {
            "let a proxy in front verify the token, and list its network: `trusted_proxies` below `identify`; a service behind the \
             gateway verifies too late"
        }
        _ if effect == GapEffect::HeldForLease => {
            "limit concurrency at the gateway or the tower layer, or let workers call `/v1/leases`; here at most `max` requests pass \
             in each lease"
        }
        _ if effect == GapEffect::UnknownUsage => {
            "limit the route at the gateway, or let the caller reserve and commit with `/v1/quotas` or `Limiter::reserve`"
        }
        Some(Source::Body(_)) => {
            "limit the route at the gateway, the tower layer or the check API, which have the body; or let the proxy send the \
             value as a header"
        }
        Some(Source::Action) => {
            "count by `path`; only the check API, the tower layer, Envoy's service and the library have actions"
        }
        _ if effect == GapEffect::AssumedSize => {
            "limit the route at the gateway or the tower layer, which know the length of the body"
        }
        Some(Source::Attribute(name)) if attributes::header_name(name).is_some() => "read another header",
        _ => {
            "let the proxy in front set a header, list it below `authenticated`, and read `header:NAME`; only the check API, the \
             tower layer, Envoy's service and the library have attributes of the application"
        }
    }
}
