//! The cost of finding the rules of a request among 10, 100, 1,000 and 10,000 rules.
//!
//! Measures the path from a request to its plan: normalising the path, looking up candidates, checking their conditions,
//! finding the subject and hashing it. Every request matches the same number of rules, however many there are.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

mod common;

use std::fmt::Write;
use std::hint::black_box;

use common::{Options, Random, Table, best_of, cpu, report};
use tidegate::Request;
use tidegate_rules::RuleFile;

const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];

/// How the rules of a file differ: the condition of rule number n, and the attributes of a request that matches it.
struct Shape {
    name: &'static str,
    condition: fn(usize) -> String,
    attributes: fn(usize) -> [(&'static str, String); 2],
}

const SHAPES: [Shape; 5] = [
    Shape {
        name: "a path each",
        condition: |rule| format!("path: /api/v1/resource-{rule}/items"),
        attributes: |rule| [("path", format!("/api/v1/resource-{rule}/items")), ("method", "GET".into())],
    },
    Shape {
        name: "a pattern each",
        condition: |rule| format!("path: '/api/resource-{rule}/{{id}}/*'"),
        attributes: |rule| [("path", format!("/api/resource-{rule}/7/parts/9")), ("method", "GET".into())],
    },
    Shape {
        name: "one path, a tenant each",
        condition: |rule| format!("path: /api/rides, tenant: tenant-{rule}"),
        attributes: |rule| [("path", "/api/rides".into()), ("tenant", format!("tenant-{rule}"))],
    },
    Shape {
        name: "one path, a host each",
        condition: |rule| format!("path: /api/rides, host: '*.customer-{rule}.example.com'"),
        attributes: |rule| [("path", "/api/rides".into()), ("host", format!("eu.customer-{rule}.example.com"))],
    },
    Shape {
        name: "an action each",
        condition: |rule| format!("action: job-{rule}"),
        attributes: |rule| [("action", format!("job-{rule}")), ("user", "ann".into())],
    },
];

fn main() {
    let options = Options::from_command_line();
    let columns = ["ns, by what the rules differ", "10 rules", "100 rules", "1000 rules", "10000 rules", "10000 to 10"];
    let mut table = Table::new("CPU time from a request to its plan, by the number of rules in the file", columns);
    for shape in &SHAPES {
        let files: Vec<RuleFile> = SIZES.iter().map(|size| file(shape, *size)).collect();
        let mut contenders: Vec<common::Contender<'_, f64, usize>> = Vec::new();
        for (file, size) in files.iter().zip(SIZES) {
            contenders.push((size, Box::new(move || nanos(file, shape, size))));
        }
        let best = best_of(options.rounds(), contenders, |one, other| one < other);
        let ratio = (best[SIZES.len() - 1].1 / best[0].1, 2);
        table.figures(shape.name, best.into_iter().map(|(_, nanos)| (nanos, 0)).chain([ratio]));
    }
    report(&options, &[table]);
}

fn file(shape: &Shape, rules: usize) -> RuleFile {
    let mut text = String::from("version: 1\nrules:\n");
    for rule in 0..rules {
        let condition = (shape.condition)(rule);
        let limit = "per: [user], token_bucket: { capacity: 20, refill: 10/s }";
        let _ = writeln!(text, "- {{ id: rule-{rule}, match: {{ {condition} }}, {limit} }}");
    }
    RuleFile::parse("rules.yaml", &text).unwrap()
}

/// The time per request; each request matches a randomly drawn rule.
fn nanos(file: &RuleFile, shape: &Shape, rules: usize) -> f64 {
    const REQUESTS: usize = 4_000;
    const ROUNDS: usize = 10;
    let drawn = Random::new(rules as u64).uniform(rules, REQUESTS);
    let attributes: Vec<_> = drawn.iter().map(|rule| (shape.attributes)(*rule as usize)).collect();
    let requests: Vec<Request<'_>> = attributes.iter().map(|attributes| request(attributes)).collect();
    assert!(requests.iter().all(|request| file.rules().resolve(request).checks().len() == 1), "each matches one rule");
    let (before, _) = cpu::thread_nanos();
    for _ in 0..ROUNDS {
        for request in &requests {
            black_box(file.rules().resolve(black_box(request)));
        }
    }
    let (after, _) = cpu::thread_nanos();
    (after - before) / (REQUESTS * ROUNDS) as f64
}

fn request<'a>(attributes: &'a [(&'static str, String)]) -> Request<'a> {
    let action = attributes.iter().find(|(name, _)| *name == "action").map_or("", |(_, action)| action);
    let known = Request::new(action).with_attribute("user", "ann");
    attributes.iter().fold(known, |request, (name, value)| request.with_attribute(name, value))
}
