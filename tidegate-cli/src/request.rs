//! The flags that describe a request. [`RequestDescription`] turns them into the attributes that a front end would send.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};
use tidegate::attributes::RequestAttributes;
use tidegate::spi::MAX_AMOUNT;
use tidegate_rules::RequestDescription;
use tidegate_server::command::Failure;

/// The request.
#[derive(Args)]
#[command(next_help_heading = "The request")]
pub(crate) struct RequestArgs {
    /// The HTTP method
    #[arg(long, short = 'X', value_name = "METHOD")]
    method: Option<String>,
    /// The path, optionally with a query: '/search?q=tide'
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// The host [default: the Host header]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// A header; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// The address of the connection: the client, or the proxy in front of you
    #[arg(long, value_name = "ADDRESS")]
    ip: Option<String>,
    /// The tenant, as your application identifies it
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// The action, as rules match it with `action`
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Another attribute, such as account=a7; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    attr: Vec<String>,
    /// The JSON body, for rules that count by one of its fields
    #[arg(long, value_name = "JSON")]
    body: Option<String>,
    /// The cost of the request, unless the rule sets one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=MAX_AMOUNT))]
    cost: u64,
}

impl RequestArgs {
    /// The attributes that a front end would send. Errors name a flag and never a value, which may be a key or personal.
    pub(crate) fn attributes(&self) -> Result<RequestAttributes<'static>, Failure> {
        let description = self.description()?;
        description.attributes().map(RequestAttributes::into_owned).map_err(|error| {
            let tenant = || description.tenant.clone();
            let flag = match error.field() {
                "headers" => {
                    let description_of = |(name, value)| RequestDescription::new().with_header(name, value);
                    format!("--header number {}", first_invalid(&description.headers, description_of))
                }
                "attributes" => {
                    let description_of = |(name, value)| {
                        let mut description = RequestDescription::new().with_attribute(name, value);
                        description.tenant = tenant();
                        description
                    };
                    format!("--attr number {}", first_invalid(&description.attributes, description_of))
                }
                field => format!("--{field}"),
            };
            Failure::usage(format!("{flag}: {}", error.problem()))
        })
    }

    /// The request as the body of `POST /v1/check`.
    pub(crate) fn json(&self) -> Result<Value, Failure> {
        self.attributes()?;
        let description = self.description()?;
        let mut headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in description.headers {
            headers.entry(name).or_default().push(value);
        }
        let attributes: BTreeMap<String, String> = description.attributes.into_iter().collect();
        let mut request = json!({ "headers": headers, "attributes": attributes, "cost": self.cost });
        for (name, value) in [
            ("method", description.method),
            ("path", description.path),
            ("host", description.host),
            ("ip", description.ip),
            ("tenant", description.tenant),
            ("action", description.action),
            ("body", description.body),
        ] {
            if let Some(value) = value {
                request[name] = value.into();
            }
        }
        Ok(request)
    }

    /// The request as the body of `POST /v1/check`, if the flags describe one.
    pub(crate) fn optional_json(&self) -> Result<Option<Value>, Failure> {
        let Self { method, path, host, header, ip, tenant, action, attr, body, cost: _ } = self;
        let texts = [method, path, host, ip, tenant, action, body];
        let is_empty = texts.iter().all(|text| text.is_none()) && header.is_empty() && attr.is_empty();
        if is_empty { Ok(None) } else { self.json().map(Some) }
    }

    fn description(&self) -> Result<RequestDescription, Failure> {
        let mut description = RequestDescription::new().with_cost(self.cost);
        description.method.clone_from(&self.method);
        description.path.clone_from(&self.path);
        description.host.clone_from(&self.host);
        description.headers = parse_pairs(&self.header, ':', "--header: write 'name: value'")?;
        description.ip.clone_from(&self.ip);
        description.tenant.clone_from(&self.tenant);
        description.action.clone_from(&self.action);
        description.attributes = parse_pairs(&self.attr, '=', "--attr: write name=value")?;
        description.body.clone_from(&self.body);
        Ok(description)
    }
}

/// The position of the first invalid pair, counting from 1. Errors name it because the value is not repeated.
fn first_invalid(pairs: &[(String, String)], description_of: impl Fn((String, String)) -> RequestDescription) -> usize {
    1 + pairs.iter().take_while(|pair| description_of((*pair).clone()).attributes().is_ok()).count()
}

fn parse_pairs(texts: &[String], separator: char, hint: &str) -> Result<Vec<(String, String)>, Failure> {
    let pair = |(index, text): (usize, &String)| match text.split_once(separator) {
        Some((name, value)) => Ok((name.trim().to_owned(), value.to_owned())),
        None => Err(Failure::usage(format!("{hint}; number {} has no `{separator}`", index + 1))),
    };
    texts.iter().enumerate().map(pair).collect()
}
