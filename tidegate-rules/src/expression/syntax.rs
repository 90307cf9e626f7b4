//! The syntax of expressions: a recursive descent parser for the part of CEL that a cost needs, with CEL's precedence.
//!
//! It must not know names, functions and types. What CEL has and a cost has not (lists, maps, messages, bytes, unsigned numbers,
//! null, optional fields) is an error at the position where it begins. It calls itself only for what is in brackets and for the
//! last part of `? :`, at most [`MAX_DEPTH`] levels deep.

use std::ops::RangeBounds;

use super::token::{Token, TokenKind, Tokens};
use super::typed_expr::{Arithmetic, Comparison};
use super::{ExpressionError, MAX_DEPTH, too_deep};

/// An expression as it is written.
#[derive(Debug)]
pub(super) struct Syntax<'t> {
    /// The position of its token: an operator, a literal, a name, the name of a field or function.
    pub(super) offset: usize,
    /// The position where it begins.
    pub(super) start: usize,
    pub(super) kind: SyntaxKind<'t>,
}

#[derive(Debug)]
pub(super) enum SyntaxKind<'t> {
    Int(i64),
    Double(f64),
    Text(String),
    Bool(bool),
    /// A name, with the dot before it if there is one.
    Name(&'t str),
    /// `operand.field`
    Field(Box<Syntax<'t>>, &'t str),
    /// `operand[key]`
    Key(Box<(Syntax<'t>, Syntax<'t>)>),
    /// `name(arguments)` or `target.name(arguments)`
    Call(Option<Box<Syntax<'t>>>, &'t str, Vec<Syntax<'t>>),
    Not(Box<Syntax<'t>>),
    Negate(Box<Syntax<'t>>),
    Binary(BinaryOperator, Box<(Syntax<'t>, Syntax<'t>)>),
    /// `test ? then : otherwise`
    Choice(Box<[Syntax<'t>; 3]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BinaryOperator {
    Or,
    And,
    Compare(Comparison),
    Calculate(Arithmetic),
    Remainder,
}

/// Operators by symbol and precedence: from 0, which binds least.
const OPERATORS: [(&str, usize, BinaryOperator); 13] = [
    ("||", 0, BinaryOperator::Or),
    ("&&", 1, BinaryOperator::And),
    ("==", 2, BinaryOperator::Compare(Comparison::Equal)),
    ("!=", 2, BinaryOperator::Compare(Comparison::NotEqual)),
    ("<", 2, BinaryOperator::Compare(Comparison::Less)),
    ("<=", 2, BinaryOperator::Compare(Comparison::AtMost)),
    (">", 2, BinaryOperator::Compare(Comparison::More)),
    (">=", 2, BinaryOperator::Compare(Comparison::AtLeast)),
    ("+", 3, BinaryOperator::Calculate(Arithmetic::Add)),
    ("-", 3, BinaryOperator::Calculate(Arithmetic::Subtract)),
    ("*", 4, BinaryOperator::Calculate(Arithmetic::Multiply)),
    ("/", 4, BinaryOperator::Calculate(Arithmetic::Divide)),
    ("%", 4, BinaryOperator::Remainder),
];

/// The help for what a cost cannot be computed from.
const ONLY_SCALARS: &str = "a cost is computed from numbers, texts, true and false";

/// Words that CEL keeps for later.
const RESERVED: &str =
    "as break const continue else for function if import let loop package namespace return var void while";

/// Words that are no names, not even of fields.
const KEYWORDS: [&str; 4] = ["in", "true", "false", "null"];

type SyntaxResult<'t> = Result<Syntax<'t>, ExpressionError>;

/// One pass over a text.
struct Parser<'t> {
    text: &'t str,
    tokens: Tokens<'t>,
    /// The token that is not consumed yet.
    next: Token<'t>,
    depth: usize,
}

/// Parses `text`.
pub(super) fn parse(text: &str) -> SyntaxResult<'_> {
    let mut tokens = Tokens::new(text);
    let mut parser = Parser { text, next: tokens.next()?, tokens, depth: 0 };
    let expr = parser.expr()?;
    if parser.next.kind == TokenKind::End { Ok(expr) } else { Err(parser.unexpected()) }
}

// === impl Parser ===

impl<'t> Parser<'t> {
    /// A whole expression: `or ? or : expr`.
    fn expr(&mut self) -> SyntaxResult<'t> {
        let test = self.binary(0)?;
        let offset = self.next.offset;
        if !self.take("?")? {
            return Ok(test);
        }
        let then = self.binary(0)?;
        self.expect(":")?;
        let otherwise = self.nested()?;
        Ok(Syntax { offset, start: test.start, kind: SyntaxKind::Choice(Box::new([test, then, otherwise])) })
    }

    /// An expression inside another one.
    fn nested(&mut self) -> SyntaxResult<'t> {
        if self.depth == MAX_DEPTH {
            return Err(too_deep(self.next.offset));
        }
        self.depth += 1;
        let expr = self.expr()?;
        self.depth -= 1;
        Ok(expr)
    }

    /// Operands with operators of at least this precedence between them.
    fn binary(&mut self, min_precedence: usize) -> SyntaxResult<'t> {
        let mut tree = self.unary()?;
        while let Some((operator, precedence, offset)) = self.take_operator(min_precedence..)? {
            let right = self.binary(precedence + 1)?;
            if !matches!(operator, BinaryOperator::Or | BinaryOperator::And) {
                tree = binary(operator, offset, tree, right);
                continue;
            }
            let mut chain = vec![(offset, right)];
            while let Some((_, _, offset)) = self.take_operator(precedence..=precedence)? {
                chain.push((offset, self.binary(precedence + 1)?));
            }
            tree = balance(operator, tree, chain);
        }
        Ok(tree)
    }

    /// A member after any number of `!`, or after any number of `-`. Two of them cancel out.
    fn unary(&mut self) -> SyntaxResult<'t> {
        let (first, mut count) = (self.next, 0);
        let sign = if self.is("!") { "!" } else { "-" };
        while self.take(sign)? {
            count += 1;
        }
        // The smallest whole number is one literal, since without its sign it is out of range.
        let is_literal = sign == "-" && count == 1 && matches!(self.next.kind, TokenKind::Int | TokenKind::Double);
        let operand = self.primary(is_literal)?;
        let start = if is_literal { first.offset } else { operand.start };
        let operand = self.members(Syntax { start, ..operand })?;
        if is_literal || count % 2 == 0 {
            return Ok(operand);
        }
        let kind = if sign == "!" { SyntaxKind::Not } else { SyntaxKind::Negate };
        Ok(Syntax { offset: first.offset, start: first.offset, kind: kind(Box::new(operand)) })
    }

    /// A literal, a name, a call of a function, or an expression in brackets.
    fn primary(&mut self, negative: bool) -> SyntaxResult<'t> {
        let token = self.next;
        let kind = match (token.kind, token.text) {
            (TokenKind::Int, number) if number.ends_with(['u', 'U']) => {
                return Err(self.refused("unsigned numbers are not supported", "write the number without `u`"));
            }
            (TokenKind::Int, _) => SyntaxKind::Int(token.int(negative)?),
            (TokenKind::Double, _) => SyntaxKind::Double(if negative { -token.double()? } else { token.double()? }),
            (TokenKind::Text, text) if text.starts_with(['b', 'B']) => {
                return Err(self.refused("bytes are not supported", "write the text without `b`"));
            }
            (TokenKind::Text, _) => SyntaxKind::Text(token.unquoted()?),
            (TokenKind::Word, "true" | "false") => SyntaxKind::Bool(token.text == "true"),
            (TokenKind::Word, "null") => {
                return Err(self.refused("there is no null", "a missing attribute is an empty text: \"\""));
            }
            (TokenKind::Symbol, "(") => {
                self.advance()?;
                let expr = self.nested()?;
                self.expect(")")?;
                return Ok(expr);
            }
            (TokenKind::Symbol, "[") => return Err(self.refused("lists are not supported", ONLY_SCALARS)),
            (TokenKind::Symbol, "{") => return Err(self.refused("maps are not supported", ONLY_SCALARS)),
            (TokenKind::Word, _) | (TokenKind::Symbol, ".") => return self.name(),
            _ => return Err(self.unexpected()),
        };
        self.advance()?;
        Ok(Syntax { offset: token.offset, start: token.offset, kind })
    }

    /// A name, or the call of a function.
    fn name(&mut self) -> SyntaxResult<'t> {
        let start = self.next.offset;
        self.take(".")?;
        let word = self.word()?;
        if RESERVED.split(' ').any(|reserved| reserved == word.text) {
            let problem = format!("`{}` is a reserved word", word.text);
            return Err(ExpressionError::new(word.offset, problem).help("choose with `… ? … : …`"));
        }
        let name = &self.text[start..word.offset + word.text.len()];
        if self.is("(") {
            let arguments = self.arguments()?;
            return Ok(Syntax { offset: start, start, kind: SyntaxKind::Call(None, name, arguments) });
        }
        Ok(Syntax { offset: word.offset, start: word.offset, kind: SyntaxKind::Name(name) })
    }

    /// The fields, keys and calls after `operand`.
    fn members(&mut self, mut operand: Syntax<'t>) -> SyntaxResult<'t> {
        loop {
            let (start, sign) = (operand.start, self.next);
            if self.take("[")? {
                self.refuse_optional(sign.offset)?;
                let key = self.nested()?;
                self.expect("]")?;
                operand = Syntax { offset: sign.offset, start, kind: SyntaxKind::Key(Box::new((operand, key))) };
            } else if self.take(".")? {
                self.refuse_optional(sign.offset)?;
                let word = self.word()?;
                let kind = if self.is("(") {
                    SyntaxKind::Call(Some(Box::new(operand)), word.text, self.arguments()?)
                } else {
                    SyntaxKind::Field(Box::new(operand), word.text)
                };
                operand = Syntax { offset: word.offset, start, kind };
            } else if self.is("{") && matches!(operand.kind, SyntaxKind::Name(_) | SyntaxKind::Field(..)) {
                return Err(self.refused("messages are not supported", ONLY_SCALARS));
            } else {
                return Ok(operand);
            }
        }
    }

    /// `(expr, expr, …)`
    fn arguments(&mut self) -> Result<Vec<Syntax<'t>>, ExpressionError> {
        self.expect("(")?;
        let mut arguments = Vec::new();
        if !self.is(")") {
            arguments.push(self.nested()?);
            while self.take(",")? {
                arguments.push(self.nested()?);
            }
        }
        self.expect(")")?;
        Ok(arguments)
    }

    fn word(&mut self) -> Result<Token<'t>, ExpressionError> {
        let word = self.next;
        if word.kind != TokenKind::Word || KEYWORDS.contains(&word.text) {
            return Err(self.unexpected());
        }
        self.advance()?;
        Ok(word)
    }

    /// Consumes an operator of such a precedence, and returns both with its position.
    fn take_operator(
        &mut self,
        precedences: impl RangeBounds<usize>,
    ) -> Result<Option<(BinaryOperator, usize, usize)>, ExpressionError> {
        let Token { kind, text, offset } = self.next;
        if (kind, text) == (TokenKind::Word, "in") {
            return Err(self.refused("`in` needs lists, which are not supported", ONLY_SCALARS));
        }
        let found = OPERATORS.iter().find(|(symbol, ..)| kind == TokenKind::Symbol && *symbol == text);
        match found {
            Some((_, precedence, operator)) if precedences.contains(precedence) => {
                self.advance()?;
                Ok(Some((*operator, *precedence, offset)))
            }
            _ => Ok(None),
        }
    }
}

