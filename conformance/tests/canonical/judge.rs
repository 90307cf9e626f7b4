//! `Report`: what an upstream read from a request.

use serde::Deserialize;

/// What an upstream read. Where it has several ways to read a part, it reports all of them.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Report {
    pub(crate) method: String,
    #[serde(deserialize_with = "present")]
    pub(crate) paths: Vec<String>,
    #[serde(deserialize_with = "present")]
    pub(crate) keys: Vec<String>,
    #[serde(deserialize_with = "present")]
    pub(crate) accounts: Vec<String>,
    #[serde(deserialize_with = "present")]
    pub(crate) sessions: Vec<String>,
    #[serde(deserialize_with = "present")]
    pub(crate) users: Vec<String>,
    #[serde(deserialize_with = "present")]
    pub(crate) hosts: Vec<String>,
    pub(crate) forwarded_for: String,
}

/// How an upstream writes its report.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReportFormat {
    Json,
    /// A line `name=value` for each value; the last one may contain line breaks.
    Lines,
}

impl Report {
    pub(crate) fn read(format: ReportFormat, body: &[u8]) -> Self {
        match format {
            ReportFormat::Json => serde_json::from_slice(body)
                .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(body))),
            ReportFormat::Lines => Self::read_lines(&String::from_utf8_lossy(body)),
        }
    }

    fn read_lines(body: &str) -> Self {
        let mut report = Self::default();
        for line in body.splitn(10, '\n') {
            let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("{body}"));
            let values = match name {
                "method" => {
                    value.clone_into(&mut report.method);
                    continue;
                }
                "forwarded_for" => {
                    value.clone_into(&mut report.forwarded_for);
                    continue;
                }
                "paths" => &mut report.paths,
                "keys" => &mut report.keys,
                "accounts" => &mut report.accounts,
                "sessions" => &mut report.sessions,
                "hosts" => &mut report.hosts,
                other => panic!("{other}: {body}"),
            };
            values.extend((!value.is_empty()).then(|| value.to_owned()));
        }
        report
    }
}

/// The values that are present.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let values: Vec<Option<String>> = Vec::deserialize(deserializer)?;
    Ok(values.into_iter().flatten().collect())
}
