//! `Cost`: what a request costs under a rule, and what it turned out to cost once the response is there.

use smol_str::SmolStr;
use tidegate::spi::MAX_AMOUNT;

use crate::by_route::ByRoute;
use crate::expression::Expression;
use crate::facts::Facts;
use crate::identity::Source;
use crate::matching::Matching;

/// What a request costs.
#[derive(Clone, Debug, Default)]
pub(crate) enum Cost {
    /// What the caller says.
    #[default]
    Given,
    /// Always the same.
    Fixed(u64),
    /// By what the request is.
    Table(Box<Table>),
}

/// Costs by route, else from a header or an expression, else the default.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) routes: ByRoute<u64>,
    pub(crate) from: From,
    pub(crate) default: u64,
    pub(crate) most: u64,
}

/// What tells the cost when no route does.
#[derive(Clone, Debug)]
pub(crate) enum From {
    /// Nothing: the default stands.
    Default,
    /// A header, by its attribute.
    Header(SmolStr),
    /// An expression.
    Expression(Expression),
}

impl Cost {
    pub(crate) fn of(&self, facts: &Facts<'_, '_>, matching: &Matching) -> u64 {
        match self {
            Self::Given => facts.request.cost(),
            Self::Fixed(cost) => *cost,
            Self::Table(table) => table.of(facts, matching),
        }
    }

    /// The attributes that it reads.
    pub(crate) fn reads(&self, matching: &Matching, names: &mut Vec<SmolStr>) {
        let Self::Table(table) = self else { return };
        table.routes.reads(names);
        match &table.from {
            From::Default => {}
            From::Header(name) => names.push(name.clone()),
            From::Expression(expression) => {
                for name in expression.reads() {
                    match matching.named(name) {
                        Some(identity) => identity.reads(&matching.reading, names),
                        None => match Source::parse(name) {
                            Ok(source) => source.reads(&matching.reading, names),
                            Err(_) => names.push(name.clone()),
                        },
                    }
                }
            }
        }
    }
}

impl Table {
    fn of(&self, facts: &Facts<'_, '_>, matching: &Matching) -> u64 {
        if let Some(cost) = self.routes.of(facts) {
            return cost;
        }
        let told = match &self.from {
            From::Default => None,
            From::Header(name) => facts.request.attribute(name).and_then(whole),
            From::Expression(expression) => {
                // What cannot be computed, or comes out negative, is not free, and not an outage either: it costs the default.
                let cost = expression.evaluate(&|name| matching.value(name, facts)).ok();
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
