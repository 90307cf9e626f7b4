//! The names and functions of expressions, and the errors for unknown ones.

use smol_str::{SmolStr, format_smolstr};
use tidegate::attributes::{header_attribute, is_reserved};

use super::typed_expr::SIZE_ATTRIBUTE;
use crate::suggest::nearest;

/// The meaning of a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// The text of this attribute.
    Text(SmolStr),
    /// The whole number in [`SIZE_ATTRIBUTE`].
    Size,
    /// A group with fields or keys.
    Group(Group),
}

/// A group with fields or keys, which is not a value itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Request,
    Headers,
    Query,
    Cookies,
    Body,
    Attributes,
}

/// The problem with a name, and what to write instead.
pub(super) type NameError = (String, String);

/// The longest key.
const MAX_KEY_BYTES: usize = 128;

/// Names without a group.
const PLAIN: [&str; 5] = ["tenant", "user", "plan", "client", "action"];

/// The fields of `request`.
const FIELDS: [&str; 8] = ["method", "path", "host", "size", "headers", "query", "cookies", "body"];

/// Every function with its signature.
const FUNCTIONS: [(&str, &str); 9] = [
    ("size", "size(text)"),
    ("int", "int(value), int(text, int)"),
    ("double", "double(value)"),
    ("string", "string(value)"),
    ("min", "min(int, int)"),
    ("max", "max(int, int)"),
    ("startsWith", "text.startsWith(text)"),
    ("endsWith", "text.endsWith(text)"),
    ("contains", "text.contains(text)"),
];

impl Name {
    /// The meaning of a name without a dot before it.
    pub(super) fn root(word: &str) -> Option<Self> {
        match word {
            "request" => Some(Self::Group(Group::Request)),
            "attr" => Some(Self::Group(Group::Attributes)),
            _ => PLAIN.contains(&word).then(|| Self::Text(word.into())),
        }
    }

    /// The attribute that it reads, if it is a value.
    pub(super) fn attribute(&self) -> Option<SmolStr> {
        match self {
            Self::Text(attribute) => Some(attribute.clone()),
            Self::Size => Some(SmolStr::new_static(SIZE_ATTRIBUTE)),
            Self::Group(_) => None,
        }
    }
}

impl Group {
    /// The meaning of `word` as a member of this group.
    pub(super) fn member(self, word: &str) -> Result<Name, NameError> {
        if self != Self::Request {
            self.check_key(word)?;
        }
        Ok(match (self, word) {
            (Self::Request, "method" | "path" | "host") => Name::Text(word.into()),
            (Self::Request, "size") => Name::Size,
            (Self::Request, "headers") => Name::Group(Self::Headers),
            (Self::Request, "query") => Name::Group(Self::Query),
            (Self::Request, "cookies") => Name::Group(Self::Cookies),
            (Self::Request, "body") => Name::Group(Self::Body),
            (Self::Request, _) => return Err((format!("`request` has no field `{word}`"), instead_of_field(word))),
            (Self::Headers, _) => Name::Text(header_attribute(word).into()),
            (Self::Query, _) => Name::Text(format_smolstr!("query:{word}")),
            (Self::Cookies, _) => Name::Text(format_smolstr!("cookie:{word}")),
            (Self::Body, _) => Name::Text(format_smolstr!("body:{word}")),
            (Self::Attributes, _) => Name::Text(format_smolstr!("attr:{word}")),
        })
    }

    /// Checks a key; one that can never have a value is an error, since it would silently be an empty text.
    fn check_key(self, word: &str) -> Result<(), NameError> {
        if word.is_empty() {
            return Err(("the key is empty".into(), "name what to read".into()));
        }
        if word.len() > MAX_KEY_BYTES || word.contains(char::is_whitespace) {
            let problem = format!("the key has a space or more than {MAX_KEY_BYTES} bytes");
            return Err((problem, "write a name without spaces".into()));
        }
        if self != Self::Attributes || !is_reserved(word) {
            return Ok(());
        }
        let instead = match word.split_once(':').map_or(word, |(kind, _)| kind) {
            "method" | "path" | "host" => format!("`request.{word}`"),
            "header" => format!("`{}`", Self::Headers.spelling().1),
            "query" => format!("`{}`", Self::Query.spelling().1),
            "cookie" => format!("`{}`", Self::Cookies.spelling().1),
            "body" => format!("`{}`", Self::Body.spelling().1),
            "ip" => "`client`".into(),
            _ => "the name of an attribute that the application sets".into(),
        };
        Err((format!("`{word}` is not an attribute of the application"), format!("write {instead}")))
    }

    /// Its spelling, and that of one of its members.
    pub(super) fn spelling(self) -> (&'static str, &'static str) {
        match self {
            Self::Request => ("request", "request.method"),
            Self::Headers => ("request.headers", "request.headers[\"x-plan\"]"),
            Self::Query => ("request.query", "request.query[\"rows\"]"),
            Self::Cookies => ("request.cookies", "request.cookies[\"session\"]"),
            Self::Body => ("request.body", "request.body[\"max_tokens\"]"),
            Self::Attributes => ("attr", "attr[\"rows\"]"),
        }
    }
}

/// The signature of a function, if it exists.
pub(super) fn signature(function: &str) -> Option<&'static str> {
    FUNCTIONS.iter().find(|(name, _)| *name == function).map(|(_, call)| *call)
}

/// Why a function of CEL is not supported, if it is one of those.
pub(super) fn unsupported_reason(function: &str) -> Option<&'static str> {
    match function {
        "all" | "exists" | "exists_one" | "map" | "filter" => Some("a cost is computed without lists and loops"),
        "bind" => Some("a cost has no variables of its own: write the value where it is used"),
        "has" => Some("a missing attribute is an empty text: compare it with \"\""),
        "matches" => Some("use startsWith, endsWith or contains"),
        _ => None,
    }
}

/// What to write instead of an unknown name that has no dot before it.
pub(super) fn instead_of_name(word: &str) -> String {
    let all = format!("the names are {}, attr and request.{}", PLAIN.join(", "), FIELDS.join(", request."));
    match nearest(word, PLAIN.into_iter().chain(FIELDS).chain(["request", "attr"])) {
        Some(field) if FIELDS.contains(&field) => format!("did you mean `request.{field}`? {all}"),
        Some(name) => format!("did you mean `{name}`? {all}"),
        None => all,
    }
}

/// What to write instead of an unknown field of `request`.
fn instead_of_field(word: &str) -> String {
    let all = format!("its fields are {}", FIELDS.join(", "));
    match nearest(word, FIELDS.into_iter()) {
        Some(field) => format!("did you mean `request.{field}`? {all}"),
        None => all,
    }
}

/// What to write instead of an unknown function.
pub(super) fn instead_of_function(word: &str) -> String {
    let calls: Vec<_> = FUNCTIONS.iter().map(|(_, call)| *call).collect();
    let all = format!("the functions are {}", calls.join(", "));
    match nearest(word, FUNCTIONS.iter().map(|(name, _)| *name)) {
        Some(function) => format!("did you mean `{function}`? {all}"),
        None => all,
    }
}
