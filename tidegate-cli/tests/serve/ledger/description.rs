//! The `OpenAPI` description of the admin address, held against a server with a ledger and both tokens.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{CHANGE, Fixture, READ};
use crate::serve::{ask, exchange};

/// The description, as everybody can read it who reaches the address.
struct Description(Value);

/// One call of the description.
struct Operation<'d> {
    path: &'d str,
    method: String,
    json: &'d Value,
}

impl Description {
    fn of(fixture: &Fixture) -> Self {
        let (status, text) = ask(&fixture.server().admin, "GET", "/openapi.json", "");
        assert_eq!(status, 200, "{text}");
        Self(serde_json::from_str(&text).unwrap())
    }

    fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        self.0["paths"].as_object().unwrap().iter().flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().iter();
            methods.map(move |(method, json)| Operation { path, method: method.to_uppercase(), json })
        })
    }

    /// A part of the description, or what it refers to.
    fn resolve<'d>(&'d self, part: &'d Value) -> &'d Value {
        let Some(reference) = part["$ref"].as_str() else { return part };
        self.0.pointer(reference.strip_prefix('#').unwrap()).unwrap_or_else(|| panic!("{reference} is missing"))
    }

    /// The tokens that an operation accepts.
    fn tokens<'d>(&'d self, operation: &Operation<'d>) -> Vec<&'d str> {
        let security = operation.json.get("security").unwrap_or(&self.0["security"]).as_array().unwrap();
        security.iter().flat_map(|one| one.as_object().unwrap().keys().map(String::as_str)).collect()
    }

    /// The bodies and the query with which an operation is called in the examples.
    fn example_calls(&self, operation: &Operation<'_>) -> Vec<(String, Value)> {
        let parameters = operation.json["parameters"].as_array().into_iter().flatten();
        let parameters = parameters.map(|parameter| self.resolve(parameter)).filter_map(|parameter| {
            let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
            Some(format!("{}={}", text(&parameter["name"]), text(parameter.get("example")?)))
        });
        let query = parameters.collect::<Vec<String>>().join("&");
        let path = if query.is_empty() { operation.path.to_owned() } else { format!("{}?{query}", operation.path) };
        let content = &operation.json["requestBody"]["content"]["application/json"];
        let mut bodies: Vec<&Value> = content.get("example").into_iter().collect();
        bodies
            .extend(content["examples"].as_object().into_iter().flat_map(|all| all.values().map(|one| &one["value"])));
        for body in &bodies {
            self.assert_described(&content["schema"], body, operation.path);
        }
        assert_eq!(bodies.is_empty(), operation.method == "GET", "{} needs an example", operation.path);
        if bodies.is_empty() {
            vec![(path, Value::Null)]
        } else {
            bodies.iter().map(|&body| (path.clone(), body.clone())).collect()
        }
    }

    /// Asserts that a body is as the content of a response is described.
    fn assert_body(&self, content: &Value, media_type: &str, body: &str, place: &str) {
        let media = content.get(media_type).unwrap_or_else(|| panic!("{place}: {media_type} is not described"));
        match media_type {
            "application/json" => self.assert_described(&media["schema"], &serde_json::from_str(body).unwrap(), place),
            "application/x-ndjson" => {
                for line in body.lines() {
                    let line = serde_json::from_str(line).unwrap();
                    self.assert_described(&media["schema"]["contentSchema"], &line, place);
                }
            }
            _ => {}
        }
    }

    /// Asserts that a value is as its schema says, and that the schema has all of its fields.
    fn assert_described(&self, schema: &Value, value: &Value, place: &str) {
        let whole = json!({ "allOf": [schema], "components": self.0["components"] });
        let validator = jsonschema::draft202012::new(&whole).unwrap();
        let errors: Vec<String> =
            validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{place}: {errors:?}: {value}");
        let unknown = self.undescribed(&[schema], value, "");
        assert!(unknown.is_empty(), "{place}: {unknown:?} are not described");
    }

    /// The fields of a value that none of these schemas has.
    fn undescribed(&self, schemas: &[&Value], value: &Value, place: &str) -> Vec<String> {
        let mut parts: Vec<&Value> = Vec::new();
        let mut open: Vec<&Value> = schemas.to_vec();
        while let Some(schema) = open.pop().map(|schema| self.resolve(schema)) {
            open.extend(["allOf", "anyOf"].iter().flat_map(|all| schema[all].as_array().into_iter().flatten()));
            parts.push(schema);
        }
        let under = |name: &str| parts.iter().filter_map(|part| part.pointer(name)).collect::<Vec<&Value>>();
        match value {
            Value::Object(fields) if !under("/properties").is_empty() => fields
                .iter()
                .flat_map(|(name, value)| match under(&format!("/properties/{name}")) {
                    schemas if schemas.is_empty() => vec![format!("{place}/{name}")],
                    schemas => self.undescribed(&schemas, value, &format!("{place}/{name}")),
                })
                .collect(),
            Value::Array(items) => {
                items.iter().flat_map(|item| self.undescribed(&under("/items"), item, place)).collect()
            }
            _ => Vec::new(),
        }
    }
}

