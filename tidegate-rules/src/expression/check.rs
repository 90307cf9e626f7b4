//! The check of an expression: from CEL's syntax tree to our [`Tree`], which has types, or to what is wrong and where.
//!
//! Must not compute a value and must not see a request.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, SourceInfo, operators};
use smol_str::SmolStr;

use super::names::{self, Group, Name};
use super::tree::{Arithmetic, Bool, Choice, Comparison, Double, Int, Text, Tree};
use super::{DEEPEST, ExpressionError, too_deep};

/// The longest text that an expression may put together, in bytes.
pub(super) const LONGEST_TEXT: usize = 16 * 1024;

/// One pass over a syntax tree.
pub(super) struct Check<'t> {
    text: &'t str,
    places: &'t SourceInfo,
    reads: Vec<SmolStr>,
}

/// Either a value, or a group such as `request.headers`, of which a member must follow.
enum Operand {
    Value(Tree),
    Group(Group),
}

type Checked<T> = Result<T, ExpressionError>;

impl<'t> Check<'t> {
    pub(super) fn new(text: &'t str, places: &'t SourceInfo) -> Self {
        Self { text, places, reads: Vec::new() }
    }

    /// The tree of a cost, and the attributes that it reads, each once.
    pub(super) fn cost(mut self, expr: &IdedExpr) -> Checked<(Int, Vec<SmolStr>)> {
        match self.value(expr, 1)? {
            Tree::Int(cost) => Ok((cost, self.reads)),
            other => {
                let help = match other {
                    Tree::Bool(_) => "choose a number with `… ? 1 : 0`",
                    _ => "wrap it in int(…)",
                };
                let problem = format!("this is {}, and a cost is a whole number", other.type_name());
                Err(ExpressionError::new(self.start(expr), problem).help(help))
            }
        }
    }

    fn value(&mut self, expr: &IdedExpr, depth: usize) -> Checked<Tree> {
        match self.operand(expr, depth)? {
            Operand::Value(tree) => Ok(tree),
            Operand::Group(group) => {
                let (name, example) = group.spelling();
                let problem = format!("`{name}` is a group, not a value");
                Err(ExpressionError::new(self.start(expr), problem)
                    .help(format!("name one of it, such as `{example}`")))
            }
        }
    }

    fn operand(&mut self, expr: &IdedExpr, depth: usize) -> Checked<Operand> {
        if depth > DEEPEST {
            return Err(too_deep(self.start(expr)));
        }
        match &expr.expr {
            Expr::Literal(literal) => Ok(Operand::Value(self.literal(expr, literal)?)),
            Expr::Ident(word) => match Name::root(word) {
                Some(name) => Ok(self.named(name)),
                None => Err(ExpressionError::new(self.place(expr), format!("there is no name `{word}`"))
                    .help(names::instead_of_name(word))),
            },
            Expr::Select(select) => {
                let place = after_dot(self.text, self.place(expr));
                let operand = self.operand(&select.operand, depth + 1)?;
                self.member(operand, &select.field, place)
            }
            Expr::Call(call) if call.func_name == operators::INDEX => self.index(expr, call, depth),
            Expr::Call(call) => Ok(Operand::Value(self.call(expr, call, depth)?)),
            Expr::List(_) => Err(self.refused(expr, "lists are not offered")),
            Expr::Map(_) => Err(self.refused(expr, "maps are not offered")),
            Expr::Struct(_) => Err(self.refused(expr, "messages are not offered")),
            Expr::Comprehension(_) | Expr::Unspecified => Err(self.refused(expr, "this is not offered")),
        }
    }

    fn literal(&self, expr: &IdedExpr, literal: &LiteralValue) -> Checked<Tree> {
        let refused = |problem: &str, help: &str| Err(ExpressionError::new(self.place(expr), problem).help(help));
        match literal {
            LiteralValue::Int(value) => Ok(Tree::Int(Int::Literal(*value.inner()))),
            LiteralValue::Double(value) => Ok(Tree::Double(Double::Literal(*value.inner()))),
            LiteralValue::String(value) => Ok(Tree::Text(Text::Literal(value.inner().into()))),
            LiteralValue::Boolean(value) => Ok(Tree::Bool(Bool::Literal(*value.inner()))),
            LiteralValue::UInt(_) => refused("unsigned numbers are not offered", "write the number without `u`"),
            LiteralValue::Bytes(_) => refused("bytes are not offered", "write the text without `b`"),
            LiteralValue::Null => refused("there is no null", "a missing attribute is an empty text: \"\""),
        }
    }

