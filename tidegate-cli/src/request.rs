//! The request that a command is about, from its flags. What a door would make of it is [`SampleRequest`]'s business.

use clap::Args;
use tidegate::spi::MAX_AMOUNT;
use tidegate_rules::{SampleAttributes, SampleRequest};
use tidegate_server::command::Failure;

/// The request.
#[derive(Args)]
#[command(next_help_heading = "The request")]
pub(crate) struct RequestArgs {
    /// The HTTP method
    #[arg(long, short = 'X', value_name = "METHOD")]
    method: Option<String>,
    /// The path, with its query if it has one: '/search?q=tide'
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// The host; left out, the header of that name tells it
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// A header, as often as there are headers
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// The address that connects: the client, or the proxy in front of you
    #[arg(long, value_name = "ADDRESS")]
    ip: Option<String>,
    /// The tenant, as your application knows it
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// What is done: the word that rules ask for as `action`
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// What else your application knows, such as account=a7; as often as needed
    #[arg(long, value_name = "NAME=VALUE")]
    attr: Vec<String>,
    /// The body, for rules that count by one of its fields
    #[arg(long, value_name = "JSON")]
    body: Option<String>,
    /// What the request costs, where the rule does not say
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=MAX_AMOUNT))]
    cost: u64,
}

impl RequestArgs {
    /// What a door would bring. Errors name a flag, and never a value: that may be a key, or a person.
    pub(crate) fn attributes(&self) -> Result<SampleAttributes, Failure> {
        let sample = self.sample()?;
        sample.attributes().map_err(|error| {
            let tenant = || sample.tenant.clone();
            let flag = match error.field() {
                "headers" => {
                    let alone = |(name, value)| SampleRequest::new().with_header(name, value);
                    format!("--header number {}", wrong(&sample.headers, alone))
                }
                "attributes" => {
                    let alone = |(name, value)| {
                        let mut alone = SampleRequest::new().with_attribute(name, value);
                        alone.tenant = tenant();
                        alone
                    };
                    format!("--attr number {}", wrong(&sample.attributes, alone))
                }
                field => format!("--{field}"),
            };
            Failure::usage(format!("{flag}: {}", error.problem()))
        })
    }

    fn sample(&self) -> Result<SampleRequest, Failure> {
        let mut sample = SampleRequest::new().with_cost(self.cost);
        sample.method.clone_from(&self.method);
        sample.path.clone_from(&self.path);
        sample.host.clone_from(&self.host);
        sample.headers = pairs(&self.header, ':', "--header: a header is written 'name: value'")?;
        sample.ip.clone_from(&self.ip);
        sample.tenant.clone_from(&self.tenant);
        sample.action.clone_from(&self.action);
        sample.attributes = pairs(&self.attr, '=', "--attr: an attribute is written name=value")?;
        sample.body.clone_from(&self.body);
        Ok(sample)
    }
}

/// Which of several is the wrong one, from 1. People find it by this, since it is not repeated.
fn wrong(pairs: &[(String, String)], alone: impl Fn((String, String)) -> SampleRequest) -> usize {
    1 + pairs.iter().take_while(|pair| alone((*pair).clone()).attributes().is_ok()).count()
}

fn pairs(texts: &[String], between: char, form: &str) -> Result<Vec<(String, String)>, Failure> {
    let pair = |(place, text): (usize, &String)| match text.split_once(between) {
        Some((name, value)) => Ok((name.trim().to_owned(), value.to_owned())),
        None => Err(Failure::usage(format!("{form}; number {} has no `{between}`", place + 1))),
    };
    texts.iter().enumerate().map(pair).collect()
}
