//! `Selection`: which accounts and periods a call is about, from a query or from a JSON body.

use serde::Deserialize;
use tidegate::Limiter;
use tidegate::limits::Period;
use tidegate::spi::{Plan, Subject};
use tidegate_rules::RuleFile;

use super::UsageError;
use super::period_text::{end_of, parse_time};
use crate::admin::subjects::SubjectPlans;
use crate::doors::check::{BadRequest, CheckBody};
use crate::engine::instrumented_store::InstrumentedStore;

/// The most rows of a page.
const MAX_LIMIT: u32 = 10_000;

/// The fields of a call.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selection {
    /// The subject. Only in a body, since addresses of calls end up in logs.
    request: Option<CheckBody>,
    tenant: Option<String>,
    pub(super) rule: Option<String>,
    period: Option<String>,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    /// Only periods that run now.
    #[serde(default)]
    pub(super) current: bool,
    limit: Option<u32>,
    after: Option<String>,
    pub(super) format: Option<String>,
}

/// Accounts that one query finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AccountFilter {
    All,
    /// Those with this name.
    Tenant(String),
    /// Those of this subject, except those with the name of the tenant.
    Subject(Subject, Option<String>),
}

/// Where a page begins: the number of the filter, and the cursor behind which its rows begin.
pub(super) type PageStart = (usize, Option<String>);

impl Selection {
    /// The most rows of the page.
    pub(super) fn limit(&self, default: u32) -> Result<u32, BadRequest> {
        match self.limit.unwrap_or(default) {
            limit @ 1..=MAX_LIMIT => Ok(limit),
            _ => Err(BadRequest::new(format!("limit: this must be a number from 1 to {MAX_LIMIT}"))),
        }
    }

    /// The length of periods.
    pub(super) fn period(&self) -> Result<Option<Period>, BadRequest> {
        let wrong = |_| BadRequest::new("period: this must be hour, day, week, month or year");
        self.period.as_deref().map(|text| text.parse().map_err(wrong)).transpose()
    }

    /// The first instant of the selection.
    pub(super) fn first_instant(&self) -> Result<Option<tidegate::Timestamp>, BadRequest> {
        read_date("from", self.from.as_deref(), parse_time)
    }

    /// The first instant behind the selection: the end of the day, month or year that `to` names.
    pub(super) fn end(&self) -> Result<Option<tidegate::Timestamp>, BadRequest> {
        read_date("to", self.to.as_deref(), end_of)
    }

    /// Where the page begins. Fails if no page of this number of filters leads there: an empty one would look like the end.
    pub(super) fn start(&self, filters: usize) -> Result<PageStart, BadRequest> {
        let Some(after) = &self.after else { return Ok((0, None)) };
        let parsed = after.split_once(':').and_then(|(filter, cursor)| Some((filter.parse().ok()?, cursor)));
        let (filter, cursor) = parsed
            .filter(|(filter, _)| *filter < filters)
            .ok_or_else(|| BadRequest::new("after: this must be one of an earlier answer"))?;
        Ok((filter, Some(cursor.to_owned()).filter(|cursor| !cursor.is_empty())))
    }

    /// Whether this is the first page.
    pub(super) const fn is_first(&self) -> bool {
        self.after.is_none()
    }

    /// Which accounts are meant. A tenant is found by its name, where rules keep it, and by its hash under rules in force.
    pub(super) fn filters(
        &mut self,
        limiter: &Limiter<InstrumentedStore>,
        file: &RuleFile,
    ) -> Result<Vec<AccountFilter>, UsageError> {
        let (tenant, request) = (self.tenant.take(), self.request.take());
        let body = match (tenant.clone(), request) {
            (Some(_), Some(_)) => {
                return Err(BadRequest::new("`tenant` and `request` are both given: choose one").into());
            }
            (None, None) => return Ok(vec![AccountFilter::All]),
            (Some(tenant), None) => CheckBody::for_tenant(tenant),
            (None, Some(request)) => request,
        };
        let tenant = tenant.or_else(|| body.only_tenant());
        let attributes = body.into_subject()?;
        // A rule that is not in force any more may still have accounts.
        let only = self.rule.as_deref().filter(|rule| limiter.rules().rule(rule).is_some());
        let request = attributes.request();
        let subject = SubjectPlans::new(limiter, file, &request, only)?;
        let checks = subject.plans.iter().flat_map(Plan::checks).filter(|check| check.gate().ledger().is_some());
        let mut subjects: Vec<Subject> = checks.map(|check| check.key().subject()).collect();
        subjects.sort_unstable_by_key(|subject| subject.hash());
        subjects.dedup();
        let by_name = tenant.clone().map(AccountFilter::Tenant);
        let by_subject = subjects.into_iter().map(|subject| AccountFilter::Subject(subject, tenant.clone()));
        let filters: Vec<AccountFilter> = by_name.into_iter().chain(by_subject).collect();
        if filters.is_empty() {
            let message =
                "no quota with a ledger counts by this subject alone; `tidegate subject show` says what rules need";
            return Err(BadRequest::new(message).into());
        }
        Ok(filters)
    }
}

fn read_date<T>(name: &str, text: Option<&str>, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, BadRequest> {
    let wrong =
        || BadRequest::new(format!("{name}: this must be a date such as 2026, 2026-03, 2026-03-29 or 2026-03-29T05"));
    text.map(|text| parse(text).ok_or_else(wrong)).transpose()
}

impl AccountFilter {
    /// The conditions of a query: the name and the subject.
    pub(super) fn conditions(&self) -> (Option<String>, Option<Subject>) {
        match self {
            Self::All => (None, None),
            Self::Tenant(name) => (Some(name.clone()), None),
            Self::Subject(subject, _) => (None, Some(*subject)),
        }
    }

    /// Whether an earlier query has found an account with this name.
    pub(super) fn is_repeated(&self, name: Option<&str>) -> bool {
        matches!(self, Self::Subject(_, tenant @ Some(_)) if tenant.as_deref() == name)
    }
}

/// Where the next page begins, after `rows` of a filter with this number, of which there may be more.
pub(super) fn next_start(filter: usize, cursor: Option<&str>) -> String {
    format!("{filter}:{}", cursor.unwrap_or_default())
}
