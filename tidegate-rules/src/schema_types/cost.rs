//! The field `cost`.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::route_table::is_route;
use super::{Amount, RouteTableSpec};
use crate::read::Spanned;

/// The cost of a request.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(rename = "Cost", untagged)]
pub(crate) enum CostSpec {
    /// Always the same.
    Number(Spanned<Amount>),
    /// An expression in CEL, such as `1 + request.size / 1024`.
    Text(Spanned<String>),
    /// By method or route, from a header, or by an expression with bounds.
    Map(Box<CostTableSpec>),
}

/// A cost with its conditions. Further keys are methods (`POST`), paths (`/exports/*`) or both (`POST /rides`), each with
/// its cost; the first that matches applies.
#[derive(Debug, Default, JsonSchema)]
#[schemars(rename = "CostTable")]
pub(crate) struct CostTableSpec {
    /// A header with the cost; it must be listed in `identify.authenticated`.
    pub(crate) header: Option<Spanned<String>>,
    /// An expression in CEL.
    pub(crate) expression: Option<Spanned<String>>,
    /// A response header with the actual cost; the difference is charged or refunded.
    pub(crate) actual: Option<Spanned<String>>,
    /// The actual cost is the number of tokens that a language model used, as its response says (in `OpenAI`'s form or in
    /// Anthropic's, streamed or not). The gateway reserves the cost, and commits the actual one.
    pub(crate) usage: Option<Spanned<UsageSpec>>,
    /// The cost if nothing else gives one. 1 if missing.
    pub(crate) default: Option<Spanned<Amount>>,
    /// The maximum of a header or an expression.
    pub(crate) max: Option<Spanned<Amount>>,
    #[schemars(flatten, with = "std::collections::BTreeMap<String, Amount>")]
    pub(crate) routes: RouteTableSpec<Spanned<Amount>>,
}

/// Which tokens are the actual cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Usage")]
pub(crate) enum UsageSpec {
    /// Those of the prompt and those of the answer.
    Total,
    /// Those of the prompt.
    Input,
    /// Those of the answer.
    Output,
}

impl<'de> Deserialize<'de> for CostTableSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CostTableVisitor;
        impl<'de> Visitor<'de> for CostTableVisitor {
            type Value = CostTableSpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of costs")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<CostTableSpec, A::Error> {
                let mut table = CostTableSpec::default();
                while let Some(key) = entries.next_key::<Spanned<String>>()? {
                    match key.as_str() {
                        "header" => table.header = Some(entries.next_value()?),
                        "expression" => table.expression = Some(entries.next_value()?),
                        "actual" => table.actual = Some(entries.next_value()?),
                        "usage" => table.usage = Some(entries.next_value()?),
                        "default" => table.default = Some(entries.next_value()?),
                        "max" => table.max = Some(entries.next_value()?),
                        route if is_route(route) => table.routes.push((key, entries.next_value()?)),
                        other => {
                            return Err(A::Error::custom(format!(
                                "`{other}` is not a field of a cost; valid are `header`, `expression`, `actual`, `usage`, \
                                 `default`, `max`, a method such as `POST`, or a path such as `/exports/*`"
                            )));
                        }
                    }
                }
                Ok(table)
            }
        }
        deserializer.deserialize_map(CostTableVisitor)
    }
}
