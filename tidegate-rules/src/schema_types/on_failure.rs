//! Failure policies as they are written: a word, a cap, or a table by method or route.

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
    /// The same to all requests.
    Text(Spanned<PolicyName>),
    /// A cap, or a policy for each method or route.
    Map(PolicyTableSpec),
}

/// A cap for all requests, or policies by method or route.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
#[schemars(rename = "PolicyTable")]
pub(crate) enum PolicyTableSpec {
    Cap(StaticCapSpec),
    Routes(PolicyRoutesSpec),
}

/// What happens to requests. Further keys are methods (`POST`), paths (`/exports/*`) or both (`POST /rides`), each with its
/// policy; the first that fits counts.
#[derive(Debug, Default, JsonSchema)]
#[schemars(rename = "PolicyRoutes")]
pub(crate) struct PolicyRoutesSpec {
    /// What happens to all others. `open` if left out.
    pub(crate) default: Option<PolicySpec>,
    #[schemars(flatten, with = "std::collections::BTreeMap<String, PolicySpec>")]
    pub(crate) routes: RouteTableSpec<PolicySpec>,
}

/// What happens to some requests.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(rename = "Policy", untagged)]
pub(crate) enum PolicySpec {
    Text(Spanned<PolicyName>),
    Map(StaticCapSpec),
}

/// They pass until this instance has let so many pass, whoever asks.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Cap")]
pub(crate) struct StaticCapSpec {
    /// How many one instance lets pass, of everybody together: `100/s` is a hundred at once and a hundred a second.
    pub(crate) r#static: Spanned<String>,
}

/// A policy that a word is enough for.
#[derive(Clone, Copy, Debug, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "PolicyWord")]
pub(crate) enum PolicyName {
    /// They pass.
    Open,
    /// They are refused with 503.
    Closed,
    /// Each instance judges for itself, at its share of the limit.
    Local,
    /// They pass, and the application is told.
    Degraded,
    /// Lacks its cap: read, so that the problem can say what to write.
    #[schemars(skip)]
    Static,
}

impl OnFailureSpec {
    /// Whether it is a table that says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        let Self::Map(PolicyTableSpec::Routes(table)) = self else { return false };
        table.default.is_none() && table.routes.is_empty()
    }
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
                let (mut cap, mut table) = (None, PolicyRoutesSpec::default());
                while let Some(key) = entries.next_key::<Spanned<String>>()? {
                    match key.as_str() {
                        "static" => cap = Some(StaticCapSpec { r#static: entries.next_value()? }),
                        "default" => table.default = Some(entries.next_value()?),
                        route if is_route(route) => table.routes.push((key, entries.next_value()?)),
                        other => {
                            return Err(A::Error::custom(format!(
                                "`{other}` is no field of a failure policy; possible are `static` alone, `default`, a \
                                 method such as `POST`, or a path such as `/exports/*`"
                            )));
                        }
                    }
                }
                let is_table = table.default.is_some() || !table.routes.is_empty();
                match cap {
                    Some(_) if is_table => Err(A::Error::custom(
                        "`static` caps all requests if it stands alone; beside others write which ones it caps, such as \
                         `default: { static: 100/s }`",
                    )),
                    Some(cap) => Ok(PolicyTableSpec::Cap(cap)),
                    None => Ok(PolicyTableSpec::Routes(table)),
                }
            }
        }
        deserializer.deserialize_map(PolicyTableVisitor)
    }
}
