//! `Cost`: what a request costs under a rule, and what it turned out to cost once the response is there.

use smol_str::SmolStr;
use tidegate::spi::MAX_AMOUNT;

use crate::expression::Expression;
use crate::identity::Source;
use crate::request_matcher::RequestMatcher;
use crate::request_view::RequestView;
use crate::route_table::RouteTable;

/// What a request costs.
#[derive(Clone, Debug, Default)]
pub(crate) enum Cost {
    /// What the caller says.
    #[default]
    Given,
    /// Always the same.
    Fixed(u64),
    /// By what the request is.
    Table(Box<CostTable>),
}

/// Costs by route, else from a header or an expression, else the default.
#[derive(Clone, Debug)]
pub(crate) struct CostTable {
    pub(crate) routes: RouteTable<u64>,
    pub(crate) from: CostSource,
    pub(crate) default: u64,
    pub(crate) most: u64,
}

/// What tells the cost when no route does.
#[derive(Clone, Debug)]
pub(crate) enum CostSource {
    /// Nothing: the default stands.
    Default,
    /// A header, by its attribute.
    Header(SmolStr),
    /// An expression.
    Expression(Expression),
}

impl Cost {
    pub(crate) fn of(&self, view: &RequestView<'_, '_>, matcher: &RequestMatcher) -> u64 {
        match self {
            Self::Given => view.request.cost(),
            Self::Fixed(cost) => *cost,
            Self::Table(table) => table.of(view, matcher),
        }
    }

    /// The attributes that it reads.
    pub(crate) fn reads(&self, matcher: &RequestMatcher, names: &mut Vec<SmolStr>) {
        let Self::Table(table) = self else { return };
        table.routes.reads(names);
        match &table.from {
            CostSource::Default => {}
            CostSource::Header(name) => names.push(name.clone()),
            CostSource::Expression(expression) => {
                for name in expression.reads() {
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
    }
}

impl CostTable {
    fn of(&self, view: &RequestView<'_, '_>, matcher: &RequestMatcher) -> u64 {
        if let Some(cost) = self.routes.of(view) {
            return cost;
        }
        let told = match &self.from {
            CostSource::Default => None,
            CostSource::Header(name) => view.request.attribute(name).and_then(whole),
            CostSource::Expression(expression) => {
                // What cannot be computed, or comes out negative, is not free, and not an outage either: it costs the default.
                let cost = expression.evaluate(&|name| matcher.value(name, view)).ok();
                cost.and_then(|cost| u64::try_from(cost).ok())
            }
        };
        told.map_or(self.default, |cost| cost.min(self.most))
    }
}

/// A cost as a header tells it: digits and nothing else.
pub(crate) fn whole(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(MAX_AMOUNT).min(MAX_AMOUNT))
}
