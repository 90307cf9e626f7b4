//! `Expression`: a cost computed from the request, written in CEL.
//!
//! Compiled when the rules are loaded, evaluated for every request that its rule matches:
//!
//! ```text
//! text ──▶ token ──▶ syntax ──▶ type_checker (names) ──▶ typed_expr, evaluated for each request
//! ```
//!
//! An expression has no loops, reads only attributes of the request, and its errors never
//! contain their values.
//!
//! It differs from CEL in overflow: in CEL `1 + request.size` fails if the sum cannot be applied to 64 bits, here it saturates. A cost
//! that fails is the default one, which is low, and a client must not get it by announcing a huge size. Division by zero and
//! texts that are not numbers fail as in CEL.

mod names;
mod syntax;
mod token;
mod type_checker;
mod typed_expr;

use std::borrow::Cow;
use std::sync::Arc;

use smol_str::SmolStr;

use self::type_checker::TypeChecker;
use self::typed_expr::{EvalError, IntExpr};

/// The longest expression.
const MAX_EXPRESSION_BYTES: usize = 1024;

/// The deepest nesting. A chain of operators counts as well: `1 + 2 + 3` is three deep.
const MAX_DEPTH: usize = 64;

/// A cost computed from attributes of the request. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Expression {
    cost: Arc<IntExpr>,
    reads: Arc<[SmolStr]>,
}

/// An error in an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpressionError {
    /// The position in bytes; the end of the text if something is missing there.
    pub offset: usize,
    /// What is wrong.
    pub problem: String,
    /// How to fix it.
    pub help: Option<String>,
}

impl Expression {
    /// Parses and type-checks `text`. A compiled expression can fail only on values: see [`Expression::evaluate`].
    pub(crate) fn compile(text: &str) -> Result<Self, ExpressionError> {
        if text.trim().is_empty() {
            return Err(ExpressionError::new(0, "the expression is empty").help("write a whole number, such as 1"));
        }
        if text.len() > MAX_EXPRESSION_BYTES {
            let problem = format!("the expression has {} bytes; the maximum is {MAX_EXPRESSION_BYTES}", text.len());
            return Err(ExpressionError::new(floor(text, MAX_EXPRESSION_BYTES), problem)
                .help("compute the cost in the application and read it as an attribute"));
        }
        let (cost, reads) = TypeChecker::default().cost(&syntax::parse(text)?)?;
        let expression = Self { cost: Arc::new(cost), reads: reads.into() };
        if expression.reads.is_empty()
            && let Err(fault) = expression.cost.value(&|_| None)
        {
            return Err(ExpressionError::new(0, format!("this always fails: {fault}")));
        }
        Ok(expression)
    }

    /// The names that it reads, each once: plain names such as `tenant` and `path`, and others as sources of a rule file:
    /// `attr:rows` for `attr.rows`, which is never an identity of that name, and `request:size` for `request.size`.
    pub fn reads(&self) -> &[SmolStr] {
        &self.reads
    }

    /// The cost of a request, which may be negative. `value` looks up a name in [`Expression::reads`]; a missing value is an
    /// empty text.
    ///
    /// The error never contains a value of the request.
    pub fn evaluate<'r>(&self, value: &dyn Fn(&str) -> Option<Cow<'r, str>>) -> Result<i64, String> {
        self.cost.value(value).map_err(|fault: EvalError| fault.to_string())
    }
}

