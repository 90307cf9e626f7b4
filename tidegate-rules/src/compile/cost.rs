//! Compiling costs: numbers in range, headers that can be trusted, expressions that are whole numbers.

use tidegate::attributes::header_attribute;
use tidegate::spi::MAX_AMOUNT;

use super::Compiler;
use crate::cost::{Cost, CostSource, CostTable};
use crate::expression::Expression;
use crate::read::Spanned;
use crate::route_table::RouteTable;
use crate::schema_types::{self, Amount, CostTableSpec};

impl Compiler<'_> {
    pub(super) fn cost(&mut self, written: &schema_types::CostSpec) -> Option<Cost> {
        match written {
            schema_types::CostSpec::Number(at) => self.amount(at).map(Cost::Fixed),
            schema_types::CostSpec::Text(at) => {
                let from = CostSource::Expression(self.expression(at)?);
                Some(Cost::Table(Box::new(CostTable {
                    routes: RouteTable::default(),
                    from,
                    default: 1,
                    most: MAX_AMOUNT,
                })))
            }
            schema_types::CostSpec::Map(table) => self.table(table).map(Box::new).map(Cost::Table),
        }
    }

    fn table(&mut self, written: &CostTableSpec) -> Option<CostTable> {
        if let (Some(at), Some(_)) = (&written.header, &written.expression) {
            let message = "either a header or an expression tells the cost";
            self.error("cost", &at.span, message).set_help("keep one of the two");
        }
        let routes = self.by_route(&written.routes, Self::amount)?;
        let from = match (&written.header, &written.expression) {
            (Some(at), _) => {
                self.authenticated(at)?;
                CostSource::Header(header_attribute(at).into())
            }
            (None, Some(at)) => CostSource::Expression(self.expression(at)?),
            (None, None) => CostSource::Default,
        };
        let default = written.default.as_ref().map_or(Some(1), |at| self.amount(at))?;
        let most = written.max.as_ref().map_or(Some(MAX_AMOUNT), |at| self.amount(at))?;
        Some(CostTable { routes, from, default, most })
    }

    /// Who could set the cost of a request could make it free.
    fn authenticated(&mut self, at: &Spanned<String>) -> Option<()> {
        if self.authenticated.contains(at) {
            return Some(());
        }
        let message = format!("a client could set the header `{}` and name its own price", at.value);
        let help = format!("have a proxy set it, and list it: `authenticated: [{}]` below `identify`", at.value);
        self.error("cost-header", &at.span, message).set_help(help);
        None
    }

    fn amount(&mut self, at: &Spanned<Amount>) -> Option<u64> {
        if at.value.0 <= MAX_AMOUNT {
            return Some(at.value.0);
        }
        self.error("cost", &at.span, format!("{} is above the largest cost, {MAX_AMOUNT}", at.value.0));
        None
    }

    fn expression(&mut self, at: &Spanned<String>) -> Option<Expression> {
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
