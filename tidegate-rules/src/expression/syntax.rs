//! The syntax of expressions: CEL's parser, with its errors rewritten. Recurses deeply: see `PARSER_STACK_BYTES`.

use cel::common::ast::SourceInfo;
use cel::{Env, IdedExpr, ParseErrors};

use super::{ExpressionError, MAX_DEPTH, too_deep};

/// The syntax tree of `text`, and the positions of its nodes.
pub(super) fn parse(text: &str) -> Result<(IdedExpr, SourceInfo), ExpressionError> {
    // An empty environment has no macros, which would turn calls such as `has(…)` into something else.
    let parser = Env::default().with_optional_support(false).parser().max_recursion_depth(MAX_DEPTH as u16);
    parser.parse_with_source_info(text).map_err(|errors| explain(text, &errors))
}

/// The last character boundary at or before `offset`.
pub(super) fn floor(text: &str, offset: usize) -> usize {
    let mut floor = offset.min(text.len());
    while !text.is_char_boundary(floor) {
        floor -= 1;
    }
    floor
}

/// Rewrites the parser's first error, whose text is about its grammar.
fn explain(text: &str, errors: &ParseErrors) -> ExpressionError {
    let Some(first) = errors.errors.first() else {
        return ExpressionError::new(0, "the expression cannot be read");
    };
    let offset = offset(text, first.pos);
    let message = first.msg.as_str();
    let error = |problem: String| ExpressionError::new(offset, problem);
    if message.contains("Recursion limit") {
        return too_deep(offset);
    }
    if message.contains("invalid int literal") || message.contains("invalid double literal") {
        let help = format!("whole numbers go from {} to {}", i64::MIN, i64::MAX);
        return error("the number is out of range".into()).help(help);
    }
    if message.contains("unsupported syntax") {
        let help = "write a name with special characters in brackets: attr[\"a-b\"]; a missing value is an empty text";
        return error("backquotes and optional fields are not supported".into()).help(help);
    }
    if let Some(word) = message.strip_prefix("reserved identifier: ") {
        return error(format!("`{word}` is a reserved word")).help("choose with `… ? … : …`");
    }
    let rest = text.get(offset..).unwrap_or_default().trim_start();
    let Some(next) = rest.chars().next() else {
        return error("the expression ends too early".into()).help("something is missing here");
    };
    if message.contains("token recognition") && matches!(next, '"' | '\'' | 'r' | 'R' | 'b' | 'B') {
        let help = "end it with the quote that begins it, and write a backslash as \\\\";
        return error("this text has no end, or an unknown escape".into()).help(help);
    }
    let word = rest.find(|char: char| !char.is_alphanumeric() && char != '_').filter(|end| *end > 0);
    let token = &rest[..word.unwrap_or(if next.is_alphanumeric() { rest.len() } else { next.len_utf8() })];
    let error = error(format!("`{token}` is not expected here"));
    match instead(token) {
        Some(help) => error.help(help),
        None => error,
    }
}

/// The help for operators of other languages.
fn instead(token: &str) -> Option<&'static str> {
    match token {
        "=" => Some("write `==` to compare"),
        "&" | "and" | "AND" => Some("write `&&`"),
        "|" | "or" | "OR" => Some("write `||`"),
        "not" | "NOT" => Some("write `!`"),
        "^" | "<" | ">" => Some("there are + - * / % == != < <= > >= && || ! and ? :"),
        _ => None,
    }
}

/// The offset of a position that the parser gives as line and column, both from 1 and the latter in characters.
fn offset(text: &str, (line, column): (isize, isize)) -> usize {
    let before = usize::try_from(line - 1).unwrap_or(0);
    let start: usize = text.split_inclusive('\n').take(before).map(str::len).sum();
    let column = usize::try_from(column - 1).unwrap_or(0);
    let rest = &text[start..];
    start + rest.char_indices().nth(column).map_or(rest.len(), |(offset, _)| offset)
}
