//! Two mistakes in one mapping give the errors of both, and no further ones.

use std::collections::BTreeSet;

use tidegate_rules::{RuleFile, Severity};

/// A mapping of a rule file, each field on a line of its own.
struct Mapping {
    name: &'static str,
    /// The lines before it.
    before: &'static str,
    /// The lines after it.
    after: &'static str,
    fields: &'static [Field],
}

/// A field with a valid value, and with values that are each one mistake. `None` for the valid value leaves the field out.
struct Field {
    name: &'static str,
    valid: Option<&'static str>,
    mistakes: &'static [&'static str],
    is_required: bool,
}

const fn required(name: &'static str, valid: &'static str, mistakes: &'static [&'static str]) -> Field {
    Field { name, valid: Some(valid), mistakes, is_required: true }
}

const fn optional(name: &'static str, valid: &'static str, mistakes: &'static [&'static str]) -> Field {
    Field { name, valid: Some(valid), mistakes, is_required: false }
}

const fn absent(name: &'static str, mistakes: &'static [&'static str]) -> Field {
    Field { name, valid: None, mistakes, is_required: false }
}

/// What a file may say of a field.
#[derive(Clone, Copy)]
enum Line {
    Valid,
    Value(&'static str),
    Missing,
    Misspelt,
}

const AMOUNT: &[&str] = &["-1", "many", "9007199254740993", "[1]"];
const WINDOW: &[&str] = &["10", "0s", "200y", "5 lightyears", "{ a: b }"];
const RATE: &[&str] = &["10", "0/s", "10/month", "fast", "[]"];

const TOKEN_BUCKET: &[Field] = &[required("capacity", "5", AMOUNT), required("refill", "1/s", RATE)];
const LEAKY_BUCKET: &[Field] = &[required("queue", "5", AMOUNT), required("rate", "1/s", RATE)];
const FIXED_WINDOW: &[Field] = &[required("limit", "5", AMOUNT), required("window", "1m", WINDOW)];
const SLIDING_LOG: &[Field] = &[required("limit", "5", AMOUNT), required("window", "1m", WINDOW)];
const SLIDING_WINDOW: &[Field] = &[
    required("limit", "5", AMOUNT),
    required("window", "1m", WINDOW),
    optional("slices", "6", &["0", "-1", "1000", "half"]),
];
const CONCURRENCY: &[Field] =
    &[required("max", "5", &["-1", "65536", "many"]), optional("lease", "30s", &["1ms", "25h", "30", "month", "[]"])];
const QUOTA: &[Field] = &[
    required("amount", "5", AMOUNT),
    required("period", "month", &["fortnight", "[]", "1"]),
    optional("timezone", "Europe/Berlin", &["Mars", "[]"]),
    optional("anchor", "15", &["first", "99", "[1]"]),
    optional("grace", "1", &["-5", "some", "5 %%", "[1]"]),
    optional("ledger", "none", &["asnyc", "[sync]"]),
    absent("keep_names", &["maybe"]),
];

macro_rules! limit_of_rule {
    ($name:literal, $fields:ident) => {
        Mapping {
            name: concat!($name, " of a rule"),
            before: concat!(
                "version: 1\nrules:\n- id: r\n  per: [tenant]\n  match: { path: /r }\n  on_failure: share\n  ",
                $name,
                ":\n"
            ),
            after: "",
            fields: $fields,
        }
    };
}

macro_rules! limit_of_plan {
    ($name:literal, $fields:ident) => {
        Mapping {
            name: concat!($name, " of a plan"),
            before: concat!("version: 1\ndefault_plan: pro\nplans:\n pro:\n  r:\n   ", $name, ":\n"),
            after: "rules:\n- { id: r, per: [tenant], match: { path: /r }, on_failure: share, fixed_window: { limit: 1, window: 1m } }\n",
            fields: $fields,
        }
    };
}

macro_rules! limit_with_name {
    ($name:literal, $fields:ident) => {
        Mapping {
            name: concat!($name, " with a name"),
            before: concat!("version: 1\nrules:\n- id: r\n  per: [tenant]\n  match: { path: /r }\n  on_failure: share\n  limits:\n   one:\n    ", $name, ":\n"),
            after: "",
            fields: $fields,
        }
    };
}

const MAPPINGS: &[Mapping] = &[
    limit_of_rule!("token_bucket", TOKEN_BUCKET),
    limit_of_rule!("leaky_bucket", LEAKY_BUCKET),
    limit_of_rule!("fixed_window", FIXED_WINDOW),
    limit_of_rule!("sliding_log", SLIDING_LOG),
    limit_of_rule!("sliding_window", SLIDING_WINDOW),
    limit_of_rule!("concurrency", CONCURRENCY),
    limit_of_rule!("quota", QUOTA),
    limit_of_plan!("token_bucket", TOKEN_BUCKET),
    limit_of_plan!("sliding_window", SLIDING_WINDOW),
    limit_of_plan!("concurrency", CONCURRENCY),
    limit_of_plan!("quota", QUOTA),
    limit_with_name!("leaky_bucket", LEAKY_BUCKET),
    limit_with_name!("quota", QUOTA),
    Mapping {
        name: "penalty",
        before: "version: 1\nrules:\n- id: r\n  per: [ip]\n  match: { path: /r }\n  security: true\n  on_failure: share\n  fixed_window: { limit: 1, window: 1m }\n  penalty:\n",
        after: "",
        fields: &[
            required("after", "3", &["0", "-1", "101", "often"]),
            required("block", "1m", &["10", "0s", "[]"]),
            optional("factor", "2", &["0", "1001", "twice"]),
            required("max", "1h", &["10", "20y", "[]"]),
        ],
    },
    Mapping {
        name: "anonymous",
        before: "version: 1\nrules:\n- id: r\n  per: [ip]\n  match: { path: /r }\n  on_failure: share\n  fixed_window: { limit: 1, window: 1m }\n  anonymous:\n",
        after: "",
        fields: &[
            optional("most", "10", &["0", "-1", "9007199254740993", "many"]),
            optional("forget_after", "10m", &["0s", "10", "month", "[]"]),
        ],
    },
    Mapping {
        name: "cost",
        before: "version: 1\nrules:\n- id: r\n  per: [ip]\n  match: { path: '/*' }\n  on_failure: share\n  fixed_window: { limit: 1, window: 1m }\n  cost:\n",
        after: "",
        fields: &[
            optional("POST", "1", &["-1", "9007199254740993", "much"]),
            optional("/a/*", "1", &["-1", "9007199254740993"]),
            absent("POST /a//b", &["1"]),
            absent("posts", &["1"]),
            optional("expression", "request.size", &["request.siz", "1 +", "[]"]),
            optional("default", "1", &["-1", "9007199254740993"]),
            optional("max", "1", &["-1", "9007199254740993"]),
            optional("actual", "x-cost", &["[]"]),
        ],
    },
    Mapping {
        name: "cost by a header",
        before: "version: 1\nrules:\n- id: r\n  per: [ip]\n  match: { path: '/*' }\n  on_failure: share\n  fixed_window: { limit: 1, window: 1m }\n  cost:\n",
        after: "identify: { authenticated: [x-cost] }\n",
        fields: &[
            optional("header", "x-cost", &["x-other", "[]"]),
            optional("default", "1", &["-1", "9007199254740993"]),
            optional("usage", "total", &["tokens"]),
        ],
    },
    Mapping {
        name: "on_failure",
        before: "version: 1\nrules:\n- id: r\n  per: [ip]\n  match: { path: '/*' }\n  fixed_window: { limit: 1, window: 1m }\n  on_failure:\n",
        after: "",
        fields: &[
            optional("POST", "share", &["static", "shared", "{ static: fast }", "{ statc: 1/s }", "[]"]),
            optional("/a/*", "closed", &["static", "clsed", "{ static: 1/month }"]),
            absent("GET /a//b", &["local"]),
            absent("post", &["local"]),
            absent("static", &["10/s"]),
            optional("default", "local", &["static", "opne", "{ static: 0/s }"]),
        ],
    },
    Mapping {
        name: "match",
        before: "version: 1\nrules:\n- id: r\n  per: [ip]\n  on_failure: share\n  fixed_window: { limit: 1, window: 1m }\n  match:\n",
        after: "",
        fields: &[
            optional("method", "POST", &["post", "{ a: b }"]),
            optional("path", "/a", &["a", "/a//b", "{ a: b }"]),
            optional("host", "example.com", &["'*'", "a/b", "{ a: b }"]),
            optional("header", "{ x-a: b }", &["x-a"]),
            absent("plan", &["gold"]),
            optional("ip", "10.0.0.0/8", &["10.0.0.1/8", "here"]),
        ],
    },
    Mapping {
        name: "rule",
        before: "version: 1\nrules:\n-\n",
        after: "",
        fields: &[
            required("id", "r", &["'a b'", "[]"]),
            required("per", "[ip]", &["[clint]", "{ a: b }"]),
            optional("match", "{ path: /r }", &["{ path: r }", "x"]),
            required(
                "fixed_window",
                "{ limit: 1, window: 1m }",
                &["{ limit: 1, window: 1 }", "100", "{ limit: -1, window: 1m }"],
            ),
            optional("cost", "1", &["-1", "much", "[]"]),
            optional("on_failure", "share", &["static", "shred", "{ static: fast }"]),
            optional("on_missing", "shared", &["ignore"]),
            optional("on_overload", "local", &["closed"]),
            optional("scope", "tenant", &["world"]),
            optional("tag", "subject", &["key", "[]"]),
            optional("mode", "enabled", &["of"]),
            optional("front_ends", "[check]", &["[chekc]", "[]"]),
            absent("penalty", &["{ after: 3, block: 1m, max: 1h }", "5"]),
            optional("anonymous", "{ most: 5 }", &["{ most: 0 }", "5"]),
            optional("authenticated", "{ most: 5 }", &["{ most: 0 }", "5"]),
        ],
    },
    Mapping {
        name: "identify",
        before: "version: 1\nidentify:\n",
        after: "rules: []\n",
        fields: &[
            optional("client", "[ip]", &["[headr:x]", "{ a: b }"]),
            optional("user", "header:x-user", &["attr:path"]),
            optional("trusted_proxies", "10.0.0.0/8", &["10.0.0.1/8", "[here]"]),
            optional("escaped_slashes", "both", &["all"]),
            absent("trusted_hops", &["-1"]),
        ],
    },
    Mapping {
        name: "http",
        before: "version: 1\nhttp:\n",
        after: "rules: []\n",
        fields: &[
            optional("ratelimit", "draft-11", &["draft-99", "[]"]),
            optional("x_ratelimit", "epoch", &["never"]),
            optional("ratelimit_trio", "off", &["never"]),
            optional("retry_after_ms", "true", &["maybe"]),
        ],
    },
    Mapping {
        name: "file",
        before: "",
        after: "rules: [{ id: r, per: [ip], on_failure: share, match: { path: /r }, fixed_window: { limit: 1, window: 1m } }]\n",
        fields: &[
            optional("version", "1", &["2", "one"]),
            optional("max_body", "65536", &["1", "-1", "much"]),
            optional("unknown_size", "65536", &["-1", "much"]),
            optional(
                "exempt",
                "[{ path: /health }]",
                &["[{}]", "[{ path: health }]", "[{ path: /health, rules: [q] }]"],
            ),
            absent("plans", &["{ pro: { q: { fixed_window: { limit: 1, window: 1m } } } }", "{ pro: { r: 5 } }"]),
            absent("tenants", &["{ acme: gold }", "acme"]),
            absent("default_plan", &["silver"]),
        ],
    },
];

impl Mapping {
    /// The file with these lines, and the errors of it as `line:column code message`. What is missing has no line.
    fn errors(&self, lines: &[Line]) -> BTreeSet<String> {
        let indent = self.before.lines().last().map_or(0, |last| last.len() - last.trim_start().len() + 1);
        let indent = if self.before.is_empty() { 0 } else { indent };
        let mut text = self.before.to_owned();
        for (field, line) in self.fields.iter().zip(lines) {
            let (name, value) = match line {
                Line::Valid => (field.name.to_owned(), field.valid),
                Line::Value(value) => (field.name.to_owned(), Some(*value)),
                Line::Missing => (String::new(), None),
                Line::Misspelt => (format!("{}x", field.name), field.valid),
            };
            // An empty line keeps the positions of the others.
            text += &value.map_or("\n".to_owned(), |value| format!("{}{name}: {value}\n", " ".repeat(indent)));
        }
        text += self.after;
        let Err(report) = RuleFile::parse("rules.yaml", &text) else { return BTreeSet::new() };
        let errors = report.problems().iter().filter(|problem| problem.severity() == Severity::Error);
        errors
            .map(|problem| {
                let (line, column) = report.position(problem);
                // What is missing is reported at what is there.
                let is_missing = matches!(problem.code(), "missing-field" | "limit");
                let position = if is_missing { String::new() } else { format!("{line}:{column}") };
                format!("{position} {} {}", problem.code(), problem.message())
            })
            .collect()
    }

    /// Every mistake: the number of its field, and the line.
    fn mistakes(&self) -> Vec<(usize, Line)> {
        let of_field = |(index, field): (usize, &Field)| {
            let lost = field.is_required.then_some([Line::Missing, Line::Misspelt]);
            let values = field.mistakes.iter().map(|value| Line::Value(value));
            values.chain(lost.into_iter().flatten()).map(move |line| (index, line)).collect::<Vec<_>>()
        };
        self.fields.iter().enumerate().flat_map(of_field).collect()
    }

    fn with(&self, mistakes: &[(usize, Line)]) -> (BTreeSet<String>, String) {
        let mut lines = vec![Line::Valid; self.fields.len()];
        for (index, line) in mistakes {
            lines[*index] = *line;
        }
        let shown = mistakes.iter().map(|(index, line)| match line {
            Line::Value(value) => format!("{}: {value}", self.fields[*index].name),
            Line::Missing => format!("no {}", self.fields[*index].name),
            _ => format!("{}x", self.fields[*index].name),
        });
        (self.errors(&lines), format!("{}: {}", self.name, shown.collect::<Vec<_>>().join(", ")))
    }
}

#[test]
fn one_mistake_is_one_error() {
    let mut wrong = Vec::new();
    for mapping in MAPPINGS {
        let (errors, _) = mapping.with(&[]);
        assert_eq!(errors, BTreeSet::new(), "{}", mapping.name);
        for mistake in mapping.mistakes() {
            let (errors, shown) = mapping.with(&[mistake]);
            if errors.len() != 1 {
                wrong.push(format!("{shown}: {errors:#?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of one mistake:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn two_mistakes_in_one_mapping_are_two_errors() {
    let mut wrong = Vec::new();
    for mapping in MAPPINGS {
        let mistakes = mapping.mistakes();
        let alone: Vec<_> = mistakes.iter().map(|mistake| mapping.with(&[*mistake]).0).collect();
        for (number, first) in mistakes.iter().enumerate() {
            // A mapping without any field is nothing, which is one mistake.
            let is_pair = |(_, second): &(usize, &(usize, Line))| {
                let is_nothing =
                    mapping.fields.len() == 2 && matches!((first.1, second.1), (Line::Missing, Line::Missing));
                second.0 != first.0 && !is_nothing
            };
            for (other, second) in mistakes.iter().enumerate().skip(number + 1).filter(is_pair) {
                let expected = &alone[number] | &alone[other];
                let (errors, shown) = mapping.with(&[*first, *second]);
                if errors != expected {
                    let hidden: Vec<_> = expected.difference(&errors).collect();
                    let further: Vec<_> = errors.difference(&expected).collect();
                    wrong.push(format!("{shown}\n  hidden: {hidden:?}\n  further: {further:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} pairs:\n{}", wrong.len(), wrong.join("\n"));
}

/// What is wrong where it is written is not reported again where it is used.
#[test]
fn a_mistake_is_reported_once_and_not_again_where_other_parts_need_what_it_says() {
    let limit = "fixed_window: { limit: 1, window: 1m }, on_failure: share";
    let rule = format!("rules: [{{ id: r, per: [ip], match: {{ path: /r }}, {limit} }}]\n");
    let of = |per: &str| format!("rules: [{{ id: r, per: [{per}], match: {{ path: /r }}, {limit} }}]\n");
    for (text, expected) in [
        (format!("identify: {{ account: headr:x }}\n{}", of("account")), "2:22 source"),
        (format!("identify: {{ account: {{ a: b }} }}\n{}", of("account")), "2:24 type"),
        (format!("identify: {{ account: [] }}\n{}", of("account")), "2:13 identity"),
        (format!("plans: {{ gold: 5 }}\ntenants: {{ acme: gold }}\n{rule}"), "2:16 type"),
        (format!("plans: {{ gold: {{ r: {{ quota: 5 }} }} }}\ndefault_plan: gold\n{rule}"), "2:30 type"),
        (format!("tenants: {{ acme: [] }}\n{}", rule.replace("path: /r", "plan: gold")), "2:18 type"),
        (format!("tenants: {{ acme: gold }}\n{}", rule.replace("path: /r", "plan: { a: b }")), "3:46 type"),
        (format!("tenants: {{ acme: gold }}\n{}", rule.replace("{ path: /r }", "gold")), "3:36 type"),
        (format!("exempt: [{{ path: /x, rules: [r] }}]\n{}", rule.replace("id: r", "id: []")), "3:15 type"),
        (format!("exempt: [{{ path: /x, rules: [r] }}]\n{}", rule.replace("id: r, ", "")), "3:11 missing-field"),
        (format!("plans: {{ gold: {{ r: {{ {limit} }} }} }}\nrules: [5]\n"), "3:9 type"),
    ] {
        let text = format!("version: 1\n{text}").replace(", on_failure: share } } }", " } } }");
        let report = RuleFile::parse("rules.yaml", &text).expect_err("it has a mistake");
        let errors = report.problems().iter().filter(|problem| problem.severity() == Severity::Error);
        let errors: Vec<String> = errors
            .map(|problem| {
                let (line, column) = report.position(problem);
                format!("{line}:{column} {}", problem.code())
            })
            .collect();
        assert_eq!(errors, [expected], "{text}{report}");
    }
}
