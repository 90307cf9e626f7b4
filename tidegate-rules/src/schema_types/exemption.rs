//! The section `exempt`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{MatchSpec, TextScalar};
use crate::read::{OneOrMany, Spanned};

/// Requests that are exempt. Every given field must match; of a list, one entry must.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Exemption")]
pub(crate) struct ExemptionSpec {
    /// The ids of the rules that do not apply; all rules if missing.
    pub(crate) rules: Option<Spanned<OneOrMany<Spanned<String>>>>,
    /// The HTTP method.
    #[serde(default)]
    method: OneOrMany<Spanned<String>>,
    /// The path: `/a/b`, `/a/{id}` for any one segment, `/a/*` for all paths below.
    #[serde(default)]
    path: OneOrMany<Spanned<String>>,
    /// The host: `api.example.com`, or `*.example.com` for its subdomains.
    #[serde(default)]
    host: OneOrMany<Spanned<String>>,
    /// Headers by name with their value; `*` for any value.
    #[serde(default)]
    header: BTreeMap<String, OneOrMany<Spanned<TextScalar>>>,
    /// The tenant, which must be authenticated.
    #[serde(default)]
    tenant: OneOrMany<Spanned<TextScalar>>,
    /// The plan, which must be that of authenticated tenants.
    #[serde(default)]
    plan: OneOrMany<Spanned<String>>,
    /// The action, such as `login` or `export`.
    #[serde(default)]
    action: OneOrMany<Spanned<String>>,
    /// The address of the client: networks such as `10.0.0.0/8`.
    #[serde(default)]
    ip: OneOrMany<Spanned<String>>,
}

impl ExemptionSpec {
    /// The fields that it shares with `match`.
    pub(crate) fn condition(&self) -> MatchSpec {
        let Self { rules: _, method, path, host, header, tenant, plan, action, ip } = self;
        MatchSpec {
            method: method.clone(),
            path: path.clone(),
            host: host.clone(),
            header: header.clone(),
            tenant: tenant.clone(),
            plan: plan.clone(),
            action: action.clone(),
            ip: ip.clone(),
        }
    }
}
