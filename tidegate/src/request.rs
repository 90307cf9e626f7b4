//! `Request`: an action, attributes and a cost. It is independent of HTTP; front ends translate.

use std::fmt;

/// A request for a [`Limiter`](crate::Limiter) to check.
///
/// ```
/// use tidegate::Request;
///
/// let request = Request::new("export").with_attribute("tenant", "acme").with_attribute("user", "42").with_cost(3);
/// assert_eq!(request.attribute("user"), Some("42"));
/// ```
#[derive(Clone)]
pub struct Request<'a> {
    action: &'a str,
    cost: u64,
    /// The first attributes, without an allocation; `inline_len` of them are set.
    inline: [(&'a str, &'a str); 2],
    inline_len: usize,
    further: Vec<(&'a str, &'a str)>,
    /// Further values of attributes that came more than once.
    repeats: Vec<(&'a str, &'a str)>,
}

impl<'a> Request<'a> {
    /// A request for `action` with cost 1. The action may be empty.
    pub const fn new(action: &'a str) -> Self {
        Self { action, cost: 1, inline: [("", ""); 2], inline_len: 0, further: Vec::new(), repeats: Vec::new() }
    }

    /// Adds an attribute. The first value of a name counts.
    #[inline]
    pub fn with_attribute(mut self, name: &'a str, value: &'a str) -> Self {
        match self.inline.get_mut(self.inline_len) {
            Some(free) => {
                *free = (name, value);
                self.inline_len += 1;
            }
            None => self.further.push((name, value)),
        }
        self
    }

    /// Sets an attribute, in place of an earlier value.
    pub fn with_replaced_attribute(mut self, name: &'a str, value: &'a str) -> Self {
        let mut attributes = self.inline[..self.inline_len].iter_mut().chain(&mut self.further);
        match attributes.find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => return self.with_attribute(name, value),
        }
        self
    }

    /// Adds a further value of an attribute that came more than once, such as the second line of a header. A rule that reads the
    /// attribute then refuses the request with a [`RequestProblem`](crate::RequestProblem), unless it says which value counts.
    pub fn with_further_value(mut self, name: &'a str, value: &'a str) -> Self {
        self.repeats.push((name, value));
        self
    }

    /// Sets the cost for rules without a cost of their own. A cost of 0 consumes nothing.
    pub const fn with_cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// The action.
    pub const fn action(&self) -> &'a str {
        self.action
    }

    /// The value of an attribute.
    #[inline(always)]
    pub fn attribute(&self, name: &str) -> Option<&'a str> {
        let attributes = self.inline[..self.inline_len].iter().chain(&self.further);
        attributes.into_iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The further values of an attribute, in their order, without the first.
    pub fn further_values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.repeats.iter().filter(move |(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The names of the attributes that came more than once; a name may occur several times.
    pub fn repeated_names(&self) -> impl Iterator<Item = &'a str> {
        self.repeats.iter().map(|(name, _)| *name)
    }

    /// Whether an attribute came more than once.
    #[inline]
    pub const fn has_repeats(&self) -> bool {
        !self.repeats.is_empty()
    }

    /// The cost.
    pub const fn cost(&self) -> u64 {
        self.cost
    }
}

/// Shows names only: values such as keys, addresses and accounts must not appear in logs.
impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.inline[..self.inline_len].iter().chain(&self.further).map(|(name, _)| name);
        write!(f, "Request({:?}, cost {}) ", self.action, self.cost)?;
        f.debug_set().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_of_an_attribute_counts_unless_it_is_replaced() {
        let request = Request::new("").with_attribute("a", "1").with_attribute("a", "2").with_attribute("b", "3");
        let request = request.with_attribute("c", "4");
        assert_eq!(request.attribute("a"), Some("1"));
        for name in ["a", "b", "c", "d"] {
            assert_eq!(request.clone().with_replaced_attribute(name, "5").attribute(name), Some("5"), "{name}");
        }
    }

    #[test]
    fn further_values_do_not_change_the_first_one() {
        let request = Request::new("").with_attribute("header:x-key", "a").with_attribute("user", "ann");
        assert!(!request.has_repeats());
        let request = request.with_further_value("header:x-key", "b").with_further_value("header:x-key", "a");
        assert!(request.has_repeats());
        assert_eq!(request.attribute("header:x-key"), Some("a"));
        assert_eq!(request.further_values("header:x-key").collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(request.further_values("user").count(), 0);
        assert_eq!(request.repeated_names().collect::<Vec<_>>(), ["header:x-key"; 2]);
    }

    #[test]
    fn debug_output_does_not_contain_attribute_values() {
        let request = Request::new("login").with_attribute("account", "ann@example.com").with_cost(2);
        assert_eq!(format!("{request:?}"), r#"Request("login", cost 2) {"account"}"#);
    }
}
