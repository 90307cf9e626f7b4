//! The tree of a checked expression, and its value for one request.
//!
//! There is one enum for each type, so that a type mismatch cannot be represented; evaluation can only fail with an
//! [`EvalError`]. Overflow saturates.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use smol_str::SmolStr;

/// The longest part of an attribute that an expression reads.
pub(super) const MAX_ATTRIBUTE_BYTES: usize = 4096;

/// The attribute behind `request.size`.
pub(super) const SIZE_ATTRIBUTE: &str = tidegate::attributes::SIZE;

/// Looks up an attribute of the request.
pub(super) type AttributeLookup<'c, 'r> = &'c dyn Fn(&str) -> Option<Cow<'r, str>>;

/// A type-checked expression of one of the four types.
#[derive(Debug)]
pub(super) enum TypedExpr {
    Int(IntExpr),
    Double(DoubleExpr),
    Text(TextExpr),
    Bool(BoolExpr),
}

#[derive(Debug)]
pub(super) enum IntExpr {
    Literal(i64),
    /// The size of the body.
    Size,
    /// The number of characters of a text.
    Length(Box<TextExpr>),
    FromText(Box<TextExpr>),
    /// The number in a text, rounded up, or another one if there is none of 1 or more.
    FromTextOr(Box<(TextExpr, IntExpr)>),
    FromDouble(Box<DoubleExpr>),
    Negate(Box<IntExpr>),
    Calculate(Arithmetic, Pair<IntExpr>),
    Remainder(Pair<IntExpr>),
    Least(Pair<IntExpr>),
    Greatest(Pair<IntExpr>),
    If(Box<Conditional<IntExpr>>),
}

/// Always finite.
#[derive(Debug)]
pub(super) enum DoubleExpr {
    Literal(f64),
    FromInt(Box<IntExpr>),
    FromText(Box<TextExpr>),
    Negate(Box<DoubleExpr>),
    Calculate(Arithmetic, Pair<DoubleExpr>),
    If(Box<Conditional<DoubleExpr>>),
}

#[derive(Debug)]
pub(super) enum TextExpr {
    Literal(SmolStr),
    Attribute(SmolStr),
    Join(Pair<TextExpr>),
    FromInt(Box<IntExpr>),
    FromDouble(Box<DoubleExpr>),
    FromBool(Box<BoolExpr>),
    If(Box<Conditional<TextExpr>>),
}

#[derive(Debug)]
pub(super) enum BoolExpr {
    Literal(bool),
    Ints(Comparison, Pair<IntExpr>),
    Doubles(Comparison, Pair<DoubleExpr>),
    Texts(Comparison, Pair<TextExpr>),
    Bools(Comparison, Pair<BoolExpr>),
    StartsWith(Pair<TextExpr>),
    EndsWith(Pair<TextExpr>),
    Contains(Pair<TextExpr>),
    Not(Box<BoolExpr>),
    And(Pair<BoolExpr>),
    Or(Pair<BoolExpr>),
    If(Box<Conditional<BoolExpr>>),
}

pub(super) type Pair<T> = Box<(T, T)>;

/// `test ? then : otherwise`.
#[derive(Debug)]
pub(super) struct Conditional<T> {
    pub(super) test: BoolExpr,
    pub(super) then: T,
    pub(super) otherwise: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    AtMost,
    More,
    AtLeast,
}

/// Why an expression has no value for a request. Contains no value of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvalError {
    DivisionByZero,
    NotAnInt,
    NotADouble,
}

// === impl Int ===

