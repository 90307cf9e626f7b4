//! The check of an expression: from CEL's syntax tree to our [`TypedExpr`], which has types, or to what is wrong and where.
//!
//! Must not compute a value and must not see a request.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, SourceInfo, operators};
use smol_str::SmolStr;

use super::names::{self, Group, Name};
use super::typed_expr::{Arithmetic, BoolExpr, Comparison, Conditional, DoubleExpr, IntExpr, TextExpr, TypedExpr};
use super::{ExpressionError, MAX_DEPTH, too_deep};

/// The longest text that an expression may build.
pub(super) const MAX_TEXT_BYTES: usize = 16 * 1024;

/// One pass over a syntax tree.
pub(super) struct TypeChecker<'t> {
    text: &'t str,
    places: &'t SourceInfo,
    reads: Vec<SmolStr>,
}

/// A value, or a group such as `request.headers` that needs a member.
enum Operand {
    Value(TypedExpr),
    Group(Group),
}

type TypeResult<T> = Result<T, ExpressionError>;

impl<'t> TypeChecker<'t> {
    pub(super) fn new(text: &'t str, places: &'t SourceInfo) -> Self {
        Self { text, places, reads: Vec::new() }
    }

    /// The tree of a cost, and the attributes that it reads, each once.
    pub(super) fn cost(mut self, expr: &IdedExpr) -> TypeResult<(IntExpr, Vec<SmolStr>)> {
        match self.value(expr, 1)? {
            TypedExpr::Int(cost) => Ok((cost, self.reads)),
            other => {
                let help = match other {
                    TypedExpr::Bool(_) => "choose a number with `… ? 1 : 0`",
                    _ => "wrap it in int(…)",
                };
                let problem = format!("this is {}, but a cost is a whole number", other.type_name());
                Err(ExpressionError::new(self.start(expr), problem).help(help))
            }
        }
    }

    fn value(&mut self, expr: &IdedExpr, depth: usize) -> TypeResult<TypedExpr> {
        match self.operand(expr, depth)? {
            Operand::Value(tree) => Ok(tree),
            Operand::Group(group) => {
                let (name, example) = group.spelling();
                let problem = format!("`{name}` is a group, not a value");
                Err(ExpressionError::new(self.start(expr), problem).help(format!("name a member, such as `{example}`")))
            }
        }
    }

    fn operand(&mut self, expr: &IdedExpr, depth: usize) -> TypeResult<Operand> {
        if depth > MAX_DEPTH {
            return Err(too_deep(self.start(expr)));
        }
        match &expr.expr {
            Expr::Literal(literal) => Ok(Operand::Value(self.literal(expr, literal)?)),
            Expr::Ident(word) => match Name::root(word) {
                Some(name) => Ok(self.named(name)),
                None => Err(ExpressionError::new(self.offset(expr), format!("there is no name `{word}`"))
                    .help(names::instead_of_name(word))),
            },
            Expr::Select(select) => {
                let offset = after_dot(self.text, self.offset(expr));
                let operand = self.operand(&select.operand, depth + 1)?;
                self.member(operand, &select.field, offset)
            }
            Expr::Call(call) if call.func_name == operators::INDEX => self.index(expr, call, depth),
            Expr::Call(call) => Ok(Operand::Value(self.call(expr, call, depth)?)),
            Expr::List(_) => Err(self.refused(expr, "lists are not supported")),
            Expr::Map(_) => Err(self.refused(expr, "maps are not supported")),
            Expr::Struct(_) => Err(self.refused(expr, "messages are not supported")),
            Expr::Comprehension(_) | Expr::Unspecified => Err(self.refused(expr, "this is not supported")),
        }
    }

    fn literal(&self, expr: &IdedExpr, literal: &LiteralValue) -> TypeResult<TypedExpr> {
        let refused = |problem: &str, help: &str| Err(ExpressionError::new(self.offset(expr), problem).help(help));
        match literal {
            LiteralValue::Int(value) => Ok(TypedExpr::Int(IntExpr::Literal(*value.inner()))),
            LiteralValue::Double(value) => Ok(TypedExpr::Double(DoubleExpr::Literal(*value.inner()))),
            LiteralValue::String(value) => Ok(TypedExpr::Text(TextExpr::Literal(value.inner().into()))),
            LiteralValue::Boolean(value) => Ok(TypedExpr::Bool(BoolExpr::Literal(*value.inner()))),
            LiteralValue::UInt(_) => refused("unsigned numbers are not supported", "write the number without `u`"),
            LiteralValue::Bytes(_) => refused("bytes are not supported", "write the text without `b`"),
            LiteralValue::Null => refused("there is no null", "a missing attribute is an empty text: \"\""),
        }
    }

