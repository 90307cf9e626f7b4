//! Tables by method or route: `{ POST /rides: …, POST: …, /exports/*: … }`.

use crate::read::Spanned;

/// Methods (`POST`), paths (`/exports/*`) or both (`POST /rides`), each with its value. The first that matches applies.
pub(crate) type RouteTableSpec<T> = Vec<(Spanned<String>, T)>;

/// Whether a key of a table is a method or a path, and not a field.
pub(super) fn is_route(key: &str) -> bool {
    key.starts_with(|first: char| first == '/' || first.is_ascii_uppercase())
}
