//! The field `on_failure`: a policy, a static limit, or a table by method or route.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::RouteTableSpec;
use super::route_table::is_route;
use crate::read::Spanned;

/// What happens while the store fails.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(rename = "OnFailure", untagged)]
pub(crate) enum OnFailureSpec {
    /// One policy for all requests.
    Text(Spanned<PolicyName>),
    /// A static limit, or a policy for each method or route.
    Map(PolicyTableSpec),
}

/// A static limit for all requests, or policies by method or route.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
#[schemars(rename = "PolicyTable")]
pub(crate) enum PolicyTableSpec {
    Static(StaticLimitSpec),
    Routes(PolicyRoutesSpec),
}

/// What happens to requests. Further keys are methods (`POST`), paths (`/exports/*`) or both (`POST /rides`), each with its
/// policy; the first that matches applies.
#[derive(Debug, Default, JsonSchema)]
#[schemars(rename = "PolicyRoutes")]
pub(crate) struct PolicyRoutesSpec {
    /// The policy for all other requests. If missing, `closed` for a rule with a ledger and `local` for others.
    pub(crate) default: Option<PolicySpec>,
    /// A static limit that says not which requests it is for: accepted by the reader, so that the error can say what to write.
    #[schemars(skip)]
    pub(crate) stray_static: Option<StaticLimitSpec>,
    #[schemars(flatten, with = "std::collections::BTreeMap<String, PolicySpec>")]
    pub(crate) routes: RouteTableSpec<PolicySpec>,
}

/// The policy for some requests.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(rename = "Policy", untagged)]
pub(crate) enum PolicySpec {
    Text(Spanned<PolicyName>),
    Map(StaticLimitSpec),
}

/// Requests pass up to a limit of this instance, for all subjects together.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Cap")]
pub(crate) struct StaticLimitSpec {
    /// The limit of one instance, for all subjects together: `100/s` is a burst of 100 and 100 per second.
    pub(crate) r#static: Spanned<String>,
}

/// A policy without settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "PolicyWord")]
pub(crate) enum PolicyName {
    /// Each instance decides alone, with the whole limit.
    Local,
    /// Each instance decides alone, with its share of the limit.
    Share,
    /// Requests pass, however many there are.
    Open,
    /// Requests are refused with 503.
    Closed,
    /// Requests pass, and decisions are marked as degraded.
    Degraded,
    /// Without its limit: accepted by the reader, so that the error can say what to write.
    #[schemars(skip)]
    Static,
}

impl OnFailureSpec {
    /// Whether it is an empty table.
    pub(crate) fn is_empty(&self) -> bool {
        let Self::Map(PolicyTableSpec::Routes(table)) = self else { return false };
        table.default.is_none() && table.routes.is_empty()
    }

    /// Whether it has a policy for requests that match no route.
    pub(crate) fn has_default(&self) -> bool {
        let Self::Map(PolicyTableSpec::Routes(table)) = self else { return true };
        table.default.is_some()
    }

    /// Whether it has this policy, for all requests or for some.
    pub(crate) fn contains(&self, name: PolicyName) -> bool {
        let is_name = |spec: &PolicySpec| matches!(spec, PolicySpec::Text(word) if word.value == name);
        match self {
            Self::Text(word) => word.value == name,
            Self::Map(PolicyTableSpec::Static(_)) => false,
            Self::Map(PolicyTableSpec::Routes(table)) => {
                table.default.iter().any(is_name) || table.routes.iter().any(|(_, spec)| is_name(spec))
            }
        }
    }
}

/// What happens while an instance is overloaded. A subject with other requests waiting is refused with 503, except for `open`.
#[derive(Clone, Copy, Debug, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "OnOverload")]
pub(crate) enum OnOverloadSpec {
    /// Requests are decided by `on_failure`, with the whole limit in memory in place of `open` and `degraded`.
    Policy,
    /// Each instance decides alone, with the whole limit, whatever `on_failure` is.
    Local,
    /// Requests pass, however many there are.
    Open,
}

impl<'de> Deserialize<'de> for PolicyTableSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PolicyTableVisitor;
        impl<'de> Visitor<'de> for PolicyTableVisitor {
            type Value = PolicyTableSpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of failure policies")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<PolicyTableSpec, A::Error> {
                let (mut static_limit, mut table) = (None, PolicyRoutesSpec::default());
                while let Some(key) = entries.next_key::<Spanned<String>>()? {
                    match key.as_str() {
                        "static" => static_limit = Some(StaticLimitSpec { r#static: entries.next_value()? }),
                        "default" => table.default = Some(entries.next_value()?),
                        route if is_route(route) => table.routes.push((key, entries.next_value()?)),
                        other => {
                            return Err(A::Error::custom(format!(
                                "`{other}` is not a field of a failure policy; valid are `static` alone, `default`, a \
                                 method such as `POST`, or a path such as `/exports/*`"
                            )));
                        }
                    }
                }
                let is_table = table.default.is_some() || !table.routes.is_empty();
                Ok(match static_limit {
                    Some(limit) if !is_table => PolicyTableSpec::Static(limit),
                    stray_static => PolicyTableSpec::Routes(PolicyRoutesSpec { stray_static, ..table }),
                })
            }
        }
        deserializer.deserialize_map(PolicyTableVisitor)
    }
}
