//! The tokens of an expression, and what its literals mean. Reads forwards only and never recurses.

use super::ExpressionError;

/// A word, literal or symbol, or the end of the expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'t> {
    pub(super) kind: TokenKind,
    /// Its spelling, with the quotes of a text.
    pub(super) text: &'t str,
    /// Its position in bytes.
    pub(super) offset: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Word,
    Int,
    Double,
    Text,
    /// An operator, a bracket, or a character that means nothing in an expression.
    Symbol,
    End,
}

/// The part of an expression that is not read yet.
#[derive(Debug)]
pub(super) struct Tokens<'t> {
    text: &'t str,
    offset: usize,
}

const TWO_CHARACTERS: [&str; 6] = ["==", "!=", "<=", ">=", "&&", "||"];

/// What may stand before the quote of a text: `r` keeps backslashes, `b` stands for bytes.
const PREFIXES: [&str; 3] = ["r", "b", "br"];

impl<'t> Tokens<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, offset: 0 }
    }

    /// Reads the next token. After the end there is nothing but the end.
    pub(super) fn next(&mut self) -> Result<Token<'t>, ExpressionError> {
        self.skip_spaces();
        let (rest, offset) = (&self.text[self.offset..], self.offset);
        let Some(first) = rest.chars().next() else { return Ok(Token { kind: TokenKind::End, text: "", offset }) };
        let (kind, length) = match first {
            '"' | '\'' => (TokenKind::Text, 0),
            '0'..='9' => number(rest),
            '.' if rest[1..].starts_with(|char: char| char.is_ascii_digit()) => number(rest),
            _ if is_word(first) || first.is_alphabetic() => {
                let length = rest.find(|char| !is_word(char) && !char.is_alphanumeric()).unwrap_or(rest.len());
                // Letters of other alphabets are read as one symbol, so that an error shows all of them.
                (if rest[..length].is_ascii() { TokenKind::Word } else { TokenKind::Symbol }, length)
            }
            _ if TWO_CHARACTERS.iter().any(|symbol| rest.starts_with(symbol)) => (TokenKind::Symbol, 2),
            _ => (TokenKind::Symbol, first.len_utf8()),
        };
        let is_prefix = kind == TokenKind::Text || PREFIXES.contains(&rest[..length].to_ascii_lowercase().as_str());
        let (kind, length) = match rest[length..].chars().next() {
            Some('"' | '\'') if is_prefix => {
                (TokenKind::Text, length + quoted(&rest[length..], &rest[..length], offset)?)
            }
            _ => (kind, length),
        };
        self.offset += length;
        Ok(Token { kind, text: &rest[..length], offset })
    }

    /// Skips white space and comments.
    fn skip_spaces(&mut self) {
        loop {
            let rest = self.text[self.offset..].trim_start_matches([' ', '\t', '\r', '\n', '\u{c}']);
            self.offset = self.text.len() - rest.len();
            if !rest.starts_with("//") {
                return;
            }
            self.offset += rest.find('\n').unwrap_or(rest.len());
        }
    }
}

impl Token<'_> {
    /// The value of a whole number, which may be hexadecimal.
    pub(super) fn int(&self, negative: bool) -> Result<i64, ExpressionError> {
        let (radix, digits) = self.text.strip_prefix("0x").map_or((10, self.text), |digits| (16, digits));
        let sign = if negative { "-" } else { "" };
        i64::from_str_radix(&format!("{sign}{digits}"), radix).map_err(|_| self.out_of_range())
    }

    /// The value of a decimal number.
    pub(super) fn double(&self) -> Result<f64, ExpressionError> {
        self.text.parse().ok().filter(|value: &f64| value.is_finite()).ok_or_else(|| self.out_of_range())
    }

    fn out_of_range(&self) -> ExpressionError {
        let help = format!("whole numbers go from {} to {}", i64::MIN, i64::MAX);
        ExpressionError::new(self.offset, "the number is out of range").help(help)
    }

    /// The value of a text: without its quotes, and with what its escapes stand for.
    pub(super) fn unquoted(&self) -> Result<String, ExpressionError> {
        let quoted = self.text.trim_start_matches(|char: char| char.is_ascii_alphabetic());
        let quote = quote(quoted).len();
        let inner = quoted[quote..quoted.len() - quote].replace("\r\n", "\n").replace('\r', "\n");
        if self.text.starts_with(['r', 'R']) {
            return Ok(inner);
        }
        unescape(&inner).ok_or_else(|| {
            ExpressionError::new(self.offset, "this text has an unknown escape").help("write a backslash as \\\\")
        })
    }
}

