//! The check of an expression: from its [`Syntax`] to a [`TypedExpr`], which has types, or to what is wrong and where.
//!
//! Must not compute a value and must not see a request.

use smol_str::SmolStr;

use super::names::{self, Group, Name};
use super::syntax::{BinaryOperator, Syntax, SyntaxKind};
use super::typed_expr::{Arithmetic, BoolExpr, Conditional, DoubleExpr, IntExpr, TextExpr, TypedExpr};
use super::{ExpressionError, MAX_DEPTH, too_deep};

/// The longest text that an expression may build.
pub(super) const MAX_TEXT_BYTES: usize = 16 * 1024;

/// One pass over a syntax tree.
#[derive(Default)]
pub(super) struct TypeChecker {
    reads: Vec<SmolStr>,
}

/// A value, or a group such as `request.headers` that needs a member.
enum Operand {
    Value(TypedExpr),
    Group(Group),
}

type TypeResult<T> = Result<T, ExpressionError>;

impl TypeChecker {
    /// The tree of a cost, and the attributes that it reads, each once.
    pub(super) fn cost(mut self, expr: &Syntax<'_>) -> TypeResult<(IntExpr, Vec<SmolStr>)> {
        match self.value(expr, 1)? {
            TypedExpr::Int(cost) => Ok((cost, self.reads)),
            other => {
                let help = match other {
                    TypedExpr::Bool(_) => "choose a number with `… ? 1 : 0`",
                    _ => "wrap it in int(…)",
                };
                let problem = format!("this is {}, but a cost is a whole number", other.type_name());
                Err(ExpressionError::new(expr.start, problem).help(help))
            }
        }
    }

    fn value(&mut self, expr: &Syntax<'_>, depth: usize) -> TypeResult<TypedExpr> {
        match self.operand(expr, depth)? {
            Operand::Value(tree) => Ok(tree),
            Operand::Group(group) => {
                let (name, example) = group.spelling();
                let problem = format!("`{name}` is a group, not a value");
                Err(ExpressionError::new(expr.start, problem).help(format!("name a member, such as `{example}`")))
            }
        }
    }

    fn operand(&mut self, expr: &Syntax<'_>, depth: usize) -> TypeResult<Operand> {
        if depth > MAX_DEPTH {
            return Err(too_deep(expr.start));
        }
        let value = match &expr.kind {
            SyntaxKind::Int(value) => TypedExpr::Int(IntExpr::Literal(*value)),
            SyntaxKind::Double(value) => TypedExpr::Double(DoubleExpr::Literal(*value)),
            SyntaxKind::Text(value) => TypedExpr::Text(TextExpr::Literal(value.into())),
            SyntaxKind::Bool(value) => TypedExpr::Bool(BoolExpr::Literal(*value)),
            SyntaxKind::Name(word) => match Name::root(word) {
                Some(name) => return Ok(self.named(name)),
                None => {
                    return Err(ExpressionError::new(expr.offset, format!("there is no name `{word}`"))
                        .help(names::instead_of_name(word)));
                }
            },
            SyntaxKind::Field(operand, word) => {
                let operand = self.operand(operand, depth + 1)?;
                return self.member(operand, word, expr.offset);
            }
            SyntaxKind::Key(pair) => return self.key(&pair.0, &pair.1, depth),
            SyntaxKind::Call(target, name, arguments) => self.call(expr, target.as_deref(), name, arguments, depth)?,
            SyntaxKind::Not(operand) => match self.value(operand, depth + 1)? {
                TypedExpr::Bool(bool) => TypedExpr::Bool(BoolExpr::Not(Box::new(bool))),
                other => return Err(wrong_operand(expr, "`!` needs true or false", &other)),
            },
            SyntaxKind::Negate(operand) => match self.value(operand, depth + 1)? {
                TypedExpr::Int(int) => TypedExpr::Int(IntExpr::Negate(Box::new(int))),
                TypedExpr::Double(double) => TypedExpr::Double(DoubleExpr::Negate(Box::new(double))),
                other => return Err(wrong_operand(expr, "`-` needs a number", &other)),
            },
            SyntaxKind::Binary(operator, pair) => {
                let (left, right) = (self.value(&pair.0, depth + 1)?, self.value(&pair.1, depth + 1)?);
                binary(expr, *operator, left, right)?
            }
            SyntaxKind::Choice(parts) => self.choice(expr, parts, depth)?,
        };
        Ok(Operand::Value(value))
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

    fn key(&mut self, target: &Syntax<'_>, key: &Syntax<'_>, depth: usize) -> TypeResult<Operand> {
        let operand = self.operand(target, depth + 1)?;
        match &key.kind {
            SyntaxKind::Text(word) => self.member(operand, word, key.offset),
            _ => Err(ExpressionError::new(key.start, "the key must be a quoted text")
                .help("the attributes of an expression must be known at load")),
        }
    }

    fn choice(&mut self, expr: &Syntax<'_>, parts: &[Syntax<'_>; 3], depth: usize) -> TypeResult<TypedExpr> {
        let [test, then, otherwise] = parts;
        let offset = test.start;
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
            (then, otherwise) => return Err(mismatch(expr, "? :", &then, &otherwise)),
        })
    }

    fn call(
        &mut self,
        expr: &Syntax<'_>,
        target: Option<&Syntax<'_>>,
        name: &str,
        given: &[Syntax<'_>],
        depth: usize,
    ) -> TypeResult<TypedExpr> {
        let error = |problem: String| ExpressionError::new(expr.offset, problem);
        if let Some(reason) = names::unsupported_reason(name) {
            return Err(error(format!("`{name}` is not supported")).help(reason));
        }
        let Some(signature) = names::signature(name) else {
            return Err(error(format!("there is no function `{name}`")).help(names::instead_of_function(name)));
        };
        let mut arguments = Vec::with_capacity(2);
        for argument in target.into_iter().chain(given) {
            // No function takes three arguments, so the third one is already an error.
            if arguments.len() < 3 {
                arguments.push(self.value(argument, depth + 1)?);
            }
        }
        let types: Vec<_> = arguments.iter().map(TypedExpr::type_name).collect();
        let got = if types.is_empty() { "no arguments".to_owned() } else { types.join(" and ") };
        apply(name, target.is_some(), arguments)
            .ok_or_else(|| error(format!("`{name}` does not accept {got}")).help(format!("write `{signature}`")))
    }
}