#[test]
fn every_described_call_has_its_methods_and_needs_its_token() {
    let fixture = Fixture::start();
    let (description, admin) = (Description::of(&fixture), &fixture.server().admin);
    for (path, methods) in description.0["paths"].as_object().unwrap() {
        let (status, head, body) = exchange(admin, "PATCH", path, &[], "");
        let allowed = head.lines().find_map(|line| line.strip_prefix("allow: "));
        let allowed = allowed.unwrap_or_else(|| panic!("{path}: {head}"));
        let described = methods.as_object().unwrap().keys().map(|method| method.to_uppercase());
        let allowed: BTreeSet<String> = allowed.split(',').filter(|name| *name != "HEAD").map(str::to_owned).collect();
        assert_eq!((status, allowed), (405, described.collect()), "{path}: {body}");
    }
    let (_, index) = ask(admin, "GET", "/", "");
    for operation in description.operations() {
        assert!(index.contains(operation.path), "{} is missing:\n{index}", operation.path);
        let body = if operation.method == "GET" { "" } else { "{}" };
        let [read, change] = [READ, CHANGE].map(|token| format!("authorization: Bearer {token}"));
        let refusals = [vec![], vec![&*read], vec![&*change]].map(|headers| {
            let status = exchange(admin, &operation.method, operation.path, &headers, body).0;
            [401, 403].contains(&status).then_some(status)
        });
        let expected = match &*description.tokens(&operation) {
            [] => [None; 3],
            ["readToken", "adminToken"] => [Some(401), None, None],
            ["adminToken"] => [Some(401), Some(403), None],
            other => panic!("{other:?}"),
        };
        assert_eq!(refusals, expected, "{} {}", operation.method, operation.path);
    }
}

#[test]
fn the_examples_of_the_description_are_accepted_and_answered_as_described() {
    let fixture = Fixture::start();
    let (description, token) = (Description::of(&fixture), format!("authorization: Bearer {CHANGE}"));
    for operation in description.operations() {
        for (path, body) in description.example_calls(&operation) {
            // There is something to reset and to take back.
            fixture.consume("/exports", "acme", 30);
            let (place, text) = (format!("{} {path} {body}", operation.method), body.to_string());
            let text = if body.is_null() { "" } else { &*text };
            let call = || exchange(&fixture.server().admin, &operation.method, &path, &[&token], text);
            let (mut status, mut head, mut answer) = call();
            while status == 409 {
                // A comparison that was started before runs still. This call waits for its end, at most a second.
                exchange(&fixture.server().admin, "GET", "/v1/usage/reconcile", &[&token], "");
                (status, head, answer) = call();
            }
            assert!(status < 300 || path == "/rlconfig", "{place}: {status} {answer}");
            let media_type = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap();
            let media_type = media_type.split(';').next().unwrap();
            let response = description.resolve(&operation.json["responses"][status.to_string()]);
            description.assert_body(&response["content"], media_type, &answer, &place);
        }
        for (status, response) in operation.json["responses"].as_object().unwrap() {
            let content = &description.resolve(response)["content"];
            for (media_type, media) in content.as_object().unwrap() {
                let Some(example) = media.get("example") else { continue };
                let text = example.as_str().map_or(example.to_string(), str::to_owned);
                description.assert_body(content, media_type, &text, &format!("{} {status}", operation.path));
            }
        }
    }
}
