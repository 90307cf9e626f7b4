//! Compiling costs: numbers in range, authenticated headers, expressions with an integer result.

use tidegate::Limit;
use tidegate::attributes::header_attribute;
use tidegate::limits::Algorithm;
use tidegate::spi::MAX_AMOUNT;

use super::Compiler;
use crate::cost::{Cost, CostSource, CostTable};
use crate::expression::Expression;
use crate::read::Spanned;
use crate::route_table::RouteTable;
use crate::schema_types::{Amount, CostSpec, CostTableSpec, RuleSpec};

impl Compiler<'_> {
    pub(super) fn cost(&mut self, spec: &CostSpec) -> Option<Cost> {
        match spec {
            CostSpec::Number(field) => self.amount(field).map(Cost::Fixed),
            CostSpec::Text(field) => {
                let from = CostSource::Expression(self.expression(field)?);
                Some(Cost::Table(Box::new(CostTable {
                    routes: RouteTable::default(),
                    from,
                    default: 1,
                    max: MAX_AMOUNT,
                })))
            }
            CostSpec::Map(table) => self.table(table).map(Box::new).map(Cost::Table),
        }
    }

    fn table(&mut self, spec: &CostTableSpec) -> Option<CostTable> {
        if let (Some(field), Some(_)) = (&spec.header, &spec.expression) {
            let message = "the cost has both a header and an expression";
            self.error("cost", &field.span, message).set_help("keep one of the two");
        }
        if let (Some(_), Some(field)) = (&spec.actual, &spec.usage) {
            let message = "the actual cost comes both from a header and from the token usage";
            self.error("cost", &field.span, message).set_help("keep one of `actual` and `usage`");
        }
        let routes = self.route_table(&spec.routes, Self::amount);
        let header = spec.header.as_ref().map(|field| {
            let header = CostSource::Header(header_attribute(field).into());
            self.authenticated(field).map(|()| header)
        });
        let expression = spec.expression.as_ref().map(|field| self.expression(field).map(CostSource::Expression));
        let from = header.or(expression).unwrap_or(Some(CostSource::Default));
        let default = spec.default.as_ref().map_or(Some(1), |field| self.amount(field));
        let max = spec.max.as_ref().map_or(Some(MAX_AMOUNT), |field| self.amount(field));
        Some(CostTable { routes: routes?, from: from?, default: default?, max: max? })
    }

    /// Reports `usage` in a rule with a limit that nothing corrects after the response: the tokens would not be charged there.
    pub(super) fn check_usage<'l>(&mut self, rule: &RuleSpec, limits: impl IntoIterator<Item = &'l Limit>) {
        let Some(CostSpec::Map(table)) = rule.cost.as_ref().map(|cost| &cost.value) else { return };
        let Some(field) = &table.usage else { return };
        let mut algorithms = limits.into_iter().map(Limit::algorithm);
        if let Some(algorithm) = algorithms.find(|name| matches!(name, Algorithm::LeakyBucket | Algorithm::Concurrency))
        {
            let message = format!("the token usage cannot be charged to a `{algorithm}` after the response");
            let help = "use a `token_bucket`, `fixed_window`, `sliding_log`, `sliding_window` or `quota`, and another rule \
                        without `usage` for this limit";
            self.error("cost", &field.span, message).set_help(help);
        }
    }

    /// Reports a cost header that a client could set: it could make its requests free.
    fn authenticated(&mut self, field: &Spanned<String>) -> Option<()> {
        if self.authenticated.contains(field) {
            return Some(());
        }
        let message = format!("a client could set the header `{}` and so choose its own cost", field.value);
        let help = format!("let a proxy set it, and list it: `authenticated: [{}]` below `identify`", field.value);
        self.error("cost-header", &field.span, message).set_help(help);
        None
    }

    fn amount(&mut self, field: &Spanned<Amount>) -> Option<u64> {
        if field.value.0 <= MAX_AMOUNT {
            return Some(field.value.0);
        }
        self.error("cost", &field.span, format!("{} is above the maximum cost of {MAX_AMOUNT}", field.value.0));
        None
    }

    fn expression(&mut self, field: &Spanned<String>) -> Option<Expression> {
        match Expression::compile(field) {
            Ok(expression) => Some(expression),
            Err(error) => {
                // The offset is one in the file only if the text is neither quoted nor folded there.
                let plain = field.span.len() == field.len();
                let start = field.span.start + if plain { error.offset.min(field.len()) } else { 0 };
                let problem = self.error("expression", &(start..field.span.end.max(start)), error.problem);
                if let Some(help) = error.help {
                    problem.set_help(help);
                }
                None
            }
        }
    }
}
