//! Compiling costs: numbers in range, headers that can be trusted, expressions that are whole numbers.

use tidegate::attributes::header_attribute;
use tidegate::spi::MAX_AMOUNT;

use super::Compiler;
use crate::by_route::ByRoute;
use crate::cost::{Cost, From, Table};
use crate::expression::Expression;
use crate::read::At;
use crate::written::{self, Amount, CostTable};

impl Compiler<'_> {
    pub(super) fn cost(&mut self, written: &written::Cost) -> Option<Cost> {
        match written {
            written::Cost::Number(at) => self.amount(at).map(Cost::Fixed),
            written::Cost::Text(at) => {
                let from = From::Expression(self.expression(at)?);
                Some(Cost::Table(Box::new(Table { routes: ByRoute::default(), from, default: 1, most: MAX_AMOUNT })))
            }
            written::Cost::Map(table) => self.table(table).map(Box::new).map(Cost::Table),
        }
    }

    fn table(&mut self, written: &CostTable) -> Option<Table> {
        if let (Some(at), Some(_)) = (&written.header, &written.expression) {
            let message = "either a header or an expression tells the cost";
            self.error("cost", &at.span, message).set_help("keep one of the two");
        }
        let routes = self.by_route(&written.routes, Self::amount)?;
        let from = match (&written.header, &written.expression) {
            (Some(at), _) => {
                self.authenticated(at)?;
                From::Header(header_attribute(at).into())
            }
            (None, Some(at)) => From::Expression(self.expression(at)?),
            (None, None) => From::Default,
        };
        let default = written.default.as_ref().map_or(Some(1), |at| self.amount(at))?;
        let most = written.max.as_ref().map_or(Some(MAX_AMOUNT), |at| self.amount(at))?;
        Some(Table { routes, from, default, most })
    }

    /// Who could set the cost of a request could make it free.
    fn authenticated(&mut self, at: &At<String>) -> Option<()> {
        if self.authenticated.contains(at) {
            return Some(());
        }
        let message = format!("a client could set the header `{}` and name its own price", at.value);
        let help = format!("have a proxy set it, and list it: `authenticated: [{}]` below `identify`", at.value);
        self.error("cost-header", &at.span, message).set_help(help);
        None
    }

    fn amount(&mut self, at: &At<Amount>) -> Option<u64> {
        if at.value.0 <= MAX_AMOUNT {
            return Some(at.value.0);
        }
        self.error("cost", &at.span, format!("{} is above the largest cost, {MAX_AMOUNT}", at.value.0));
        None
    }

    fn expression(&mut self, at: &At<String>) -> Option<Expression> {
        match Expression::compile(at) {
            Ok(expression) => Some(expression),
            Err(error) => {
                // The offset counts in the text, which stands in the file as it is unless it is quoted or folded.
                let plain = at.span.len() == at.len();
                let start = at.span.start + if plain { error.offset.min(at.len()) } else { 0 };
                let problem = self.error("expression", &(start..at.span.end.max(start)), error.problem);
                if let Some(help) = error.help {
                    problem.set_help(help);
                }
                None
            }
        }
    }
}