    /// Notes what a name reads.
    fn named(&mut self, name: Name) -> Operand {
        if let Some(attribute) = name.attribute()
            && !self.reads.contains(&attribute)
        {
            self.reads.push(attribute);
        }
        match name {
            Name::Text(attribute) => Operand::Value(Tree::Text(Text::Attribute(attribute))),
            Name::Size => Operand::Value(Tree::Int(Int::Size)),
            Name::Group(group) => Operand::Group(group),
        }
    }

    fn member(&mut self, operand: Operand, word: &str, place: usize) -> Checked<Operand> {
        let group = match operand {
            Operand::Group(group) => group,
            Operand::Value(tree) => {
                let problem = format!("this is {}, which has no fields and no keys", tree.type_name());
                return Err(ExpressionError::new(place, problem));
            }
        };
        match group.member(word) {
            Ok(name) => Ok(self.named(name)),
            Err((problem, help)) => Err(ExpressionError::new(place, problem).help(help)),
        }
    }

    fn index(&mut self, expr: &IdedExpr, call: &CallExpr, depth: usize) -> Checked<Operand> {
        let [target, key] = call.args.as_slice() else { return Err(self.refused(expr, "this is not offered")) };
        let operand = self.operand(target, depth + 1)?;
        match &key.expr {
            Expr::Literal(LiteralValue::String(word)) => self.member(operand, word.inner(), self.place(key)),
            _ => Err(ExpressionError::new(self.start(key), "the key must be a text in quotes")
                .help("it must be known at load which attributes an expression reads")),
        }
    }

    fn call(&mut self, expr: &IdedExpr, call: &CallExpr, depth: usize) -> Checked<Tree> {
        let name = call.func_name.as_str();
        match (&call.target, call.args.as_slice()) {
            (None, [test, then, otherwise]) if name == operators::CONDITIONAL => {
                self.choice(expr, [test, then, otherwise], depth)
            }
            (None, [operand]) if name == operators::NEGATE || name == operators::LOGICAL_NOT => {
                let operand = self.value(operand, depth + 1)?;
                self.unary(expr, name, operand)
            }
            (None, [_, _]) if name == operators::IN => {
                Err(self.refused(expr, "`in` needs lists, which are not offered"))
            }
            (None, [left, right]) if is_operator(name) => {
                let (left, right) = (self.value(left, depth + 1)?, self.value(right, depth + 1)?);
                self.binary(expr, name, left, right)
            }
            _ => self.function(expr, call, depth),
        }
    }

    fn choice(&mut self, expr: &IdedExpr, [test, then, otherwise]: [&IdedExpr; 3], depth: usize) -> Checked<Tree> {
        let place = self.start(test);
        let test = match self.value(test, depth + 1)? {
            Tree::Bool(test) => test,
            other => {
                let problem = format!("the condition before `?` is {}, not true or false", other.type_name());
                return Err(ExpressionError::new(place, problem).help("compare it with something"));
            }
        };
        Ok(match (self.value(then, depth + 1)?, self.value(otherwise, depth + 1)?) {
            (Tree::Int(then), Tree::Int(otherwise)) => Tree::Int(Int::If(Box::new(Choice { test, then, otherwise }))),
            (Tree::Double(then), Tree::Double(otherwise)) => {
                Tree::Double(Double::If(Box::new(Choice { test, then, otherwise })))
            }
            (Tree::Text(then), Tree::Text(otherwise)) => {
                Tree::Text(Text::If(Box::new(Choice { test, then, otherwise })))
            }
            (Tree::Bool(then), Tree::Bool(otherwise)) => {
                Tree::Bool(Bool::If(Box::new(Choice { test, then, otherwise })))
            }
            (then, otherwise) => return Err(self.mismatch(expr, "? :", &then, &otherwise)),
        })
    }

    fn unary(&self, expr: &IdedExpr, name: &str, operand: Tree) -> Checked<Tree> {
        match (name, operand) {
            (operators::NEGATE, Tree::Int(int)) => Ok(Tree::Int(Int::Negate(Box::new(int)))),
            (operators::NEGATE, Tree::Double(double)) => Ok(Tree::Double(Double::Negate(Box::new(double)))),
            (operators::LOGICAL_NOT, Tree::Bool(bool)) => Ok(Tree::Bool(Bool::Not(Box::new(bool)))),
            (_, operand) => {
                let (sign, wanted) = if name == operators::NEGATE { ("-", "a number") } else { ("!", "true or false") };
                let problem = format!("`{sign}` needs {wanted}, and this is {}", operand.type_name());
                Err(ExpressionError::new(self.place(expr), problem))
            }
        }
    }

