//! `RequestView`: the values of a request that rules read, each computed at most once. A request whose path has several
//! readings has a view for each.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::net::IpAddr;

use serde_json::Value;
use smol_str::{SmolStr, format_smolstr};
use tidegate::attributes::NormalForm;
use tidegate::spi::{BodyNeed, BodyUse, RequestMemo, RequestProblemKind};
use tidegate::{Request, RequestProblem, attributes};

use crate::claims;
use crate::identity::IdentityValue;
use crate::json_body::{BodyField, BodyFields, FieldValues};
use crate::provenance::Provenance;
use crate::query::{self, Parameter};
use crate::repeated::{MAX_REPEATED_VALUES, RepeatedPolicy};
use crate::request_matcher::RequestMatcher;

/// A request with its derived values.
pub struct RequestView<'m, 'q> {
    pub request: &'m Request<'q>,
    pub matcher: &'m RequestMatcher,
    path: OnceCell<Option<&'q str>>,
    host: OnceCell<Option<Cow<'q, str>>>,
    tenant: OnceCell<Option<IdentityValue<'q>>>,
    scope: OnceCell<Option<IdentityValue<'q>>>,
    plan: OnceCell<(SmolStr, Provenance)>,
    client: OnceCell<Option<IpAddr>>,
    /// Shared with the views of the other readings.
    memo: Option<&'m RequestMemo>,
    /// The fields of the body, if they are not in the memo.
    body: OnceCell<BodyFields>,
    /// Whether the body was to be read, and is not there.
    lacks_body: Cell<bool>,
    /// Whether the size was to be read, and is not known.
    assumes_size: Cell<bool>,
    claims: OnceCell<Option<Value>>,
    problem: OnceCell<RequestProblem>,
}

impl<'m, 'q> RequestView<'m, 'q> {
    pub fn new(request: &'m Request<'q>, matcher: &'m RequestMatcher) -> Self {
        Self {
            request,
            matcher,
            path: OnceCell::new(),
            host: OnceCell::new(),
            memo: None,
            body: OnceCell::new(),
            lacks_body: Cell::new(false),
            assumes_size: Cell::new(false),
            claims: OnceCell::new(),
            tenant: OnceCell::new(),
            scope: OnceCell::new(),
            plan: OnceCell::new(),
            client: OnceCell::new(),
            problem: OnceCell::new(),
        }
    }

    /// Shares what does not depend on the path with the views of other readings.
    pub(crate) const fn with_memo(mut self, memo: &'m RequestMemo) -> Self {
        self.memo = Some(memo);
        self
    }

