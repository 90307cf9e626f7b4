//! Failure policies as they are written: a word, a cap, or a table by method or route.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::ByRoute;
use super::by_route::is_route;
use crate::read::At;

/// What happens while the store fails.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(rename = "OnFailure", untagged)]
pub(crate) enum OnFailure {
    /// The same to all requests.
    Text(At<PolicyWord>),
    /// A cap, or a policy for each method or route.
    Map(PolicyTable),
}

/// A cap for all requests, or policies by method or route.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum PolicyTable {
    Cap(Cap),
    Routes(PolicyRoutes),
}

/// What happens to requests. Further keys are methods (`POST`), paths (`/exports/*`) or both (`POST /rides`), each with its
/// policy; the first that fits counts.
#[derive(Debug, Default, JsonSchema)]
pub(crate) struct PolicyRoutes {
    /// What happens to all others. `open` if left out.
    pub(crate) default: Option<Policy>,
    #[schemars(flatten, with = "std::collections::BTreeMap<String, Policy>")]
    pub(crate) routes: ByRoute<Policy>,
}

/// What happens to some requests.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(rename = "Policy", untagged)]
pub(crate) enum Policy {
    Text(At<PolicyWord>),
    Map(Cap),
}

/// They pass until this instance has let so many pass, whoever asks.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cap {
    /// How many one instance lets pass, of everybody together: `100/s` is a hundred at once and a hundred a second.
    pub(crate) r#static: At<String>,
}

/// A policy that a word is enough for.
#[derive(Clone, Copy, Debug, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PolicyWord {
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

impl OnFailure {
    /// Whether it is a table that says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        let Self::Map(PolicyTable::Routes(table)) = self else { return false };
        table.default.is_none() && table.routes.is_empty()
    }
}

impl<'de> Deserialize<'de> for PolicyTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = PolicyTable;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of failure policies")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<PolicyTable, A::Error> {
                let (mut cap, mut table) = (None, PolicyRoutes::default());
                while let Some(key) = entries.next_key::<At<String>>()? {
                    match key.as_str() {
                        "static" => cap = Some(Cap { r#static: entries.next_value()? }),
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
                    Some(cap) => Ok(PolicyTable::Cap(cap)),
                    None => Ok(PolicyTable::Routes(table)),
                }
            }
        }
        deserializer.deserialize_map(Table)
    }
}