/// Tokens and errors
impl Parser<'_> {
    fn is(&self, symbol: &str) -> bool {
        self.next.kind == TokenKind::Symbol && self.next.text == symbol
    }

    /// Consumes `symbol` if it is next.
    fn take(&mut self, symbol: &str) -> Result<bool, ExpressionError> {
        let is_next = self.is(symbol);
        if is_next {
            self.advance()?;
        }
        Ok(is_next)
    }

    fn expect(&mut self, symbol: &str) -> Result<(), ExpressionError> {
        if self.take(symbol)? { Ok(()) } else { Err(self.unexpected()) }
    }

    fn advance(&mut self) -> Result<(), ExpressionError> {
        self.next = self.tokens.next()?;
        Ok(())
    }

    fn refused(&self, problem: &str, help: &str) -> ExpressionError {
        ExpressionError::new(self.next.offset, problem).help(help)
    }

    /// An error if `sign`, a dot or a bracket, is followed by what names an optional field or one with special characters.
    fn refuse_optional(&self, sign: usize) -> Result<(), ExpressionError> {
        if !self.is("?") && !self.is("`") {
            return Ok(());
        }
        let help = "write a name with special characters in brackets: attr[\"a-b\"]; a missing value is an empty text";
        Err(ExpressionError::new(sign, "backquotes and optional fields are not supported").help(help))
    }

    fn unexpected(&self) -> ExpressionError {
        let problem = match self.next.kind {
            TokenKind::End => return self.refused("the expression ends too early", "something is missing here"),
            TokenKind::Text => "a text is not expected here".to_owned(),
            _ => format!("`{}` is not expected here", self.next.text),
        };
        let error = ExpressionError::new(self.next.offset, problem);
        match instead(self.next.text) {
            Some(help) => error.help(help),
            None => error,
        }
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

fn binary<'t>(operator: BinaryOperator, offset: usize, left: Syntax<'t>, right: Syntax<'t>) -> Syntax<'t> {
    Syntax { offset, start: left.start, kind: SyntaxKind::Binary(operator, Box::new((left, right))) }
}

/// A tree of least depth for `first` and what follows the operators at these positions: a long chain of `&&` is not deep.
fn balance<'t>(operator: BinaryOperator, first: Syntax<'t>, mut chain: Vec<(usize, Syntax<'t>)>) -> Syntax<'t> {
    if chain.is_empty() {
        return first;
    }
    let mut right = chain.split_off(chain.len() / 2).into_iter();
    let left = balance(operator, first, chain);
    match right.next() {
        Some((offset, middle)) => binary(operator, offset, left, balance(operator, middle, right.collect())),
        None => left,
    }
}

// === impl BinaryOperator ===

impl BinaryOperator {
    /// Its spelling.
    pub(super) fn symbol(self) -> &'static str {
        OPERATORS.iter().find(|(_, _, operator)| *operator == self).map_or("", |(symbol, ..)| symbol)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use cel::common::ast::{Expr, IdedExpr, LiteralValue, operators};
    use proptest::prelude::*;

    use super::*;

    /// The tree in brackets, with CEL's names of operators.
    fn text_of(syntax: &Syntax<'_>) -> String {
        let call = |name: &str, parts: &[&Syntax<'_>]| {
            parts.iter().fold(format!("({name}"), |text, part| format!("{text} {}", text_of(part))) + ")"
        };
        match &syntax.kind {
            SyntaxKind::Int(value) => value.to_string(),
            SyntaxKind::Double(value) => format!("{value:?}"),
            SyntaxKind::Text(value) => format!("{value:?}"),
            SyntaxKind::Bool(value) => value.to_string(),
            SyntaxKind::Name(name) => name.split_whitespace().collect(),
            SyntaxKind::Field(operand, field) => call(&format!(".{field}"), &[operand]),
            SyntaxKind::Key(pair) => call("_[_]", &[&pair.0, &pair.1]),
            SyntaxKind::Call(target, name, arguments) => {
                let name: String = name.split_whitespace().collect();
                let name = if target.is_some() { format!("{name} of") } else { name };
                call(&name, &target.iter().map(Box::as_ref).chain(arguments).collect::<Vec<_>>())
            }
            SyntaxKind::Not(operand) => call("!_", &[operand]),
            SyntaxKind::Negate(operand) => call("-_", &[operand]),
            SyntaxKind::Binary(operator, pair) => call(&format!("_{}_", operator.symbol()), &[&pair.0, &pair.1]),
            SyntaxKind::Choice(parts) => call("_?_:_", &parts.iter().collect::<Vec<_>>()),
        }
    }

    /// The same for a tree of the crate `cel`. None if it has something that is an error here.
    fn text_of_cel(tree: &IdedExpr) -> Option<String> {
        let call = |name: &str, parts: &[&IdedExpr]| {
            let parts: Option<Vec<_>> = parts.iter().map(|part| text_of_cel(part)).collect();
            Some(parts?.iter().fold(format!("({name}"), |text, part| format!("{text} {part}")) + ")")
        };
        match &tree.expr {
            Expr::Literal(LiteralValue::Int(value)) => Some(value.inner().to_string()),
            Expr::Literal(LiteralValue::Double(value)) => Some(format!("{:?}", value.inner())),
            Expr::Literal(LiteralValue::String(value)) => Some(format!("{:?}", value.inner())),
            Expr::Literal(LiteralValue::Boolean(value)) => Some(value.inner().to_string()),
            Expr::Ident(name) => Some(name.clone()),
            Expr::Select(select) => call(&format!(".{}", select.field), &[&select.operand]),
            Expr::Call(contained) if contained.func_name == operators::IN => None,
            Expr::Call(called) => {
                let name = &called.func_name;
                let name = if called.target.is_some() { format!("{name} of") } else { name.clone() };
                call(&name, &called.target.iter().map(Box::as_ref).chain(&called.args).collect::<Vec<_>>())
            }
            _ => None,
        }
    }

    /// Compares with the parser of the crate `cel`, which needs a deep stack.
    fn compare(text: &str) {
        let ours = parse(text).map(|syntax| text_of(&syntax));
        let theirs = thread::scope(|scope| {
            let parse = || {
                let parser = cel::Env::default().with_optional_support(false).parser();
                parser.max_recursion_depth(MAX_DEPTH as u16).parse(text).map(|tree| text_of_cel(&tree))
            };
            thread::Builder::new().stack_size(32 * 1024 * 1024).spawn_scoped(scope, parse).unwrap().join().unwrap()
        });
        match (ours, theirs) {
            (Ok(ours), Ok(Some(theirs))) => assert_eq!(ours, theirs, "{text}"),
            (Err(_), Err(_) | Ok(None)) => {}
            // `!` needs true or false.
            (Err(_), Ok(Some(_))) if text.contains("!-") || text.contains("! -") => {}
            (ours, theirs) => panic!("{text}: {ours:?}, but the crate has {theirs:?}"),
        }
    }

    /// An expression with any spaces, brackets and literals, which need not have a type.
    fn random_expression() -> impl Strategy<Value = String> {
        let word =
            prop::sample::select(vec!["tenant", ".a", "_x1", "if", "in", "true", "r", "b", "u", "e1", "xor", "null"]);
        let number = prop_oneof![
            any::<i64>().prop_map(|number| number.to_string()),
            any::<f64>().prop_map(|number| format!("{number:e}")),
            "[0-9]{1,3}(\\.[0-9]{0,2})?([eE][+-]?[0-9]{0,2})?u?",
            "-{0,3} ?(0x[0-9a-fA-F]{0,4}|\\.[0-9]{1,2}|9223372036854775808)",
        ];
        let text = prop_oneof![
            "[rRbB]{0,2}('[^'\\\\]{0,3}'|\"[^\"\\\\]{0,3}\")",
            "[rR]?('(\\\\[abfnrtv'\"`?\\\\]|x){0,3}'|'''(\\\\\\\\|'|\n|\r|x){0,4}''')",
            "'\\\\(x[0-9a-g]{2}|[0-4][0-8]{2}|u[0-9a-f]{4}|U0001[0-9a-f]{4}|q)'",
        ];
        let leaf = prop_oneof![word.prop_map(str::to_owned), number, text, Just("1".to_owned())];
        leaf.prop_recursive(5, 32, 3, |inner| {
            let sign = prop::sample::select(vec![
                "+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", " in ", " ", "=", "&", ",",
            ]);
            let chain = prop::collection::vec((sign, inner.clone()), 1..6);
            prop_oneof![
                4 => (inner.clone(), chain).prop_map(|(first, chain)| {
                    chain.into_iter().fold(first, |text, (sign, operand)| text + sign + &operand)
                }),
                1 => (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("{a} ? {b} : {c}")),
                1 => inner.clone().prop_map(|inner| format!("({inner} )")),
                1 => ("[-!]{1,3} ?", inner.clone()).prop_map(|(signs, inner)| signs + &inner),
                1 => (inner.clone(), "\\.(a|size|in|\\?b|`c`| d|1)").prop_map(|(inner, field)| inner + &field),
                1 => (inner.clone(), inner.clone()).prop_map(|(target, key)| format!("{target}[{key}]")),
                1 => (inner.clone(), prop::collection::vec(inner.clone(), 0..3))
                    .prop_map(|(name, arguments)| format!("{name}({})", arguments.join(", "))),
                1 => inner.prop_map(|inner| format!("{inner} // a remark\n")),
            ]
        })
    }

    proptest! {
        #[test]
        fn an_expression_has_the_same_tree_as_in_the_crate_cel(text in random_expression()) {
            compare(&text);
        }

        #[test]
        fn any_text_is_accepted_exactly_if_the_crate_cel_accepts_it(
            text in "[ \t\n(),.?:!<>=&|+*/%'\"0-9a-c\\[\\]{}`\\\\é-]{0,12}",
        ) {
            compare(&text);
        }
    }

    #[test]
    fn a_chain_of_connectives_has_the_same_tree_as_in_the_crate_cel() {
        for length in 1..40 {
            compare(&vec!["a"; length].join(" && "));
            compare(&(vec!["a"; length].join(" || ") + " && b"));
        }
    }
}