    /// Resolves a name and records what it reads.
    fn named(&mut self, name: Name) -> Operand {
        if let Some(attribute) = name.attribute()
            && !self.reads.contains(&attribute)
        {
            self.reads.push(attribute);
        }
        match name {
            Name::Text(attribute) => Operand::Value(TypedExpr::Text(TextExpr::Attribute(attribute))),
            Name::Size => Operand::Value(TypedExpr::Int(IntExpr::Size)),
            Name::Group(group) => Operand::Group(group),
        }
    }

    fn member(&mut self, operand: Operand, word: &str, offset: usize) -> TypeResult<Operand> {
        let group = match operand {
            Operand::Group(group) => group,
            Operand::Value(tree) => {
                let problem = format!("this is {}, which has no fields and no keys", tree.type_name());
                return Err(ExpressionError::new(offset, problem));
            }
        };
        match group.member(word) {
            Ok(name) => Ok(self.named(name)),
            Err((problem, help)) => Err(ExpressionError::new(offset, problem).help(help)),
        }
    }

    fn index(&mut self, expr: &IdedExpr, call: &CallExpr, depth: usize) -> TypeResult<Operand> {
        let [target, key] = call.args.as_slice() else { return Err(self.refused(expr, "this is not supported")) };
        let operand = self.operand(target, depth + 1)?;
        match &key.expr {
            Expr::Literal(LiteralValue::String(word)) => self.member(operand, word.inner(), self.offset(key)),
            _ => Err(ExpressionError::new(self.start(key), "the key must be a quoted text")
                .help("the attributes of an expression must be known at load")),
        }
    }

