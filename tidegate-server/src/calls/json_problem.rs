//! `describe`: what is wrong with the JSON of a call, and where. It names fields and types, and quotes no value.

use serde::Deserialize;
use serde_json::error::Category;
use tidegate_rules::{sanitize, suggest};

use super::bounded_json::TOO_MANY;

/// The longest name of a field that is repeated.
const MAX_NAME_CHARS: usize = 64;

/// Reads JSON. The error says what was found and expected, at which line, column and field.
pub(crate) fn from_json<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, String> {
    // serde would take a list of the values of all fields, too.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err("line 1, column 1: expected an object, found a list".to_owned());
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json);
    let value = value.map_err(|error| describe(&error.path().to_string(), error.inner()))?;
    json.end().map_err(|error| describe(".", &error))?;
    Ok(value)
}

fn describe(path: &str, error: &serde_json::Error) -> String {
    let problem = match error.classify() {
        Category::Syntax => "this is not JSON".to_owned(),
        Category::Eof => "the JSON ends too early".to_owned(),
        Category::Data | Category::Io => data_problem(path, &error.to_string()),
    };
    format!("line {}, column {}: {problem}", error.line(), error.column())
}

/// The problem of JSON that is not what a call takes, by the message of serde, whose quotes of values are left out.
fn data_problem(path: &str, message: &str) -> String {
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    if message.starts_with(TOO_MANY) {
        return format!("{}too many entries: {message}", place(path));
    }
    if let Some(rest) = message.strip_prefix("missing field ") {
        return format!("{}{rest} is missing", place(path));
    }
    if let Some(rest) = message.strip_prefix("duplicate field ") {
        return format!("{}{rest} is there twice", place(path));
    }
    if let Some(rest) = message.strip_prefix("unknown field `") {
        // The name is the client's and may have any characters; the rest is ours.
        let (name, known) = rest.rsplit_once("`, expected ").unwrap_or((rest, ""));
        let known = known.split('`').skip(1).step_by(2);
        // The path ends with the unknown field.
        let parent = path.strip_suffix(name).map_or(path, |parent| parent.trim_end_matches('.'));
        return format!("{}unknown field `{}`; {}", place(parent), short(name), suggest(name, known));
    }
    let found = ["invalid type: ", "invalid value: "].into_iter().find_map(|start| message.strip_prefix(start));
    match found.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => {
            format!("{}expected {}, found {}", place(path), json_name(expected), json_name(found))
        }
        None => format!("{}{WRONG_VALUE}", place(path)),
    }
}

const WRONG_VALUE: &str = "this is not a value that the field takes";

/// The name of a type for readers of JSON. What serde has found is followed by its value, which is left out.
fn json_name(text: &str) -> &str {
    match text.split([' ', '`']).next().unwrap_or_default() {
        "null" | "unit" | "Option" => "null",
        "boolean" => "true or false",
        "integer" if text.starts_with("integer `-") => "a negative number",
        "floating" => "a number with a fraction",
        "integer" | "number" | "JSON" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" | "i64" => "a whole number",
        "string" | "str" | "character" => "text",
        "sequence" | "tuple" => "a list",
        "map" | "struct" => "an object",
        "a" if text == "a string" => "text",
        "a" if text == "a boolean" => "true or false",
        "a" if text == "a sequence" => "a list",
        "a" if text == "a map" => "an object",
        "a" if text == "a JSON number" => "a number",
        // The texts of our own types: "a list", "an object", "a text or a list of texts".
        "a" | "an" => text,
        _ => "something else",
    }
}

/// Where a problem is, in front of it. Empty for the whole body.
fn place(path: &str) -> String {
    if path.is_empty() || path == "." { String::new() } else { format!("`{}`: ", short(path)) }
}

fn short(name: &str) -> String {
    let mut short: String = sanitize(name).chars().take(MAX_NAME_CHARS).collect();
    if name.chars().nth(MAX_NAME_CHARS).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::bounded_json::{BoundedList, BoundedMap, TextOrList};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only whether it can be read matters")]
    struct Call {
        author: String,
        #[serde(default)]
        peek: bool,
        cost: Option<u64>,
        #[serde(default)]
        checks: Option<Checks>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only whether it can be read matters")]
    struct Check {
        path: String,
        #[serde(default)]
        headers: BoundedMap<TextOrList<2>, 2>,
    }

    struct Checks(#[allow(dead_code, reason = "likewise")] BoundedList<Check, 2>);

    impl std::fmt::Debug for Checks {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Checks")
        }
    }

    impl<'de> Deserialize<'de> for Checks {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            Deserialize::deserialize(deserializer).map(Self)
        }
    }

    #[test]
    fn an_error_names_the_field_what_was_found_and_what_was_expected_and_quotes_no_value() {
        for (text, expected) in [
            ("", "the JSON ends too early"),
            ("{", "the JSON ends too early"),
            ("hunter2", "this is not JSON"),
            (r#"{"author":"a"} hunter2"#, "this is not JSON"),
            ("[]", "expected an object, found a list"),
            ("\"hunter2\"", "expected an object, found text"),
            ("{}", "`author` is missing"),
            (r#"{"author":"a","author":"b"}"#, "`author` is there twice"),
            (r#"{"author":"a","pek":true}"#, "unknown field `pek`; did you mean `peek`?"),
            (r#"{"author":1}"#, "`author`: expected text, found a number"),
            (r#"{"author":null}"#, "`author`: expected text, found null"),
            (r#"{"author":["hunter2"]}"#, "`author`: expected text, found a list"),
            (r#"{"author":"a","peek":"hunter2, expected a boolean"}"#, "`peek`: expected true or false, found text"),
            (r#"{"author":"a","cost":"hunter2"}"#, "`cost`: expected a whole number, found text"),
            (r#"{"author":"a","cost":-1}"#, "`cost`: expected a whole number, found a negative number"),
            (r#"{"author":"a","cost":1.5}"#, "`cost`: expected a whole number, found a number with a fraction"),
            (r#"{"author":"a","cost":{}}"#, "`cost`: expected a whole number, found an object"),
            (r#"{"author":"a","checks":{}}"#, "`checks`: expected a list, found an object"),
            (r#"{"author":"a","checks":[{"path":"/"},{}]}"#, "`checks[1]`: `path` is missing"),
            (
                r#"{"author":"a","checks":[{"path":"/","pat":1}]}"#,
                "`checks[0]`: unknown field `pat`; did you mean `path`?",
            ),
            (
                r#"{"author":"a","checks":[{"path":"/","headers":{"x-user":7}}]}"#,
                "`checks[0].headers.x-user`: expected a text or a list of texts, found a number",
            ),
            (
                r#"{"author":"a","checks":[{"path":"/"},{"path":"/"},{"path":"/"}]}"#,
                "`checks`: too many entries: at most 2 entries",
            ),
        ] {
            let error = from_json::<Call>(text.as_bytes()).expect_err(text);
            let (place, problem) = error.split_once(": ").unwrap();
            assert!(place.starts_with("line 1, column "), "{text}: {error}");
            assert_eq!(problem, expected, "{text}");
            assert!(!error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn a_name_of_a_client_is_cut_and_cannot_control_a_terminal() {
        let long = "x".repeat(1000);
        let error = from_json::<Call>(format!(r#"{{"author":"a","\u001b[2J{long}":1}}"#).as_bytes()).unwrap_err();
        assert!(!error.contains('\u{1b}') && error.chars().count() < 250, "{error}");
    }
}
