//! `Cost`: how many units a request costs under a rule.

use std::slice;

use smol_str::SmolStr;
use tidegate::spi::MAX_AMOUNT;

use crate::expression::Expression;
use crate::identity::Source;
use crate::request_matcher::RequestMatcher;
use crate::request_view::RequestView;
use crate::route_table::RouteTable;

/// How the cost of a request is found.
#[derive(Clone, Debug, Default)]
pub enum Cost {
    /// The cost that the caller gives.
    #[default]
    Given,
    /// Always the same.
    Fixed(u64),
    /// Depends on the request.
    Table(Box<CostTable>),
}

/// Costs by route, else from a header or an expression, else the default.
#[derive(Clone, Debug)]
pub struct CostTable {
    pub routes: RouteTable<u64>,
    pub from: CostSource,
    pub default: u64,
    pub max: u64,
}

/// Where the cost comes from if no route matches.
#[derive(Clone, Debug)]
pub enum CostSource {
    /// The default.
    Default,
    /// A header, by its attribute name.
    Header(SmolStr),
    /// A CEL expression.
    Expression(Expression),
}

impl Cost {
    pub fn units(&self, view: &RequestView<'_, '_>, matcher: &RequestMatcher) -> u64 {
        match self {
            Self::Given => view.request.cost(),
            Self::Fixed(cost) => *cost,
            Self::Table(table) => table.units(view, matcher),
        }
    }

    /// The names that the expression reads, if there is one.
    pub(crate) fn expression_reads(&self) -> &[SmolStr] {
        match self {
            Self::Table(table) if matches!(table.from, CostSource::Expression(_)) => table.from.names(),
            _ => &[],
        }
    }

    /// Appends the attributes that the cost reads.
    pub(crate) fn reads(&self, matcher: &RequestMatcher, names: &mut Vec<SmolStr>) {
        let Self::Table(table) = self else { return };
        table.routes.reads(names);
        for name in table.from.names() {
            match matcher.named(name) {
                Some(identity) => identity.reads(&matcher.identity_config, names),
                None => match Source::parse(name) {
                    Ok(source) => source.reads(&matcher.identity_config, names),
                    Err(_) => names.push(name.clone()),
                },
            }
        }
    }
}

impl CostSource {
    /// The header, or the names that the expression reads.
    pub fn names(&self) -> &[SmolStr] {
        match self {
            Self::Default => &[],
            Self::Header(name) => slice::from_ref(name),
            Self::Expression(expression) => expression.reads(),
        }
    }
}

impl CostTable {
    fn units(&self, view: &RequestView<'_, '_>, matcher: &RequestMatcher) -> u64 {
        if let Some(cost) = self.routes.find(view) {
            return cost;
        }
        let computed = match &self.from {
            CostSource::Default => None,
            CostSource::Header(name) => view.attribute(name).and_then(parse_cost),
            CostSource::Expression(expression) => {
                // A cost that fails to compute or is negative must neither be free nor an outage: the default applies.
                let cost = expression.evaluate(&|name| matcher.value(name, view)).ok();
                cost.and_then(|cost| u64::try_from(cost).ok())
            }
        };
        computed.map_or(self.default, |cost| cost.min(self.max))
    }
}

/// The cost in a header: digits only. Saturates at `MAX_AMOUNT`.
pub(crate) fn parse_cost(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(MAX_AMOUNT).min(MAX_AMOUNT))
}