impl IntExpr {
    pub(super) fn value(&self, read: AttributeLookup<'_, '_>) -> Result<i64, EvalError> {
        match self {
            Self::Literal(value) => Ok(*value),
            Self::Size => Ok(declared_size(read(SIZE_ATTRIBUTE).as_deref().unwrap_or_default())),
            Self::Length(text) => Ok(text.value(read)?.chars().count().try_into().unwrap_or(i64::MAX)),
            Self::FromText(text) => parse_int(&text.value(read)?),
            Self::FromTextOr(pair) => {
                let text = pair.0.value(read)?;
                parse_rounded_up(&text).map_or_else(|| pair.1.value(read), Ok)
            }
            // The whole part. The conversion itself saturates, and a double is never without a value here.
            Self::FromDouble(double) => Ok(double.value(read)? as i64),
            Self::Negate(int) => Ok(int.value(read)?.saturating_neg()),
            Self::Calculate(how, pair) => how.ints(pair.0.value(read)?, pair.1.value(read)?),
            Self::Remainder(pair) => match (pair.0.value(read)?, pair.1.value(read)?) {
                (_, 0) => Err(EvalError::DivisionByZero),
                // Only the smallest number by -1 wraps, and its remainder is 0 as for any other.
                (left, right) => Ok(left.wrapping_rem(right)),
            },
            Self::Least(pair) => Ok(pair.0.value(read)?.min(pair.1.value(read)?)),
            Self::Greatest(pair) => Ok(pair.0.value(read)?.max(pair.1.value(read)?)),
            Self::If(choice) => choice.taken(read)?.value(read),
        }
    }
}

/// The size of a body. Only front ends state it; a text that is no number is 0.
///
/// Saturates: a client must not lower its cost by announcing a huge size.
fn declared_size(text: &str) -> i64 {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return 0;
    }
    text.parse().unwrap_or(i64::MAX)
}

/// Parses an integer. Saturates.
fn parse_int(text: &str) -> Result<i64, EvalError> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(EvalError::NotAnInt);
    }
    // Digits with a sign can only fail by overflow.
    Ok(text.parse().unwrap_or(if negative { i64::MIN } else { i64::MAX }))
}

/// Parses a number of 1 or more and rounds it up: a client must not lower its cost by another spelling of the number. Some servers
/// take 0 or -1 for no limit, so such a number is none. Saturates.
fn parse_rounded_up(text: &str) -> Option<i64> {
    // The conversion saturates.
    let number = parse_int(text).ok().or_else(|| parse_double(text).ok().map(|number| number.ceil() as i64));
    number.filter(|number| *number >= 1)
}

// === impl Double ===

impl DoubleExpr {
    fn value(&self, read: AttributeLookup<'_, '_>) -> Result<f64, EvalError> {
        match self {
            Self::Literal(value) => Ok(*value),
            Self::FromInt(int) => Ok(int.value(read)? as f64),
            Self::FromText(text) => parse_double(&text.value(read)?),
            Self::Negate(double) => Ok(-double.value(read)?),
            Self::Calculate(how, pair) => how.doubles(pair.0.value(read)?, pair.1.value(read)?),
            Self::If(choice) => choice.taken(read)?.value(read),
        }
    }
}

/// Parses a number. `inf` and `nan`, which have no digit, are errors.
fn parse_double(text: &str) -> Result<f64, EvalError> {
    let value: f64 = text.parse().map_err(|_| EvalError::NotADouble)?;
    let is_number = value.is_finite() || text.contains(|c: char| c.is_ascii_digit());
    if is_number { Ok(saturate(value)) } else { Err(EvalError::NotADouble) }
}

/// Saturates at the largest and smallest double.
fn saturate(value: f64) -> f64 {
    value.clamp(f64::MIN, f64::MAX)
}

// === impl Text ===

impl TextExpr {
    /// The most bytes that its value can have.
    pub(super) fn max_bytes(&self) -> usize {
        match self {
            Self::Literal(text) => text.len(),
            Self::Attribute(_) => MAX_ATTRIBUTE_BYTES,
            Self::Join(pair) => pair.0.max_bytes() + pair.1.max_bytes(),
            Self::FromInt(_) => "-9223372036854775808".len(),
            // The smallest one is written with some 340 digits.
            Self::FromDouble(_) => 400,
            Self::FromBool(_) => "false".len(),
            Self::If(choice) => choice.then.max_bytes().max(choice.otherwise.max_bytes()),
        }
    }

