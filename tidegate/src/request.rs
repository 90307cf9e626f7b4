//! `Request`: who asks, for what, at what cost. There is no HTTP in it; doors translate.

use std::fmt;

/// What is asked of a [`Limiter`](crate::Limiter).
///
/// ```
/// use tidegate::Request;
///
/// let request = Request::new("export").attribute("tenant", "acme").attribute("user", "42").cost(3);
/// assert_eq!(request.value("user"), Some("42"));
/// ```
#[derive(Clone)]
pub struct Request<'a> {
    action: &'a str,
    cost: u64,
    /// The first few attributes, as many as `known` says, without an allocation.
    first: [(&'a str, &'a str); 2],
    known: usize,
    further: Vec<(&'a str, &'a str)>,
}

impl<'a> Request<'a> {
    /// A request for `action` of cost 1. Without a name for what is done, the action is `""`.
    pub const fn new(action: &'a str) -> Self {
        Self { action, cost: 1, first: [("", ""); 2], known: 0, further: Vec::new() }
    }

    /// Adds an attribute that rules may count by. A name given twice keeps its first value.
    #[inline]
    pub fn attribute(mut self, name: &'a str, value: &'a str) -> Self {
        match self.first.get_mut(self.known) {
            Some(free) => {
                *free = (name, value);
                self.known += 1;
            }
            None => self.further.push((name, value)),
        }
        self
    }

    /// Sets the cost, for rules that have none of their own. A cost of 0 is a check that consumes nothing.
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// What is asked for.
    pub const fn action(&self) -> &'a str {
        self.action
    }

    /// The value of an attribute.
    #[inline(always)]
    pub fn value(&self, name: &str) -> Option<&'a str> {
        let known = self.first[..self.known].iter().chain(&self.further);
        known.into_iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// What it costs.
    pub const fn units(&self) -> u64 {
        self.cost
    }
}

/// Shows the names only: values are keys, addresses and accounts, which do not belong into logs.
impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.first[..self.known].iter().chain(&self.further).map(|(name, _)| name);
        write!(f, "Request({:?}, cost {}) ", self.action, self.cost)?;
        f.debug_set().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_out_of_logs() {
        let request = Request::new("login").attribute("account", "ann@example.com").cost(2);
        assert_eq!(format!("{request:?}"), r#"Request("login", cost 2) {"account"}"#);
    }
}
