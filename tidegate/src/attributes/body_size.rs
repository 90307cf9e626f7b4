//! The size of a body: what the head of a request says of it, and the longest one that rules read.

/// The longest body that rules read if nothing else is set: 64 KiB.
pub const DEFAULT_MAX_BODY_BYTES: usize = 64 * 1024;

/// The size of a body in bytes as the head of its request states it; `None` if it does not. `lengths` are the lines of `Content-Length`.
///
/// With `Transfer-Encoding` the length is not known, and neither is it of two lengths. In HTTP/1 there is no body without one of the two
/// headers, so that a GET or a HEAD has none; of other methods that is not taken for certain.
///
/// ```
/// use tidegate::attributes::stated_body_size;
///
/// assert_eq!(stated_body_size("POST", true, false, [&b"9"[..]]), Some(9));
/// assert_eq!(stated_body_size("POST", true, true, [&b"9"[..]]), None);
/// assert_eq!(stated_body_size("POST", true, false, [&b"1"[..], b"2"]), None);
/// assert_eq!(stated_body_size("GET", true, false, []), Some(0));
/// assert_eq!(stated_body_size("GET", false, false, []), None);
/// ```
pub fn stated_body_size<'h>(
    method: &str,
    is_http1: bool,
    has_transfer_encoding: bool,
    lengths: impl IntoIterator<Item = &'h [u8]>,
) -> Option<u64> {
    if has_transfer_encoding {
        return None;
    }
    let mut lengths = lengths.into_iter();
    match (lengths.next(), lengths.next()) {
        (Some(length), None) => str::from_utf8(length).ok()?.parse().ok(),
        (None, _) => (is_http1 && matches!(method, "GET" | "HEAD")).then_some(0),
        _ => None,
    }
}