fn binary(expr: &Syntax<'_>, operator: BinaryOperator, left: TypedExpr, right: TypedExpr) -> TypeResult<TypedExpr> {
    use BinaryOperator::{And, Calculate, Compare, Or, Remainder};
    Ok(match (operator, left, right) {
        (Calculate(how), TypedExpr::Int(left), TypedExpr::Int(right)) => {
            TypedExpr::Int(IntExpr::Calculate(how, Box::new((left, right))))
        }
        (Calculate(how), TypedExpr::Double(left), TypedExpr::Double(right)) => {
            TypedExpr::Double(DoubleExpr::Calculate(how, Box::new((left, right))))
        }
        (Calculate(Arithmetic::Add), TypedExpr::Text(left), TypedExpr::Text(right)) => join(expr, left, right)?,
        (Remainder, TypedExpr::Int(left), TypedExpr::Int(right)) => {
            TypedExpr::Int(IntExpr::Remainder(Box::new((left, right))))
        }
        (Compare(how), TypedExpr::Int(left), TypedExpr::Int(right)) => {
            TypedExpr::Bool(BoolExpr::Ints(how, Box::new((left, right))))
        }
        (Compare(how), TypedExpr::Double(left), TypedExpr::Double(right)) => {
            TypedExpr::Bool(BoolExpr::Doubles(how, Box::new((left, right))))
        }
        (Compare(how), TypedExpr::Text(left), TypedExpr::Text(right)) => {
            TypedExpr::Bool(BoolExpr::Texts(how, Box::new((left, right))))
        }
        (Compare(how), TypedExpr::Bool(left), TypedExpr::Bool(right)) => {
            TypedExpr::Bool(BoolExpr::Bools(how, Box::new((left, right))))
        }
        (And, TypedExpr::Bool(left), TypedExpr::Bool(right)) => TypedExpr::Bool(BoolExpr::And(Box::new((left, right)))),
        (Or, TypedExpr::Bool(left), TypedExpr::Bool(right)) => TypedExpr::Bool(BoolExpr::Or(Box::new((left, right)))),
        (_, left, right) => return Err(mismatch(expr, operator.symbol(), &left, &right)),
    })
}

/// Joins two texts; bounded, since every join copies.
fn join(expr: &Syntax<'_>, left: TextExpr, right: TextExpr) -> TypeResult<TypedExpr> {
    let joined = TextExpr::Join(Box::new((left, right)));
    if joined.max_bytes() > MAX_TEXT_BYTES {
        let problem = format!("the text may exceed {MAX_TEXT_BYTES} bytes");
        return Err(ExpressionError::new(expr.offset, problem).help("join fewer attributes"));
    }
    Ok(TypedExpr::Text(joined))
}

fn wrong_operand(expr: &Syntax<'_>, wanted: &str, operand: &TypedExpr) -> ExpressionError {
    ExpressionError::new(expr.offset, format!("{wanted}, but this is {}", operand.type_name()))
}

fn mismatch(expr: &Syntax<'_>, symbol: &str, left: &TypedExpr, right: &TypedExpr) -> ExpressionError {
    let (left, right) = (left.type_name(), right.type_name());
    let error = ExpressionError::new(expr.offset, format!("`{symbol}` cannot be applied to {left} and {right}"));
    match symbol {
        "&&" | "||" => error.help("both sides must be true or false: compare them with something"),
        _ if left == right => error,
        _ => error.help("convert one with int(…), double(…) or string(…)"),
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
