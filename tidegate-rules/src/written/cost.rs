//! Costs as they are written.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::by_route::is_route;
use super::{Amount, ByRoute};
use crate::read::At;

/// What a request costs.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(rename = "Cost", untagged)]
pub(crate) enum Cost {
    /// Always the same.
    Number(At<Amount>),
    /// An expression in CEL, such as `1 + request.size / 1024`.
    Text(At<String>),
    /// By method or route, from a header, or by an expression with bounds.
    Map(CostTable),
}

/// A cost with its conditions. Further keys are methods (`POST`), paths (`/exports/*`) or both (`POST /rides`), each with
/// its cost; the first that fits counts.
#[derive(Debug, Default, JsonSchema)]
pub(crate) struct CostTable {
    /// A header that tells the cost; it must be named in `identify.authenticated`.
    pub(crate) header: Option<At<String>>,
    /// An expression in CEL.
    pub(crate) expression: Option<At<String>>,
    /// A header of the response that tells what it really cost; the difference is charged or given back.
    pub(crate) actual: Option<At<String>>,
    /// The cost when nothing else tells it. 1 if left out.
    pub(crate) default: Option<At<Amount>>,
    /// The most that a header or an expression may say.
    pub(crate) max: Option<At<Amount>>,
    #[schemars(flatten, with = "std::collections::BTreeMap<String, Amount>")]
    pub(crate) routes: ByRoute<At<Amount>>,
}

impl<'de> Deserialize<'de> for CostTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = CostTable;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of costs")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<CostTable, A::Error> {
                let mut table = CostTable::default();
                while let Some(key) = entries.next_key::<At<String>>()? {
                    match key.as_str() {
                        "header" => table.header = Some(entries.next_value()?),
                        "expression" => table.expression = Some(entries.next_value()?),
                        "actual" => table.actual = Some(entries.next_value()?),
                        "default" => table.default = Some(entries.next_value()?),
                        "max" => table.max = Some(entries.next_value()?),
                        route if is_route(route) => table.routes.push((key, entries.next_value()?)),
                        other => {
                            return Err(A::Error::custom(format!(
                                "`{other}` is no field of a cost; possible are `header`, `expression`, `actual`, \
                                 `default`, `max`, a method such as `POST`, or a path such as `/exports/*`"
                            )));
                        }
                    }
                }
                Ok(table)
            }
        }
        deserializer.deserialize_map(Table)
    }
}