impl ExpressionError {
    fn new(offset: usize, problem: impl Into<String>) -> Self {
        Self { offset, problem: problem.into(), help: None }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// The last character boundary at or before `offset`.
fn floor(text: &str, offset: usize) -> usize {
    let mut floor = offset.min(text.len());
    while !text.is_char_boundary(floor) {
        floor -= 1;
    }
    floor
}

fn too_deep(offset: usize) -> ExpressionError {
    ExpressionError::new(offset, format!("the expression is more than {MAX_DEPTH} levels deep"))
        .help("a bracket and an operator in a chain are one level each: shorten it")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    type Attributes = &'static [(&'static str, &'static str)];

    fn evaluate(expression: &Expression, attributes: &[(&str, &str)]) -> Result<i64, String> {
        let find = |name: &str| attributes.iter().find(|(attribute, _)| *attribute == name);
        expression.evaluate(&|name| find(name).map(|(_, value)| Cow::Borrowed(*value)))
    }

    fn cost(text: &str, attributes: &[(&str, &str)]) -> Result<i64, String> {
        evaluate(&Expression::compile(text).unwrap_or_else(|error| panic!("{text}: {error:?}")), attributes)
    }

    fn error(text: &str) -> ExpressionError {
        Expression::compile(text).expect_err(text)
    }

    #[test]
    fn a_cost_is_computed_from_the_request() {
        let table: [(&str, Attributes, i64); 57] = [
            ("1", &[], 1),
            ("-3", &[], -3),
            ("1 + 2 * 3 - 4 / 2 % 3", &[], 5),
            ("(1 + 2) * 3", &[], 9),
            ("-7 / 2", &[], -3),
            ("-7 % 2", &[], -1),
            ("0x10", &[], 16),
            ("1 // a remark", &[], 1),
            ("request.method == \"POST\" ? 3 : 1", &[("method", "POST")], 3),
            ("request.method == \"POST\" ? 3 : 1", &[("method", "GET")], 1),
            ("request.path.startsWith('/api/') ? 2 : 1", &[("path", "/api/x")], 2),
            ("request.path.endsWith('.pdf') ? 2 : 1", &[("path", "/a.pdf")], 2),
            ("request.path.contains('/export/') ? 9 : 1", &[("path", "/a/export/b")], 9),
            ("request.host == 'a.example' ? 2 : 1", &[("host", "a.example")], 2),
            ("1 + request.size / 1024", &[("request:size", "10240")], 11),
            ("request.size", &[], 0),
            ("request.size", &[("request:size", "many")], 0),
            ("request.size", &[("request:size", "-5")], 0),
            ("request.size", &[("request:size", "99999999999999999999")], i64::MAX),
            ("int(request.headers[\"X-Rows\"])", &[("header:x-rows", "12")], 12),
            ("request.headers.Weight == 'heavy' ? 5 : 1", &[("header:weight", "heavy")], 5),
            ("int(request.query['rows'])", &[("query:rows", "7")], 7),
            ("request.query.all == '1' ? 8 : 1", &[("query:all", "1")], 8),
            ("size(request.cookies['s'])", &[("cookie:s", "äöü")], 3),
            ("request.cookies.s.size()", &[("cookie:s", "abcd")], 4),
            ("int(attr[\"rows\"]) * 2", &[("attr:rows", "21")], 42),
            ("int(attr.rows) * 2", &[("attr:rows", "21")], 42),
            ("tenant == 'acme' && user != '' ? 1 : 2", &[("tenant", "acme"), ("user", "u")], 1),
            ("plan == 'free' || client == 'c' ? 1 : 2", &[("client", "c")], 1),
            ("action == 'login' ? 1 : 2", &[("action", "login")], 1),
            ("!(plan < 'b') ? 1 : 2", &[("plan", "c")], 1),
            ("min(100, max(1, int(attr.rows) / 10))", &[("attr:rows", "5000")], 100),
            ("min(100, max(1, int(attr.rows) / 10))", &[("attr:rows", "3")], 1),
            ("int(double(attr.rows) * 1.5)", &[("attr:rows", "3")], 4),
            ("int(-double(2) / 0.5 + 1.0 - 0.25)", &[], -3),
            ("int(1.5 < 2.5 == true ? 1.9 : 2.0)", &[], 1),
            ("size(string(12) + string(true) + string(1.5))", &[], 9),
            ("size(true ? tenant : user)", &[("tenant", "abc")], 3),
            ("(true ? false : true) ? 1 : 2", &[], 2),
            ("int(string(int(double(7))))", &[], 7),
            ("tenant <= 'b' && tenant >= 'b' && !(tenant > 'b') ? 1 : 0", &[("tenant", "b")], 1),
            ("plan == 'a' ? 1 : plan == 'b' ? 2 : 3", &[("plan", "b")], 2),
            ("int(request.body['user.id'])", &[("body:user.id", "7")], 7),
            ("int(request.body.max_tokens, 1024)", &[("body:max_tokens", "100")], 100),
            ("int(request.body.max_tokens, 1024)", &[], 1024),
            ("int(request.body.max_tokens, 1024)", &[("body:max_tokens", "many")], 1024),
            ("int(request.body.max_tokens, 1024)", &[("body:max_tokens", "-1")], 1024),
            ("int(request.body.max_tokens, 1024)", &[("body:max_tokens", "-0.5")], 1024),
            ("int(request.body.max_tokens, 1024)", &[("body:max_tokens", "0")], 1024),
            ("int(request.body.max_tokens, 1024)", &[("body:max_tokens", "1e6")], 1_000_000),
            ("int(request.body.max_tokens, 1024)", &[("body:max_tokens", "1.2")], 2),
            ("int(request.body.max_tokens, 1024)", &[("body:max_tokens", "99999999999999999999")], i64::MAX),
            ("int(request.body.max_tokens, 1024)", &[("body:max_tokens", "nan")], 1024),
            ("max(int(request.body.b, 0), int(request.body.a, int(request.body.b, 9)))", &[("body:b", "5")], 5),
            ("max(int(request.body.b, 0), int(request.body.a, int(request.body.b, 9)))", &[("body:a", "5")], 5),
            ("max(int(request.body.b, 0), int(request.body.a, int(request.body.b, 9)))", &[], 9),
            ("request.body.stream == 'true' ? 2 : 1", &[("body:stream", "true")], 2),
        ];
        for (text, attributes, expected) in table {
            assert_eq!(cost(text, attributes), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_expression_lists_the_attributes_that_it_reads() {
        let text = r#"request.method == request.path + request.host + tenant + user + attr.a || attr["b.c"] == plan
            || request.headers["X-Y"] == client || request.headers.x == action || request.query["Q"] == request.query.R
            || request.cookies["c"] == tenant ? request.size : 1"#;
        let expression = Expression::compile(text).unwrap_err();
        assert_eq!(expression.problem, "the text may exceed 16384 bytes");
        let expression = Expression::compile(&text.replace("+ attr.a", "|| attr.a == ''")).unwrap();
        let expected = [
            "method",
            "path",
            "host",
            "tenant",
            "user",
            "attr:a",
            "attr:b.c",
            "plan",
            "header:x-y",
            "client",
            "header:x",
            "action",
            "query:Q",
            "query:R",
            "cookie:c",
            "request:size",
        ];
        assert_eq!(expression.reads(), expected);
        assert!(Expression::compile("1 + 1").unwrap().reads().is_empty());
    }

    #[test]
    fn expressions_read_only_the_attributes_that_they_list() {
        let expression = Expression::compile("request.size + size(tenant) + int(attr.rows)").unwrap();
        let cost = expression.evaluate(&|name| {
            assert!(expression.reads().iter().any(|read| read == name), "{name}");
            Some(Cow::Owned("4".to_owned()))
        });
        assert_eq!(cost, Ok(9));
    }

    /// Position, problem and help for every kind of error.
    #[test]
    fn every_error_has_a_position_and_help() {
        let table: [(&str, usize, &str, &str); 81] = [
            ("  ", 0, "is empty", "whole number"),
            ("1 +", 3, "ends too early", "missing"),
            ("(1", 2, "ends too early", "missing"),
            ("1)", 1, "`)` is not expected", ""),
            ("1 + é", 4, "`é` is not expected", ""),
            ("'é' = tenant ? 1 : 2", 5, "`=` is not expected", "=="),
            ("tenant == 'a' and true ? 1 : 2", 14, "`and` is not expected", "&&"),
            ("1 +\n  'é' + * 2", 13, "`*` is not expected", ""),
            ("size('abc)", 5, "has no end", "quote"),
            ("size(\"\\q\")", 5, "unknown escape", "backslash"),
            ("9223372036854775808", 0, "out of range", "9223372036854775807"),
            ("int(1e999)", 4, "out of range", ""),
            ("if", 0, "`if` is a reserved word", "?"),
            ("attr.?rows", 4, "not supported", "empty text"),
            ("attr.`a-b`", 4, "not supported", "attr[\"a-b\"]"),
            ("1u", 0, "unsigned", "without `u`"),
            ("size(b'a')", 5, "bytes", "without `b`"),
            ("null", 0, "no null", "empty text"),
            ("[1, 2]", 0, "lists are not supported", "numbers"),
            ("{'a': 1}", 0, "maps are not supported", "numbers"),
            ("Cost{a: 1}", 4, "messages are not supported", "numbers"),
            ("tenant in user ? 1 : 2", 7, "`in` needs lists", ""),
            ("tenant.all(x, x > 1) ? 1 : 2", 7, "`all` is not supported", "loops"),
            ("tenant.exists(x, x > 1) ? 1 : 2", 7, "`exists` is not supported", "loops"),
            ("tenant.exists_one(x, x > 1) ? 1 : 2", 7, "`exists_one` is not supported", "loops"),
            ("tenant.map(x, x)", 7, "`map` is not supported", "loops"),
            ("tenant.filter (x, x)", 7, "`filter` is not supported", "loops"),
            ("has(attr.rows) ? 1 : 2", 0, "`has` is not supported", "compare it with \"\""),
            ("cel.bind(x, 1, x)", 4, "`bind` is not supported", "variables"),
            ("tenant.matches('a') ? 1 : 2", 7, "`matches` is not supported", "contains"),
            ("1 + tennant", 4, "no name `tennant`", "did you mean `tenant`? the names are tenant, user"),
            ("size(metod)", 5, "no name `metod`", "did you mean `request.method`?"),
            ("int(rows)", 4, "no name `rows`", "the names are"),
            (".tenant", 1, "no name `.tenant`", "did you mean `tenant`?"),
            ("size(request.Path)", 13, "no field `Path`", "did you mean `request.path`?"),
            ("size(request.  zzz)", 15, "no field `zzz`", "its fields are method, path"),
            ("1 + len(tenant)", 4, "no function `len`", "the functions are size(text)"),
            ("tenant.startswith('a') ? 1 : 2", 7, "no function `startswith`", "did you mean `startsWith`?"),
            ("_x_(1, 2)", 0, "no function `_x_`", "the functions are"),
            ("startsWith(tenant, 'a') ? 1 : 2", 0, "does not accept text and text", "text.startsWith(text)"),
            ("tenant.int()", 7, "does not accept", "`int(value), int(text, int)`"),
            ("size()", 0, "does not accept no arguments", "`size(text)`"),
            ("size(tenant, user)", 0, "does not accept text and text", "`size(text)`"),
            ("1 + size(12)", 4, "does not accept a whole number", "`size(text)`"),
            ("int(true)", 0, "does not accept true or false", "`int(value), int(text, int)`"),
            ("int(1, 2)", 0, "does not accept a whole number and a whole number", "int(text, int)"),
            (
                "min(1, 2, 3)",
                0,
                "does not accept a whole number and a whole number and a whole number",
                "`min(int, int)`",
            ),
            ("min(1, 2.5)", 0, "does not accept a whole number and a decimal number", "`min(int, int)`"),
            ("max(1, 2, 3, 4, 5, 6)", 0, "does not accept", "`max(int, int)`"),
            ("request.path + 1", 13, "`+` cannot be applied to text and a whole number", "string(…)"),
            ("request.path == 1 ? 1 : 2", 13, "`==` cannot be applied to text and a whole number", "string(…)"),
            ("1 < 1.5 ? 1 : 2", 2, "`<` cannot be applied to a whole number and a decimal number", "double(…)"),
            ("tenant - user", 7, "`-` cannot be applied to text and text", ""),
            ("int(5.0 % 2.0)", 8, "`%` cannot be applied to a decimal number and a decimal number", ""),
            ("1 && 2 ? 1 : 2", 2, "`&&` cannot be applied to a whole number and a whole number", "compare"),
            ("true + true", 5, "`+` cannot be applied to true or false and true or false", ""),
            ("true ? 1 : 'a'", 5, "`? :` cannot be applied to a whole number and text", "int(…)"),
            ("tenant ? 1 : 2", 0, "before `?` is text", "compare"),
            ("1 + -tenant", 4, "`-` needs a number, but this is text", ""),
            ("!1 ? 1 : 2", 0, "`!` needs true or false, but this is a whole number", ""),
            ("attr[tenant]", 5, "key must be a quoted text", "at load"),
            ("attr[1 + 1]", 5, "key must be a quoted text", "at load"),
            ("attr['']", 5, "key is empty", "name"),
            ("attr['b c']", 5, "key has a space or more than 128 bytes", "without spaces"),
            ("size(request.query['b c'])", 19, "key has a space or more than 128 bytes", "without spaces"),
            ("attr.method", 5, "`method` is not an attribute of the application", "`request.method`"),
            ("attr.query", 5, "`query` is not an attribute of the application", "`request.query[\"rows\"]`"),
            ("attr['ip']", 5, "`ip` is not an attribute of the application", "`client`"),
            ("attr['header:x']", 5, "`header:x` is not an attribute", "`request.headers[\"x-plan\"]`"),
            ("attr['claim:tier']", 5, "`claim:tier` is not an attribute", "the application"),
            ("request.path['a']", 13, "is text, which has no fields", ""),
            ("tenant.name", 7, "is text, which has no fields", ""),
            ("request", 0, "`request` is a group", "`request.method`"),
            ("size(request.headers)", 5, "`request.headers` is a group", "request.headers[\"x-plan\"]"),
            ("request.body", 0, "`request.body` is a group", "request.body[\"max_tokens\"]"),
            ("attr.body", 5, "`body` is not an attribute of the application", "request.body[\"max_tokens\"]"),
            ("attr", 0, "`attr` is a group", "attr[\"rows\"]"),
            ("  tenant", 2, "this is text, but a cost is a whole number", "int(…)"),
            ("double(1) + 2.0", 0, "a decimal number, but a cost is a whole number", "int(…)"),
            ("1 == 1", 0, "true or false, but a cost is a whole number", "? 1 : 0"),
            ("'ä' == request.path", 0, "true or false, but a cost", "? 1 : 0"),
        ];
        for (text, offset, problem, help) in table {
            let error = error(text);
            assert!(error.problem.contains(problem), "{text}: {error:?}");
            assert!(error.help.as_deref().unwrap_or_default().contains(help), "{text}: {error:?}");
            assert_eq!(error.offset, offset, "{text}: {error:?}");
        }
    }

    #[test]
    fn a_long_text_is_refused_before_it_is_read() {
        assert!(Expression::compile(&format!("1{}", " ".repeat(1023))).is_ok());
        assert_eq!(error(&format!("1{}", " ".repeat(1024))).offset, 1024);
        let error = error(&"é#".repeat(1000));
        assert_eq!(
            (error.offset, error.problem.as_str()),
            (1023, "the expression has 3000 bytes; the maximum is 1024")
        );
    }

    /// Trap: the parser recurses, so that a thousand brackets ended the process.
    #[test]
    fn nesting_is_bounded_in_every_form() {
        let repeat = |open: &str, middle: &str, close: &str, times| open.repeat(times) + middle + &close.repeat(times);
        for text in [
            repeat("(", "1", ")", 500),
            repeat("(", "", "", 1000),
            repeat("int(", "1", ")", 200),
            repeat("attr[", "1", "]", 150),
            repeat("-(", "1", ")", 300),
            repeat("!(", "true", ")", 300),
            repeat("true ? 1 : ", "1", "", 90),
            repeat("", "1", " + 1", 200),
            repeat("", "1", "<1", 500),
            repeat("", "attr", ".a", 500),
            repeat("", "attr", "['a']", 200),
            repeat("", "tenant", ".size()", 140),
        ] {
            let error = error(&text);
            assert!(error.problem.contains("levels deep"), "{text}: {error:?}");
            assert!(error.offset <= text.len());
        }
        for (text, problem) in [(repeat("[", "", "", 1000), "lists"), (repeat("{1:", "", "", 300), "maps")] {
            assert!(error(&text).problem.contains(problem), "{text}");
        }
        assert_eq!(cost(&repeat("(", "1", ")", MAX_DEPTH), &[]), Ok(1));
        assert_eq!(cost(&repeat("(1 + ", "1", ")", MAX_DEPTH - 1), &[]), Ok(64));
        assert!(error(&repeat("(1 + ", "1", ")", MAX_DEPTH)).problem.contains("levels deep"));
        assert_eq!(cost(&repeat("1<2 && ", "true ? 1 : 2", "", 100), &[]), Ok(1), "a chain of && is balanced");
    }

    /// Threads have 2 MiB. Without optimization, a level takes 13 KiB while an expression is compiled.
    #[test]
    fn the_deepest_expression_needs_little_stack() {
        let on_stack_of = |kibibytes: usize| thread::Builder::new().stack_size(kibibytes * 1024);
        for deepest in [
            "tenant==''?1+(".repeat(31) + "1" + &"):1".repeat(31),
            "int(".repeat(MAX_DEPTH - 1) + "1" + &")".repeat(MAX_DEPTH - 1),
            "-(1*(".repeat(31) + "1" + &"))".repeat(31),
        ] {
            let compile = on_stack_of(1024).spawn(move || Expression::compile(&deepest).unwrap());
            let expression = compile.unwrap().join().unwrap();
            let evaluate = on_stack_of(256).spawn(move || evaluate(&expression, &[]));
            assert!(evaluate.unwrap().join().unwrap().is_ok());
        }
    }

    #[test]
    fn evaluation_errors_do_not_contain_values() {
        let table: [(&str, &str, &str); 12] = [
            ("1 / int(attr.v)", "0", "it divides by zero"),
            ("1 % int(attr.v)", "0", "it divides by zero"),
            ("int(1.0 / double(attr.v))", "0", "it divides by zero"),
            ("int(double(attr.v))", "inf", "double(…) got a text that is not a number"),
            ("int(double(attr.v))", "-Infinity", "double(…) got a text that is not a number"),
            ("int(double(attr.v))", "NaN", "double(…) got a text that is not a number"),
            ("int(attr.v)", "s3cret", "int(…) got a text that is not a whole number"),
            ("int(attr.v)", "", "int(…) got a text that is not a whole number"),
            ("int(attr.v)", "-", "int(…) got a text that is not a whole number"),
            ("int(attr.v)", "99999999999999999999x", "int(…) got a text that is not a whole number"),
            ("int(attr.v)", "--99999999999999999999", "int(…) got a text that is not a whole number"),
            ("int(double(attr.v))", "s3cret", "double(…) got a text that is not a number"),
        ];
        for (text, value, expected) in table {
            assert_eq!(cost(text, &[("attr:v", value)]), Err(expected.to_owned()), "{text} of {value}");
        }
    }

    /// Trap: an overflow failed, and a failure costs the default, so a client paid 1 for announcing 2^63 bytes.
    #[test]
    fn a_huge_announced_size_does_not_lower_the_cost() {
        let huge = [("request:size", "9223372036854775807"), ("query:rows", "99999999999999999999")];
        for text in [
            "1 + request.size",
            "request.size * 1000",
            "request.size + request.size",
            "int(request.query.rows)",
            "1 + int(request.query.rows)",
            "int(double(request.query.rows))",
            "int(double(request.query.rows + 'e300') * 10.0)",
            "int(double(request.query.rows) / 0.0000001)",
        ] {
            assert_eq!(cost(text, &huge), Ok(i64::MAX), "{text}");
        }
    }

    #[test]
    fn numbers_saturate() {
        let (most, least) = ("9223372036854775807", "-9223372036854775808");
        let table: [(&str, &str, i64); 18] = [
            ("int(attr.v) + 1", most, i64::MAX),
            ("int(attr.v) - 2", least, i64::MIN),
            ("-2 - int(attr.v)", most, i64::MIN),
            ("int(attr.v) * 2", most, i64::MAX),
            ("int(attr.v) * -2", most, i64::MIN),
            ("int(attr.v) / -1", least, i64::MAX),
            ("int(attr.v) % -1", least, 0),
            ("-int(attr.v)", least, i64::MAX),
            ("int(attr.v)", "+9223372036854775808", i64::MAX),
            ("int(attr.v)", "-9223372036854775809", i64::MIN),
            ("int(attr.v)", "00000000000000000000000007", 7),
            ("int(double(attr.v))", "1e300", i64::MAX),
            ("int(double(attr.v))", "-1e300", i64::MIN),
            ("int(double(attr.v))", "1e999", i64::MAX),
            ("int(double(attr.v))", "-1e999", i64::MIN),
            ("int(double(attr.v) * 10.0)", "1e308", i64::MAX),
            ("int(double(attr.v) - double(attr.v))", "1e999", 0),
            ("9223372036854775807 + 1 > 0 ? 3 : 4", "", 3),
        ];
        for (text, value, expected) in table {
            assert_eq!(cost(text, &[("attr:v", value)]), Ok(expected), "{text} of {value}");
        }
        let digits = "9".repeat(5000);
        assert_eq!(cost("int(attr.v)", &[("attr:v", &digits)]), Ok(i64::MAX), "cut, and still huge");
    }

    /// Trap: an identity with the name of an attribute was read in its place.
    #[test]
    fn an_attribute_is_not_confused_with_another_value_of_the_same_name() {
        let others = [("user", "7"), ("path", "7"), ("rows", "7"), ("attr:user", "1"), ("attr:rows", "2")];
        assert_eq!(cost("int(attr.user) + int(attr['rows'])", &others), Ok(3));
        assert_eq!(Expression::compile("size(attr.user + user)").unwrap().reads(), ["attr:user", "user"]);
    }

    /// The same through a whole file: there is an identity called `rows`, which a client sends.
    #[test]
    fn an_attribute_is_not_confused_with_an_identity_of_the_same_name() {
        let text = "version: 1\nidentify: { rows: header:x-rows }\nrules:\n- { id: a, per: rows, cost: int(attr.rows), \
                    token_bucket: { capacity: 99, refill: 1/s } }";
        let file = crate::RuleFile::parse("rules.yaml", text).unwrap();
        let request = tidegate::Request::new("").with_attribute("header:x-rows", "50");
        let cost = |request: &tidegate::Request<'_>| file.rules().resolve(request).checks()[0].cost();
        assert_eq!(cost(&request), 1, "the default");
        assert_eq!(cost(&request.with_attribute("rows", "7")), 7);
        assert!(file.rules().reads().iter().any(|name| name == "rows"));
    }

    #[test]
    fn a_deciding_operand_hides_the_failure_of_the_other() {
        for text in [
            "int(tenant) > 0 || true ? 1 : 2",
            "true || int(tenant) > 0 ? 1 : 2",
            "int(tenant) > 0 && false ? 2 : 1",
            "false && int(tenant) > 0 ? 2 : 1",
        ] {
            assert_eq!(cost(text, &[]), Ok(1), "{text}");
        }
        assert!(cost("int(tenant) > 0 || false ? 1 : 2", &[]).is_err());
        assert!(cost("true && int(tenant) > 0 ? 1 : 2", &[]).is_err());
        assert_eq!(cost("tenant == '' ? 1 : int(tenant)", &[]), Ok(1), "only the chosen side is computed");
    }

    #[test]
    fn a_constant_expression_that_fails_is_an_error_at_load() {
        for text in ["1 / 0", "int('abc')", "int(1.0 / 0.0)", "true ? 1 % 0 : 2"] {
            assert!(error(text).problem.starts_with("this always fails: "), "{text}");
        }
        assert!(Expression::compile("true ? 2 : 1 / 0").is_ok());
    }

    #[test]
    fn a_long_attribute_is_cut_between_characters() {
        let long = "é".repeat(5000);
        assert_eq!(cost("size(tenant)", &[("tenant", &long)]), Ok(2048));
        assert_eq!(cost("size(tenant)", &[("tenant", &format!("a{long}"))]), Ok(2048), "4095 bytes");
        let owned = Expression::compile("size(tenant + tenant + tenant + tenant)").unwrap();
        assert_eq!(owned.evaluate(&|_| Some(Cow::Owned(long.clone()))), Ok(4 * 2048));
        assert!(error("size(tenant + tenant + tenant + tenant + 'a')").problem.contains("exceed 16384 bytes"));
        assert!(Expression::compile("size((true ? tenant : user) + tenant + tenant + tenant)").is_ok());
    }

    #[test]
    fn the_longest_number_as_text_stays_within_its_bound() {
        for value in [f64::MAX, f64::MIN, f64::MIN_POSITIVE, -5e-324, 1.0 / 3.0] {
            assert!(
                value.to_string().len()
                    <= typed_expr::TextExpr::FromDouble(typed_expr::DoubleExpr::Literal(value).into()).max_bytes()
            );
        }
    }

    #[test]
    fn an_expression_is_shared_between_threads() {
        fn shared<T: Clone + Send + Sync>(_: &T) {}
        shared(&Expression::compile("1").unwrap());
    }

    /// A random CEL expression with an integer result, without constructs that CEL leaves undefined or that differ here.
    ///
    /// If both operands fail, the reference interpreter reports the error of the right one. So the left operand never
    /// overflows if the right one may fail: the overflow would not be reported, and the results could not be compared.
    fn random_cost() -> impl Strategy<Value = String> {
        let number = prop_oneof![
            any::<i64>().prop_map(|number| number.max(i64::MIN + 1).to_string()),
            (-3..4_i64).prop_map(|number| number.to_string()),
            Just("size(tenant)".to_owned()),
            Just("int(user)".to_owned()),
            Just("int(attr[\"rows\"])".to_owned()),
            Just("int(double(attr.rows))".to_owned()),
        ];
        number.prop_recursive(4, 24, 3, |inner| {
            let pair = (inner.clone(), prop::sample::select(vec!["+", "-", "*", "/", "%"]), inner.clone());
            let signs = prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
            let compared = (inner.clone(), signs, inner.clone()).prop_map(|(a, sign, b)| format!("{a} {sign} {b}"));
            let connectives = || prop::sample::select(vec!["&&", "||"]);
            let sound = vec!["tenant > user", "!tenant.contains(\"1\")", "tenant + user == '12'"];
            let sound = (compared.clone(), connectives(), prop::sample::select(sound));
            let failing =
                (prop::sample::select(vec!["1 / int(tenant) == 1", "int(tenant) > 0"]), connectives(), compared);
            let test = prop_oneof![
                sound.prop_map(|(a, and, b)| format!("{a} {and} {b}")),
                failing.prop_map(|(a, and, b)| format!("{a} {and} {b}")),
            ];
            let chosen = (test, inner.clone(), inner.clone());
            prop_oneof![
                pair.prop_map(|(left, sign, right)| format!("({left} {sign} {right})")),
                inner.prop_map(|inner| format!("int(string(-({inner})))")),
                chosen.prop_map(|(test, a, b)| format!("({test} ? {a} : {b})")),
            ]
        })
    }

    proptest! {
        /// Our evaluator agrees with the interpreter of the crate `cel`, except where that one rejects an operation on a number.
        #[test]
        fn a_cost_equals_the_result_of_the_cel_interpreter(
            text in random_cost(), tenant in "[0-2]{0,2}", user in "-?[0-9]{1,2}", rows in "[0-9]{0,3}",
        ) {
            let ours = match Expression::compile(&text) {
                Ok(expression) => evaluate(&expression, &[("tenant", &tenant), ("user", &user), ("attr:rows", &rows)]).ok(),
                Err(error) if error.problem.starts_with("this always fails") => None,
                Err(error) if error.problem.contains("the maximum is 1024") => return Ok(()),
                Err(error) => panic!("{text}: {error:?}"),
            };
            let theirs = thread::Builder::new().stack_size(32 * 1024 * 1024).spawn(move || {
                let mut context = cel::Context::default();
                context.add_variable_from_value("tenant", tenant);
                context.add_variable_from_value("user", user);
                context.add_variable_from_value("attr", HashMap::from([("rows", rows)]));
                cel::Program::compile(&text).unwrap().execute(&context)
            });
            match theirs.unwrap().join().unwrap() {
                Err(cel::ExecutionError::Overflow(..)) => {}
                theirs => prop_assert_eq!(ours.map(cel::Value::Int), theirs.ok()),
            }
        }
    }

    /// Compiles, and evaluates with awkward values if it can.
    fn survive(text: &str) {
        match Expression::compile(text) {
            Ok(expression) => {
                for value in [None, Some(""), Some("-9223372036854775808"), Some("1e308"), Some("ß")] {
                    let _ = expression.evaluate(&|_| value.map(Cow::Borrowed));
                }
            }
            Err(error) => assert!(text.is_char_boundary(error.offset), "{text:?}: {error:?}"),
        }
    }

    #[test]
    fn no_text_panics() {
        bolero::check!().with_type::<String>().for_each(|text: &String| survive(text));
    }

    #[test]
    fn no_sequence_of_keywords_panics() {
        const WORDS: [&str; 64] = [
            "1",
            "0",
            "2.5",
            "9223372036854775807",
            "1u",
            "'é'",
            "\"rows\"",
            "true",
            "false",
            "null",
            "tenant",
            "user",
            "attr",
            "request",
            ".method",
            ".headers",
            ".size",
            ".query",
            "['a']",
            "[",
            "]",
            "(",
            ")",
            "(",
            ")",
            "{",
            "}",
            ",",
            "+",
            "-",
            "*",
            "/",
            "%",
            "==",
            "!=",
            "<",
            "<=",
            ">",
            ">=",
            "&&",
            "||",
            "!",
            "?",
            ":",
            "size(",
            "int(",
            "double(",
            "string(",
            "min(",
            "max(",
            ".startsWith(",
            ".contains(",
            ".endsWith(",
            ".size()",
            "has(",
            ".all(x, ",
            "in",
            " ",
            "\n",
            "// x\n",
            "`a`",
            ".?a",
            "if",
            "é",
        ];
        bolero::check!().with_type::<Vec<u8>>().for_each(|choices: &Vec<u8>| {
            let text: String = choices.iter().map(|choice| WORDS[usize::from(*choice) % WORDS.len()]).collect();
            survive(&text);
        });
    }
}
