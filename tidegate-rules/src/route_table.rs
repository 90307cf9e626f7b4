//! `RouteTable`: values by method, path or both; the first entry that matches a request applies. Costs and failure policies
//! are written this way; the table does not know what its values mean.

use std::fmt;

use smol_str::SmolStr;
use tidegate::attributes;

use crate::condition::is_method;
use crate::path::PathPattern;
use crate::request_view::RequestView;

/// Values by route, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTable<T>(Vec<RouteEntry<T>>);

/// A method, a path or both, and the value for matching requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteEntry<T> {
    pub method: Option<SmolStr>,
    pub path: Option<PathPattern>,
    pub value: T,
}

// === impl RouteTable ===

impl<T: Copy> RouteTable<T> {
    /// The value of the first entry that matches a request.
    pub(crate) fn find(&self, view: &RequestView<'_, '_>) -> Option<T> {
        self.0.iter().find(|route| route.matches(view)).map(|route| route.value)
    }

    /// The values of all entries.
    pub fn values(&self) -> impl Iterator<Item = T> {
        self.0.iter().map(|route| route.value)
    }
}

impl<T> RouteTable<T> {
    /// The entries, in the order of the file.
    pub fn routes(&self) -> &[RouteEntry<T>] {
        &self.0
    }

    pub fn paths(&self) -> impl Iterator<Item = &PathPattern> {
        self.0.iter().filter_map(|route| route.path.as_ref())
    }

    /// Appends the attributes that the table reads.
    pub fn reads(&self, names: &mut Vec<SmolStr>) {
        names.extend(self.0.iter().any(|route| route.method.is_some()).then(|| attributes::METHOD.into()));
        names.extend(self.0.iter().any(|route| route.path.is_some()).then(|| attributes::PATH.into()));
    }
}

impl<T> Default for RouteTable<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> FromIterator<RouteEntry<T>> for RouteTable<T> {
    fn from_iter<I: IntoIterator<Item = RouteEntry<T>>>(routes: I) -> Self {
        Self(routes.into_iter().collect())
    }
}

// === impl RouteEntry ===

impl<T> RouteEntry<T> {
    /// Whether the entry matches every request with this method and a path of this pattern; `None` stands for any.
    pub fn covers(&self, method: Option<&SmolStr>, path: Option<&PathPattern>) -> bool {
        self.method.as_ref().is_none_or(|own| method.is_some_and(|method| is_method(own, method)))
            && self.path.as_ref().is_none_or(|own| path.is_some_and(|path| own.covers(path)))
    }

    fn matches(&self, view: &RequestView<'_, '_>) -> bool {
        self.method.as_ref().is_none_or(|wanted| view.method().is_some_and(|method| is_method(wanted, method)))
            && self.path.as_ref().is_none_or(|pattern| view.path().is_some_and(|path| pattern.matches(path)))
    }
}

/// As in the file: `POST`, `/exports/*` or `POST /rides`.
impl<T> fmt::Display for RouteEntry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.method, &self.path) {
            (Some(method), Some(path)) => write!(f, "{method} {path}"),
            (Some(method), None) => f.write_str(method),
            (None, Some(path)) => write!(f, "{path}"),
            (None, None) => Ok(()),
        }
    }
}