    fn binary(&self, expr: &IdedExpr, name: &str, left: Tree, right: Tree) -> Checked<Tree> {
        let calculated = arithmetic(name);
        let compared = comparison(name);
        Ok(match (left, right) {
            (Tree::Int(left), Tree::Int(right)) => match (calculated, compared) {
                (Some(how), _) => Tree::Int(Int::Calculate(how, Box::new((left, right)))),
                (_, Some(how)) => Tree::Bool(Bool::Ints(how, Box::new((left, right)))),
                _ if name == operators::MODULO => Tree::Int(Int::Remainder(Box::new((left, right)))),
                _ => return Err(self.mismatch(expr, symbol(name), &Tree::Int(left), &Tree::Int(right))),
            },
            (Tree::Double(left), Tree::Double(right)) => match (calculated, compared) {
                (Some(how), _) => Tree::Double(Double::Calculate(how, Box::new((left, right)))),
                (_, Some(how)) => Tree::Bool(Bool::Doubles(how, Box::new((left, right)))),
                _ => return Err(self.mismatch(expr, symbol(name), &Tree::Double(left), &Tree::Double(right))),
            },
            (Tree::Text(left), Tree::Text(right)) => match (calculated, compared) {
                (Some(Arithmetic::Add), _) => self.join(expr, left, right)?,
                (_, Some(how)) => Tree::Bool(Bool::Texts(how, Box::new((left, right)))),
                _ => return Err(self.mismatch(expr, symbol(name), &Tree::Text(left), &Tree::Text(right))),
            },
            (Tree::Bool(left), Tree::Bool(right)) => match (name, compared) {
                (operators::LOGICAL_AND, _) => Tree::Bool(Bool::And(Box::new((left, right)))),
                (operators::LOGICAL_OR, _) => Tree::Bool(Bool::Or(Box::new((left, right)))),
                (_, Some(how)) => Tree::Bool(Bool::Bools(how, Box::new((left, right)))),
                _ => return Err(self.mismatch(expr, symbol(name), &Tree::Bool(left), &Tree::Bool(right))),
            },
            (left, right) => return Err(self.mismatch(expr, symbol(name), &left, &right)),
        })
    }

    /// Two texts in one: bounded, since every join copies.
    fn join(&self, expr: &IdedExpr, left: Text, right: Text) -> Checked<Tree> {
        let joined = Text::Join(Box::new((left, right)));
        if joined.longest() > LONGEST_TEXT {
            let problem = format!("the text may become longer than {LONGEST_TEXT} bytes");
            return Err(ExpressionError::new(self.place(expr), problem).help("join fewer attributes"));
        }
        Ok(Tree::Text(joined))
    }

    fn function(&mut self, expr: &IdedExpr, call: &CallExpr, depth: usize) -> Checked<Tree> {
        let name = call.func_name.as_str();
        let place = self.start_of_name(expr, name);
        if let Some(reason) = names::left_out(name) {
            return Err(ExpressionError::new(place, format!("`{name}` is not offered")).help(reason));
        }
        let Some(signature) = names::signature(name) else {
            let problem = format!("there is no function `{name}`");
            return Err(ExpressionError::new(place, problem).help(names::instead_of_function(name)));
        };
        let mut arguments = Vec::with_capacity(2);
        for argument in call.target.iter().map(Box::as_ref).chain(&call.args) {
            // No function takes more, so that the first one too many ends the work.
            if arguments.len() < 3 {
                arguments.push(self.value(argument, depth + 1)?);
            }
        }
        let types: Vec<_> = arguments.iter().map(Tree::type_name).collect();
        let got = if types.is_empty() { "nothing".to_owned() } else { types.join(" and ") };
        apply(name, call.target.is_some(), arguments).ok_or_else(|| {
            let problem = format!("`{name}` is not called like this; it got {got}");
            ExpressionError::new(place, problem).help(format!("write `{signature}`"))
        })
    }
}

/// What is wrong, and where.
impl Check<'_> {
    fn mismatch(&self, expr: &IdedExpr, symbol: &str, left: &Tree, right: &Tree) -> ExpressionError {
        let (left, right) = (left.type_name(), right.type_name());
        let error = ExpressionError::new(self.place(expr), format!("`{symbol}` does not fit {left} and {right}"));
        match symbol {
            "&&" | "||" => error.help("both sides must be true or false: compare them with something"),
            _ if left == right => error,
            _ => error.help("make them alike with int(…), double(…) or string(…)"),
        }
    }

    fn refused(&self, expr: &IdedExpr, problem: &str) -> ExpressionError {
        ExpressionError::new(self.place(expr), problem).help("a cost is computed from numbers, texts, true and false")
    }

    /// Where the sign of this node stands: an operator, a dot, an opening bracket, a literal, a name.
    fn place(&self, expr: &IdedExpr) -> usize {
        self.places.offset_for(expr.id).map_or(0, |(start, _)| start as usize)
    }

    /// Where the text of this node begins.
    fn start(&self, expr: &IdedExpr) -> usize {
        match &expr.expr {
            Expr::Select(select) => self.start(&select.operand),
            Expr::Call(CallExpr { target: Some(target), .. }) => self.start(target),
            Expr::Call(call) if call.args.len() > 1 && is_operator(&call.func_name) => self.start(&call.args[0]),
            Expr::Call(call) => self.start_of_name(expr, &call.func_name),
            _ => self.place(expr),
        }
    }

    /// Where the name before the opening bracket of a call begins.
    fn start_of_name(&self, expr: &IdedExpr, name: &str) -> usize {
        let bracket = self.place(expr);
        let before = self.text.get(..bracket).unwrap_or_default().trim_end();
        before.strip_suffix(name).map_or(bracket, str::len)
    }
}