    /// The path, which is one of its readings in the normal form.
    pub fn path(&self) -> Option<&'q str> {
        *self.path.get_or_init(|| self.request.attribute(attributes::PATH))
    }

    /// The method; case matters.
    pub fn method(&self) -> Option<&'q str> {
        self.request.attribute(attributes::METHOD)
    }

    /// The host in its normal form.
    pub fn host(&self) -> Option<&str> {
        self.host.get_or_init(|| Some(attributes::normalize_host(self.attribute(attributes::HOST)?))).as_deref()
    }

    /// A field of the body.
    pub(crate) fn body_field(&self, name: &str) -> Option<String> {
        self.body_text(name, FieldValues::text)
    }

    /// A field of the body for a cost, in which every number counts.
    pub(crate) fn body_text_or_number(&self, name: &str) -> Option<String> {
        self.body_text(name, FieldValues::text_or_number)
    }

    fn body_text(&self, name: &str, read: for<'b> fn(&'b FieldValues) -> BodyField<'b>) -> Option<String> {
        let Some(text) = self.request.attribute(attributes::BODY) else {
            self.lacks_body.set(true);
            return None;
        };
        if text.len() > self.matcher.max_body_bytes {
            self.refuse(RequestProblemKind::TooLong, attributes::BODY);
        }
        let index = self.matcher.body_fields.iter().position(|known| known == name);
        let other;
        let values = if let Some(values) = index.and_then(|index| self.body_fields(text).get(index)) {
            values
        } else {
            // An explanation also asks for those of disabled rules.
            other = FieldValues::parse(text, name, self.matcher.max_body_bytes);
            &other
        };
        let text = match read(values) {
            BodyField::Missing => None,
            BodyField::Once(text) => Some(text),
            BodyField::Repeated { first, last } => {
                let source = format_smolstr!("body:{name}");
                match self.policy(&source) {
                    RepeatedPolicy::First => first,
                    RepeatedPolicy::Last => last,
                    RepeatedPolicy::Reject => {
                        self.refuse(RequestProblemKind::Repeated, source);
                        None
                    }
                }
            }
        };
        text.map(str::to_owned)
    }

    /// All fields of the body that the file reads, from one pass over it.
    fn body_fields(&self, text: &str) -> &BodyFields {
        let parse = || BodyFields::parse(text, &self.matcher.body_fields, self.matcher.max_body_bytes);
        let shared = self.memo.and_then(|memo| memo.get_or_compute(parse));
        shared.unwrap_or_else(|| self.body.get_or_init(parse))
    }

    /// Records that the body is read by the front end itself, for the token usage.
    pub(crate) fn need_body(&self) {
        if self.request.attribute(attributes::BODY).is_none() {
            self.lacks_body.set(true);
        }
    }

    /// The size of the body in bytes, as text. If it is not known, the size that the file assumes.
    pub(crate) fn size(&self) -> Cow<'q, str> {
        let is_number = |size: &&str| !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_digit());
        self.request.attribute(attributes::SIZE).filter(is_number).map_or_else(
            || {
                self.assumes_size.set(true);
                Cow::Owned(self.matcher.unknown_size.to_string())
            },
            Cow::Borrowed,
        )
    }

    /// How the values that were read since the last call depend on the body. `need` is for what they are read.
    pub(crate) fn take_body_use(&self, need: BodyNeed) -> BodyUse {
        let need_if = |is_read: bool| if is_read { need } else { BodyNeed::None };
        let assumes_size = self.assumes_size.take();
        BodyUse {
            text: need_if(self.lacks_body.take()),
            size: need_if(assumes_size),
            assumed_size: assumes_size.then_some(self.matcher.unknown_size),
        }
    }

    /// A claim of the token, which is decoded once.
    pub(crate) fn claim(&self, name: &str) -> Option<String> {
        let claims = self.claims.get_or_init(|| {
            let header = &self.matcher.identity_config.token;
            let value = self.attribute(header)?;
            self.refuse_ambiguous(header, value);
            let token = claims::token(value)?;
            if token.len() > claims::MAX_TOKEN_BYTES {
                self.refuse(RequestProblemKind::TooLong, header);
            }
            claims::decode_claims(&token)
        });
        claims::field_text(claims.as_ref()?, name)
    }

    /// An attribute. Of one that came more than once, the value that its policy selects.
    pub fn attribute(&self, name: &str) -> Option<&'q str> {
        let first = self.request.attribute(name)?;
        if !self.request.has_repeats() {
            return Some(first);
        }
        let Some(last) = self.request.further_values(name).last() else { return Some(first) };
        Some(match self.policy(name) {
            RepeatedPolicy::First => first,
            RepeatedPolicy::Last => last,
            RepeatedPolicy::Reject => {
                self.refuse(RequestProblemKind::Repeated, name);
                first
            }
        })
    }

    /// The value of a header for a condition: of credentials their normal form, without which a client avoids a rule for its key.
    pub(crate) fn header_value(&self, attribute: &str) -> Option<Cow<'q, str>> {
        let value = self.attribute(attribute)?;
        let is_credential = attributes::header_name(attribute).is_some_and(attributes::is_credential_header);
        if is_credential || attribute == self.matcher.identity_config.token {
            self.refuse_ambiguous(attribute, value);
            return Some(NormalForm::Credentials.apply(value));
        }
        Some(Cow::Borrowed(value.trim()))
    }

    /// A parameter of the query.
    pub(crate) fn query_parameter(&self, name: &str) -> Option<Cow<'q, str>> {
        match query::parameter(self.request.attribute(attributes::QUERY)?, name) {
            Parameter::Missing => None,
            Parameter::Once(value) => Some(value),
            Parameter::Ambiguous => {
                self.refuse(RequestProblemKind::Ambiguous, format_smolstr!("query:{name}"));
                None
            }
            Parameter::Repeated { first, last } => {
                let source = format_smolstr!("query:{name}");
                match self.policy(&source) {
                    RepeatedPolicy::First => Some(first),
                    RepeatedPolicy::Last => Some(last),
                    RepeatedPolicy::Reject => {
                        self.refuse(RequestProblemKind::Repeated, source);
                        None
                    }
                }
            }
        }
    }

    /// A cookie where only one value can count: one that selects a plan, a tenant or a cost.
    pub(crate) fn cookie(&self, name: &str) -> Option<Cow<'q, str>> {
        let (first, others) = self.cookies(name)?;
        if !others.is_empty() {
            self.refuse(RequestProblemKind::Repeated, format_smolstr!("cookie:{name}"));
        }
        Some(first)
    }

    /// The different values of a cookie: the first, and all others.
    pub(crate) fn cookies(&self, name: &str) -> Option<(Cow<'q, str>, Vec<String>)> {
        let header = self.request.attribute(attributes::COOKIE_HEADER)?;
        let mut values = query::cookies(header, name).into_iter();
        let first = values.next()?;
        let others: Vec<String> = values.map(Cow::into_owned).collect();
        if others.is_empty() {
            return Some((first, others));
        }
        let source = format_smolstr!("cookie:{name}");
        match self.policy(&source) {
            RepeatedPolicy::First => Some((first, Vec::new())),
            RepeatedPolicy::Last => Some((query::last_cookie(header, name)?, Vec::new())),
            RepeatedPolicy::Reject => {
                if others.len() >= MAX_REPEATED_VALUES {
                    self.refuse(RequestProblemKind::TooManyValues, source);
                }
                Some((first, others))
            }
        }
    }

    /// Why the request cannot be judged, as far as it has been read.
    pub(crate) fn problem(&self) -> Option<&RequestProblem> {
        self.problem.get()
    }

    /// Records why the request cannot be judged. The first reason stays.
    pub(crate) fn refuse(&self, kind: RequestProblemKind, source: impl AsRef<str>) {
        self.problem.get_or_init(|| RequestProblem::new(kind, source));
    }

    /// Refuses credentials that servers read as those of two clients.
    fn refuse_ambiguous(&self, header: &str, credentials: &str) {
        if NormalForm::Credentials.is_ambiguous(credentials) {
            self.refuse(RequestProblemKind::Ambiguous, header);
        }
    }

    fn policy(&self, source: &str) -> RepeatedPolicy {
        self.matcher.identity_config.repeated.policy(source)
    }

    /// The tenant.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant_value().map(|found| &*found.value)
    }

    /// The tenant with its provenance.
    pub fn tenant_value(&self) -> Option<&IdentityValue<'q>> {
        self.tenant.get_or_init(|| self.matcher.tenant.find(self)).as_ref()
    }

    /// The tenant that a client cannot choose, which scopes subjects and selects plans.
    pub fn scope(&self) -> Option<&IdentityValue<'q>> {
        self.scope.get_or_init(|| self.matcher.scope.find(self)).as_ref()
    }

    /// The plan: that of the request, else that of its authenticated tenant, else the default; empty if there is none.
    pub fn plan(&self) -> &str {
        &self.plan_value().0
    }

    /// The provenance of the plan. Plans are few and identify nobody, unless a client can choose any.
    pub fn plan_provenance(&self) -> Provenance {
        self.plan_value().1
    }

    fn plan_value(&self) -> &(SmolStr, Provenance) {
        self.plan.get_or_init(|| {
            if let Some(found) = self.matcher.plan.find(self) {
                let provenance =
                    if found.provenance == Provenance::Verified { Provenance::NoIdentity } else { found.provenance };
                return (SmolStr::new(&found.value), provenance);
            }
            let belongs_to_tenant = self.scope().and_then(|tenant| self.matcher.plan_of_tenant.get(&*tenant.value));
            (belongs_to_tenant.unwrap_or(&self.matcher.default_plan).clone(), Provenance::NoIdentity)
        })
    }

    /// The address of the client.
    pub fn client(&self) -> Option<IpAddr> {
        *self.client.get_or_init(|| self.matcher.identity_config.client(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleFile;
    use crate::json_body::passes;

    /// Otherwise a client multiplies the work for a long body, before the decision, by an ambiguous path.
    #[test]
    fn a_body_is_read_in_one_pass_for_all_fields_and_all_readings_of_the_path() {
        let text = "version: 1\nidentify: { tenant: 'body:tenant' }\nrules:\n\
             - { id: a, match: { path: '/x/{page}' }, per: ['body:account', tenant], token_bucket: { capacity: 5, refill: 1/s } }\n\
             - { id: b, per: [path, 'body:user.id'], cost: { expression: 'int(request.body.n, 7)' }, token_bucket: { capacity: 5, refill: 1/s } }\n";
        let file = RuleFile::parse("rules.yaml", text).unwrap_or_else(|report| panic!("{report}"));
        let body = r#"{"account":"ann","tenant":"acme","user":{"id":7},"n":3}"#;
        for (path, checks) in [("/x/y", 2), ("/x%2Fy", 3)] {
            let request = Request::new("").with_attribute("path", path).with_attribute("body", body);
            let before = passes();
            let plan = file.rules().resolve(&request);
            assert_eq!((plan.checks().len(), plan.problem()), (checks, None), "{path}");
            assert_eq!(passes() - before, 1, "{path}");
        }
    }
}
