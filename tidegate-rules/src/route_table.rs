//! `RouteTable`: values by method, by path, or by both, of which the first that fits a request counts. It must not know what
//! the values mean: costs and failure policies are written this way.

use std::fmt;

use smol_str::SmolStr;
use tidegate::attributes;

use crate::condition::is_method;
use crate::path::PathPattern;
use crate::request_view::RequestView;

/// Values by route, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteTable<T>(Vec<RouteEntry<T>>);

/// A method, a path, or both, and what holds there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteEntry<T> {
    pub(crate) method: Option<SmolStr>,
    pub(crate) path: Option<PathPattern>,
    pub(crate) value: T,
}

// === impl ByRoute ===

impl<T: Copy> RouteTable<T> {
    /// What holds for a request, if a route fits it.
    pub(crate) fn of(&self, view: &RequestView<'_, '_>) -> Option<T> {
        self.0.iter().find(|route| route.fits(view)).map(|route| route.value)
    }

    /// What may hold.
    pub(crate) fn values(&self) -> impl Iterator<Item = T> {
        self.0.iter().map(|route| route.value)
    }
}

impl<T> RouteTable<T> {
    /// In order.
    pub(crate) fn routes(&self) -> &[RouteEntry<T>] {
        &self.0
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &PathPattern> {
        self.0.iter().filter_map(|route| route.path.as_ref())
    }

    /// The attributes that it reads.
    pub(crate) fn reads(&self, names: &mut Vec<SmolStr>) {
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

// === impl Route ===

impl<T> RouteEntry<T> {
    /// Whether it fits every request with this method and a path of this pattern; nothing stands for any.
    pub(crate) fn covers(&self, method: Option<&SmolStr>, path: Option<&PathPattern>) -> bool {
        self.method.as_ref().is_none_or(|own| method.is_some_and(|method| is_method(own, method)))
            && self.path.as_ref().is_none_or(|own| path.is_some_and(|path| own.covers(path)))
    }

    fn fits(&self, view: &RequestView<'_, '_>) -> bool {
        self.method.as_ref().is_none_or(|wanted| view.method().is_some_and(|method| is_method(wanted, method)))
            && self.path.as_ref().is_none_or(|pattern| view.path().is_some_and(|path| pattern.matches(path)))
    }
}

/// As it is written: `POST`, `/exports/*` or `POST /rides`.
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
