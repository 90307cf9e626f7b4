//! Compiling tables by method or route: keys that can match a request, each with its value.

use super::Compiler;
use crate::read::Spanned;
use crate::route_table::{RouteEntry, RouteTable};
use crate::schema_types;

impl Compiler<'_> {
    /// Compiles a table; `value` compiles each of its values.
    pub(super) fn route_table<W, T>(
        &mut self,
        spec: &schema_types::RouteTableSpec<W>,
        mut value: impl FnMut(&mut Self, &W) -> Option<T>,
    ) -> Option<RouteTable<T>> {
        let routes: Vec<Option<RouteEntry<T>>> =
            spec.iter().map(|(key, spec)| self.route(key, |compiler| value(compiler, spec))).collect();
        routes.into_iter().collect()
    }

    /// `POST`, `/exports/*` or `POST /rides`.
    fn route<T>(&mut self, key: &Spanned<String>, value: impl FnOnce(&mut Self) -> Option<T>) -> Option<RouteEntry<T>> {
        let value = value(self);
        let at = |text: &str| Spanned::new(text.to_owned(), key.span.clone());
        let (method, path) = match key.split_once(' ') {
            Some((method, path)) => (Some(at(method)), Some(at(path.trim()))),
            None if key.starts_with('/') => (None, Some(at(key))),
            None => (Some(at(key)), None),
        };
        let method = method.map_or(Some(None), |at| self.method(&at).map(Some));
        let path = path.map_or(Some(None), |at| self.pattern(&at).map(Some));
        Some(RouteEntry { method: method?, path: path?, value: value? })
    }
}
