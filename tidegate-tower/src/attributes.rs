//! `Attributes` and `Peer`: request extensions that earlier middleware sets.

use std::fmt;
use std::net::IpAddr;

/// Attributes that earlier middleware sets, such as the authenticated user: an extension of the request.
///
/// Rules count by these names. [Reserved names](tidegate::attributes::is_reserved) (`method`, `path`, `query`, `host`, `ip`,
/// `body` and every name with a colon) are never read from here, so a request cannot count under another address or header
/// by mistake.
///
/// ```
/// use tidegate_tower::Attributes;
///
/// # let mut request = http::Request::new(());
/// request.extensions_mut().get_or_insert_default::<Attributes>().insert("user", "42");
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Attributes(Vec<(String, String)>);

/// The address of the TCP peer: an extension of the request, for servers without a type of their own for it. A plain
/// [`SocketAddr`](std::net::SocketAddr) works as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

impl Attributes {
    /// No attributes.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Sets an attribute; replaces an earlier value.
    pub fn with_attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.insert(name, value);
        self
    }

    /// Sets an attribute; replaces an earlier value.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(present, _)| *present == name) {
            Some((_, present)) => *present = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of an attribute.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(present, _)| present == name).map(|(_, value)| value.as_str())
    }
}

/// Shows the names only: values identify subjects and must not appear in logs.
impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attributes")?;
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_do_not_appear_in_logs() {
        assert_eq!(format!("{:?}", Attributes::new().with_attribute("user", "ann")), r#"Attributes{"user"}"#);
    }
}