fn is_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

/// The kind and length of the number at the beginning of `text`. An unsigned one is a whole number whose text ends with `u`.
fn number(text: &str) -> (TokenKind, usize) {
    let digits = |from: usize| text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let hexadecimal = text.strip_prefix("0x").map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_hexdigit).count());
    let mut length = if hexadecimal > 0 { 2 + hexadecimal } else { digits(0) };
    let mut kind = TokenKind::Int;
    if hexadecimal == 0 {
        if text[length..].starts_with('.') && digits(length + 1) > 0 {
            length += 1 + digits(length + 1);
            kind = TokenKind::Double;
        }
        if text[length..].starts_with(['e', 'E']) {
            let sign = usize::from(text[length + 1..].starts_with(['+', '-']));
            let exponent = digits(length + 1 + sign);
            if exponent > 0 {
                length += 1 + sign + exponent;
                kind = TokenKind::Double;
            }
        }
    }
    let unsigned = kind == TokenKind::Int && text[length..].starts_with(['u', 'U']);
    (kind, length + usize::from(unsigned))
}

/// The quote at the beginning of `text`: one character, or three, between which a text may have several lines.
fn quote(text: &str) -> &str {
    if text.starts_with("'''") || text.starts_with("\"\"\"") { &text[..3] } else { &text[..1] }
}

/// The length of the quoted text at the beginning of `text`, both quotes included.
fn quoted(text: &str, prefix: &str, offset: usize) -> Result<usize, ExpressionError> {
    let quote = quote(text);
    let has_escapes = !prefix.contains(['r', 'R']);
    let mut length = quote.len();
    while let Some(char) = text[length..].chars().next() {
        if text[length..].starts_with(quote) {
            return Ok(length + quote.len());
        }
        length += match char {
            '\n' | '\r' if quote.len() == 1 => break,
            '\\' if has_escapes => 1 + text[length + 1..].chars().next().map_or(0, char::len_utf8),
            _ => char.len_utf8(),
        };
    }
    let help = "end it with the quote that begins it, and write a backslash as \\\\";
    Err(ExpressionError::new(offset, "this text has no end").help(help))
}

/// Replaces the escapes in `text`. None if one of them is unknown.
fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('\\');
    let mut unescaped = parts.next().unwrap_or_default().to_owned();
    while let Some(part) = parts.next() {
        let Some(escape) = part.chars().next() else {
            // Two backslashes are one: the second one ends an empty part.
            unescaped.push('\\');
            unescaped.push_str(parts.next()?);
            continue;
        };
        let code = |from: usize, to: usize, radix: u32| {
            let digits = part.get(from..to).filter(|digits| digits.chars().all(|digit| digit.is_digit(radix)))?;
            Some((char::from_u32(u32::from_str_radix(digits, radix).ok()?)?, to))
        };
        let (char, length) = match escape {
            'a' => ('\u{7}', 1),
            'b' => ('\u{8}', 1),
            'f' => ('\u{c}', 1),
            'n' => ('\n', 1),
            'r' => ('\r', 1),
            't' => ('\t', 1),
            'v' => ('\u{b}', 1),
            '\'' | '"' | '`' | '?' => (escape, 1),
            'x' | 'X' => code(1, 3, 16)?,
            'u' => code(1, 5, 16)?,
            'U' => code(1, 9, 16)?,
            '0'..='3' => code(0, 3, 8)?,
            _ => return None,
        };
        unescaped.push(char);
        unescaped.push_str(&part[length..]);
    }
    Some(unescaped)
}