    fn call(&mut self, expr: &IdedExpr, call: &CallExpr, depth: usize) -> TypeResult<TypedExpr> {
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
                Err(self.refused(expr, "`in` needs lists, which are not supported"))
            }
            (None, [left, right]) if is_operator(name) => {
                let (left, right) = (self.value(left, depth + 1)?, self.value(right, depth + 1)?);
                self.binary(expr, name, left, right)
            }
            _ => self.function(expr, call, depth),
        }
    }

    fn choice(
        &mut self,
        expr: &IdedExpr,
        [test, then, otherwise]: [&IdedExpr; 3],
        depth: usize,
    ) -> TypeResult<TypedExpr> {
        let offset = self.start(test);
        let test = match self.value(test, depth + 1)? {
            TypedExpr::Bool(test) => test,
            other => {
                let problem = format!("the condition before `?` is {}, not true or false", other.type_name());
                return Err(ExpressionError::new(offset, problem).help("compare it with something"));
            }
        };
        Ok(match (self.value(then, depth + 1)?, self.value(otherwise, depth + 1)?) {
            (TypedExpr::Int(then), TypedExpr::Int(otherwise)) => {
                TypedExpr::Int(IntExpr::If(Box::new(Conditional { test, then, otherwise })))
            }
            (TypedExpr::Double(then), TypedExpr::Double(otherwise)) => {
                TypedExpr::Double(DoubleExpr::If(Box::new(Conditional { test, then, otherwise })))
            }
            (TypedExpr::Text(then), TypedExpr::Text(otherwise)) => {
                TypedExpr::Text(TextExpr::If(Box::new(Conditional { test, then, otherwise })))
            }
            (TypedExpr::Bool(then), TypedExpr::Bool(otherwise)) => {
                TypedExpr::Bool(BoolExpr::If(Box::new(Conditional { test, then, otherwise })))
            }
            (then, otherwise) => return Err(self.mismatch(expr, "? :", &then, &otherwise)),
        })
    }

    fn unary(&self, expr: &IdedExpr, name: &str, operand: TypedExpr) -> TypeResult<TypedExpr> {
        match (name, operand) {
            (operators::NEGATE, TypedExpr::Int(int)) => Ok(TypedExpr::Int(IntExpr::Negate(Box::new(int)))),
            (operators::NEGATE, TypedExpr::Double(double)) => {
                Ok(TypedExpr::Double(DoubleExpr::Negate(Box::new(double))))
            }
            (operators::LOGICAL_NOT, TypedExpr::Bool(bool)) => Ok(TypedExpr::Bool(BoolExpr::Not(Box::new(bool)))),
            (_, operand) => {
                let (sign, wanted) = if name == operators::NEGATE { ("-", "a number") } else { ("!", "true or false") };
                let problem = format!("`{sign}` needs {wanted}, but this is {}", operand.type_name());
                Err(ExpressionError::new(self.offset(expr), problem))
            }
        }
    }

    fn binary(&self, expr: &IdedExpr, name: &str, left: TypedExpr, right: TypedExpr) -> TypeResult<TypedExpr> {
        let calculated = arithmetic(name);
        let compared = comparison(name);
        Ok(match (left, right) {
            (TypedExpr::Int(left), TypedExpr::Int(right)) => match (calculated, compared) {
                (Some(how), _) => TypedExpr::Int(IntExpr::Calculate(how, Box::new((left, right)))),
                (_, Some(how)) => TypedExpr::Bool(BoolExpr::Ints(how, Box::new((left, right)))),
                _ if name == operators::MODULO => TypedExpr::Int(IntExpr::Remainder(Box::new((left, right)))),
                _ => return Err(self.mismatch(expr, symbol(name), &TypedExpr::Int(left), &TypedExpr::Int(right))),
            },
            (TypedExpr::Double(left), TypedExpr::Double(right)) => match (calculated, compared) {
                (Some(how), _) => TypedExpr::Double(DoubleExpr::Calculate(how, Box::new((left, right)))),
                (_, Some(how)) => TypedExpr::Bool(BoolExpr::Doubles(how, Box::new((left, right)))),
                _ => {
                    return Err(self.mismatch(expr, symbol(name), &TypedExpr::Double(left), &TypedExpr::Double(right)));
                }
            },
            (TypedExpr::Text(left), TypedExpr::Text(right)) => match (calculated, compared) {
                (Some(Arithmetic::Add), _) => self.join(expr, left, right)?,
                (_, Some(how)) => TypedExpr::Bool(BoolExpr::Texts(how, Box::new((left, right)))),
                _ => return Err(self.mismatch(expr, symbol(name), &TypedExpr::Text(left), &TypedExpr::Text(right))),
            },
            (TypedExpr::Bool(left), TypedExpr::Bool(right)) => match (name, compared) {
                (operators::LOGICAL_AND, _) => TypedExpr::Bool(BoolExpr::And(Box::new((left, right)))),
                (operators::LOGICAL_OR, _) => TypedExpr::Bool(BoolExpr::Or(Box::new((left, right)))),
                (_, Some(how)) => TypedExpr::Bool(BoolExpr::Bools(how, Box::new((left, right)))),
                _ => return Err(self.mismatch(expr, symbol(name), &TypedExpr::Bool(left), &TypedExpr::Bool(right))),
            },
            (left, right) => return Err(self.mismatch(expr, symbol(name), &left, &right)),
        })
    }

    /// Joins two texts; bounded, since every join copies.
    fn join(&self, expr: &IdedExpr, left: TextExpr, right: TextExpr) -> TypeResult<TypedExpr> {
        let joined = TextExpr::Join(Box::new((left, right)));
        if joined.max_bytes() > MAX_TEXT_BYTES {
            let problem = format!("the text may exceed {MAX_TEXT_BYTES} bytes");
            return Err(ExpressionError::new(self.offset(expr), problem).help("join fewer attributes"));
        }
        Ok(TypedExpr::Text(joined))
    }

    fn function(&mut self, expr: &IdedExpr, call: &CallExpr, depth: usize) -> TypeResult<TypedExpr> {
        let name = call.func_name.as_str();
        let offset = self.start_of_name(expr, name);
        if let Some(reason) = names::unsupported_reason(name) {
            return Err(ExpressionError::new(offset, format!("`{name}` is not supported")).help(reason));
        }
        let Some(signature) = names::signature(name) else {
            let problem = format!("there is no function `{name}`");
            return Err(ExpressionError::new(offset, problem).help(names::instead_of_function(name)));
        };
        let mut arguments = Vec::with_capacity(2);
        for argument in call.target.iter().map(Box::as_ref).chain(&call.args) {
            // No function takes three arguments, so the third one is already an error.
            if arguments.len() < 3 {
                arguments.push(self.value(argument, depth + 1)?);
            }
        }
        let types: Vec<_> = arguments.iter().map(TypedExpr::type_name).collect();
        let got = if types.is_empty() { "no arguments".to_owned() } else { types.join(" and ") };
        apply(name, call.target.is_some(), arguments).ok_or_else(|| {
            let problem = format!("`{name}` does not accept {got}");
            ExpressionError::new(offset, problem).help(format!("write `{signature}`"))
        })
    }
}