    fn value<'a, 'r: 'a>(&'a self, read: AttributeLookup<'_, 'r>) -> Result<Cow<'a, str>, EvalError> {
        match self {
            Self::Literal(text) => Ok(Cow::Borrowed(text)),
            Self::Attribute(name) => Ok(truncate(read(name).unwrap_or_default())),
            Self::Join(pair) => {
                let left = pair.0.value(read)?;
                Ok(left + pair.1.value(read)?)
            }
            Self::FromInt(int) => Ok(Cow::Owned(int.value(read)?.to_string())),
            Self::FromDouble(double) => Ok(Cow::Owned(double.value(read)?.to_string())),
            Self::FromBool(bool) => Ok(Cow::Borrowed(if bool.value(read)? { "true" } else { "false" })),
            Self::If(choice) => choice.taken(read)?.value(read),
        }
    }
}

/// Truncates a text to [`MAX_ATTRIBUTE_BYTES`] at a character boundary.
fn truncate(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.len() <= MAX_ATTRIBUTE_BYTES {
        return text;
    }
    let mut end = MAX_ATTRIBUTE_BYTES;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[..end]),
        Cow::Owned(mut text) => {
            text.truncate(end);
            Cow::Owned(text)
        }
    }
}

// === impl Bool ===

impl BoolExpr {
    fn value(&self, read: AttributeLookup<'_, '_>) -> Result<bool, EvalError> {
        match self {
            Self::Literal(value) => Ok(*value),
            Self::Ints(how, pair) => Ok(how.holds(pair.0.value(read)?.cmp(&pair.1.value(read)?))),
            Self::Doubles(how, pair) => {
                let (left, right) = (pair.0.value(read)?, pair.1.value(read)?);
                // Both are finite, so that one of the three holds.
                Ok(how.holds(left.partial_cmp(&right).unwrap_or(Ordering::Equal)))
            }
            Self::Texts(how, pair) => Ok(how.holds(pair.0.value(read)?.cmp(&pair.1.value(read)?))),
            Self::Bools(how, pair) => Ok(how.holds(pair.0.value(read)?.cmp(&pair.1.value(read)?))),
            Self::StartsWith(pair) => Ok(pair.0.value(read)?.starts_with(&*pair.1.value(read)?)),
            Self::EndsWith(pair) => Ok(pair.0.value(read)?.ends_with(&*pair.1.value(read)?)),
            Self::Contains(pair) => Ok(pair.0.value(read)?.contains(&*pair.1.value(read)?)),
            Self::Not(bool) => Ok(!bool.value(read)?),
            Self::And(pair) => either_decides(false, pair, read),
            Self::Or(pair) => either_decides(true, pair, read),
            Self::If(choice) => choice.taken(read)?.value(read),
        }
    }
}

/// `&&` and `||` as CEL defines them: a side that has the decisive value decides, even if the other side fails.
fn either_decides(
    decisive: bool,
    pair: &(BoolExpr, BoolExpr),
    read: AttributeLookup<'_, '_>,
) -> Result<bool, EvalError> {
    let left = pair.0.value(read);
    if left == Ok(decisive) {
        return left;
    }
    let right = pair.1.value(read)?;
    if right == decisive { Ok(decisive) } else { left }
}

// === impl Choice, Arithmetic, Comparison, Fault ===

impl<T> Conditional<T> {
    fn taken(&self, read: AttributeLookup<'_, '_>) -> Result<&T, EvalError> {
        Ok(if self.test.value(read)? { &self.then } else { &self.otherwise })
    }
}

impl Arithmetic {
    fn ints(self, left: i64, right: i64) -> Result<i64, EvalError> {
        match self {
            Self::Add => Ok(left.saturating_add(right)),
            Self::Subtract => Ok(left.saturating_sub(right)),
            Self::Multiply => Ok(left.saturating_mul(right)),
            Self::Divide if right == 0 => Err(EvalError::DivisionByZero),
            Self::Divide => Ok(left.saturating_div(right)),
        }
    }

    fn doubles(self, left: f64, right: f64) -> Result<f64, EvalError> {
        Ok(saturate(match self {
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
            Self::Divide if right == 0.0 => return Err(EvalError::DivisionByZero),
            Self::Divide => left / right,
        }))
    }
}

impl Comparison {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::AtMost => ordering.is_le(),
            Self::More => ordering.is_gt(),
            Self::AtLeast => ordering.is_ge(),
        }
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DivisionByZero => "it divides by zero",
            Self::NotAnInt => "int(…) got a text that is not a whole number",
            Self::NotADouble => "double(…) got a text that is not a number",
        })
    }
}