impl Tree {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Int(_) => "a whole number",
            Self::Double(_) => "a decimal number",
            Self::Text(_) => "text",
            Self::Bool(_) => "true or false",
        }
    }
}

/// The function `name` on these arguments, if it takes them.
fn apply(name: &str, as_method: bool, arguments: Vec<Tree>) -> Option<Tree> {
    let mut arguments = arguments.into_iter();
    let tree = match (name, as_method, arguments.next()?, arguments.next()) {
        ("size", _, Tree::Text(text), None) => Tree::Int(Int::Length(Box::new(text))),
        ("int", false, Tree::Int(int), None) => Tree::Int(int),
        ("int", false, Tree::Text(text), None) => Tree::Int(Int::FromText(Box::new(text))),
        ("int", false, Tree::Double(double), None) => Tree::Int(Int::FromDouble(Box::new(double))),
        ("double", false, Tree::Double(double), None) => Tree::Double(double),
        ("double", false, Tree::Int(int), None) => Tree::Double(Double::FromInt(Box::new(int))),
        ("double", false, Tree::Text(text), None) => Tree::Double(Double::FromText(Box::new(text))),
        ("string", false, Tree::Text(text), None) => Tree::Text(text),
        ("string", false, Tree::Int(int), None) => Tree::Text(Text::FromInt(Box::new(int))),
        ("string", false, Tree::Double(double), None) => Tree::Text(Text::FromDouble(Box::new(double))),
        ("string", false, Tree::Bool(bool), None) => Tree::Text(Text::FromBool(Box::new(bool))),
        ("min", false, Tree::Int(left), Some(Tree::Int(right))) => Tree::Int(Int::Least(Box::new((left, right)))),
        ("max", false, Tree::Int(left), Some(Tree::Int(right))) => Tree::Int(Int::Greatest(Box::new((left, right)))),
        ("startsWith", true, Tree::Text(text), Some(Tree::Text(part))) => {
            Tree::Bool(Bool::StartsWith(Box::new((text, part))))
        }
        ("endsWith", true, Tree::Text(text), Some(Tree::Text(part))) => {
            Tree::Bool(Bool::EndsWith(Box::new((text, part))))
        }
        ("contains", true, Tree::Text(text), Some(Tree::Text(part))) => {
            Tree::Bool(Bool::Contains(Box::new((text, part))))
        }
        _ => return None,
    };
    arguments.next().is_none().then_some(tree)
}

fn arithmetic(name: &str) -> Option<Arithmetic> {
    match name {
        operators::ADD => Some(Arithmetic::Add),
        operators::SUBSTRACT => Some(Arithmetic::Subtract),
        operators::MULTIPLY => Some(Arithmetic::Multiply),
        operators::DIVIDE => Some(Arithmetic::Divide),
        _ => None,
    }
}

fn comparison(name: &str) -> Option<Comparison> {
    match name {
        operators::EQUALS => Some(Comparison::Equal),
        operators::NOT_EQUALS => Some(Comparison::NotEqual),
        operators::LESS => Some(Comparison::Less),
        operators::LESS_EQUALS => Some(Comparison::AtMost),
        operators::GREATER => Some(Comparison::More),
        operators::GREATER_EQUALS => Some(Comparison::AtLeast),
        _ => None,
    }
}

/// Whether CEL means an operator by this name of a call, which no function can have.
fn is_operator(name: &str) -> bool {
    name.contains(|char: char| !char.is_ascii_alphanumeric() && char != '_' && char != '.')
}

/// How an operator is written: CEL calls `+` `_+_`.
fn symbol(name: &str) -> &str {
    name.trim_matches('_')
}

/// Where the field begins after the dot at `dot`.
fn after_dot(text: &str, dot: usize) -> usize {
    let field = text.get(dot + 1..).unwrap_or_default().trim_start();
    text.len() - field.len()
}