/// Errors with their positions
impl TypeChecker<'_> {
    fn mismatch(&self, expr: &IdedExpr, symbol: &str, left: &TypedExpr, right: &TypedExpr) -> ExpressionError {
        let (left, right) = (left.type_name(), right.type_name());
        let error =
            ExpressionError::new(self.offset(expr), format!("`{symbol}` cannot be applied to {left} and {right}"));
        match symbol {
            "&&" | "||" => error.help("both sides must be true or false: compare them with something"),
            _ if left == right => error,
            _ => error.help("convert one with int(…), double(…) or string(…)"),
        }
    }

    fn refused(&self, expr: &IdedExpr, problem: &str) -> ExpressionError {
        ExpressionError::new(self.offset(expr), problem).help("a cost is computed from numbers, texts, true and false")
    }

    /// The position of this node's token: an operator, a dot, an opening bracket, a literal, a name.
    fn offset(&self, expr: &IdedExpr) -> usize {
        self.places.offset_for(expr.id).map_or(0, |(start, _)| start as usize)
    }

    /// The position where this node begins.
    fn start(&self, expr: &IdedExpr) -> usize {
        match &expr.expr {
            Expr::Select(select) => self.start(&select.operand),
            Expr::Call(CallExpr { target: Some(target), .. }) => self.start(target),
            Expr::Call(call) if call.args.len() > 1 && is_operator(&call.func_name) => self.start(&call.args[0]),
            Expr::Call(call) => self.start_of_name(expr, &call.func_name),
            _ => self.offset(expr),
        }
    }

    /// The position where the name of a call begins.
    fn start_of_name(&self, expr: &IdedExpr, name: &str) -> usize {
        let bracket = self.offset(expr);
        let before = self.text.get(..bracket).unwrap_or_default().trim_end();
        before.strip_suffix(name).map_or(bracket, str::len)
    }
}

impl TypedExpr {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Int(_) => "a whole number",
            Self::Double(_) => "a decimal number",
            Self::Text(_) => "text",
            Self::Bool(_) => "true or false",
        }
    }
}

/// The call of function `name` with these arguments, if it accepts them.
fn apply(name: &str, as_method: bool, arguments: Vec<TypedExpr>) -> Option<TypedExpr> {
    let mut arguments = arguments.into_iter();
    let tree = match (name, as_method, arguments.next()?, arguments.next()) {
        ("size", _, TypedExpr::Text(text), None) => TypedExpr::Int(IntExpr::Length(Box::new(text))),
        ("int", false, TypedExpr::Int(int), None) => TypedExpr::Int(int),
        ("int", false, TypedExpr::Text(text), None) => TypedExpr::Int(IntExpr::FromText(Box::new(text))),
        ("int", false, TypedExpr::Text(text), Some(TypedExpr::Int(otherwise))) => {
            TypedExpr::Int(IntExpr::FromTextOr(Box::new((text, otherwise))))
        }
        ("int", false, TypedExpr::Double(double), None) => TypedExpr::Int(IntExpr::FromDouble(Box::new(double))),
        ("double", false, TypedExpr::Double(double), None) => TypedExpr::Double(double),
        ("double", false, TypedExpr::Int(int), None) => TypedExpr::Double(DoubleExpr::FromInt(Box::new(int))),
        ("double", false, TypedExpr::Text(text), None) => TypedExpr::Double(DoubleExpr::FromText(Box::new(text))),
        ("string", false, TypedExpr::Text(text), None) => TypedExpr::Text(text),
        ("string", false, TypedExpr::Int(int), None) => TypedExpr::Text(TextExpr::FromInt(Box::new(int))),
        ("string", false, TypedExpr::Double(double), None) => TypedExpr::Text(TextExpr::FromDouble(Box::new(double))),
        ("string", false, TypedExpr::Bool(bool), None) => TypedExpr::Text(TextExpr::FromBool(Box::new(bool))),
        ("min", false, TypedExpr::Int(left), Some(TypedExpr::Int(right))) => {
            TypedExpr::Int(IntExpr::Least(Box::new((left, right))))
        }
        ("max", false, TypedExpr::Int(left), Some(TypedExpr::Int(right))) => {
            TypedExpr::Int(IntExpr::Greatest(Box::new((left, right))))
        }
        ("startsWith", true, TypedExpr::Text(text), Some(TypedExpr::Text(part))) => {
            TypedExpr::Bool(BoolExpr::StartsWith(Box::new((text, part))))
        }
        ("endsWith", true, TypedExpr::Text(text), Some(TypedExpr::Text(part))) => {
            TypedExpr::Bool(BoolExpr::EndsWith(Box::new((text, part))))
        }
        ("contains", true, TypedExpr::Text(text), Some(TypedExpr::Text(part))) => {
            TypedExpr::Bool(BoolExpr::Contains(Box::new((text, part))))
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

/// Whether the name of a call is an operator of CEL; no function can have such a name.
fn is_operator(name: &str) -> bool {
    name.contains(|char: char| !char.is_ascii_alphanumeric() && char != '_' && char != '.')
}

/// The symbol of an operator: CEL calls `+` `_+_`.
fn symbol(name: &str) -> &str {
    name.trim_matches('_')
}

/// The position of the field after the dot at `dot`.
fn after_dot(text: &str, dot: usize) -> usize {
    let field = text.get(dot + 1..).unwrap_or_default().trim_start();
    text.len() - field.len()
}
