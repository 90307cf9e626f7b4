//! `RequestView`: the values of a request that rules read, each computed at most once. A request whose path has several
//! readings has a view for each.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;

use serde_json::Value;
use smol_str::SmolStr;
use tidegate::{Request, attributes};

use crate::claims;
use crate::identity::IdentityValue;
use crate::provenance::Provenance;
use crate::request_matcher::RequestMatcher;

/// A request with its derived values.
pub(crate) struct RequestView<'m, 'q> {
    pub(crate) request: &'m Request<'q>,
    pub(crate) matcher: &'m RequestMatcher,
    path: OnceCell<Option<&'q str>>,
    host: OnceCell<Option<Cow<'q, str>>>,
    tenant: OnceCell<Option<IdentityValue<'q>>>,
    plan: OnceCell<(SmolStr, Provenance)>,
    client: OnceCell<Option<IpAddr>>,
    body: OnceCell<Option<Value>>,
    claims: OnceCell<Option<Value>>,
}

impl<'m, 'q> RequestView<'m, 'q> {
    pub(crate) fn new(request: &'m Request<'q>, matcher: &'m RequestMatcher) -> Self {
        Self {
            request,
            matcher,
            path: OnceCell::new(),
            host: OnceCell::new(),
            body: OnceCell::new(),
            claims: OnceCell::new(),
            tenant: OnceCell::new(),
            plan: OnceCell::new(),
            client: OnceCell::new(),
        }
    }

    /// The path, which is one of its readings in the normal form.
    pub(crate) fn path(&self) -> Option<&'q str> {
        *self.path.get_or_init(|| self.request.attribute(attributes::PATH))
    }

    /// The method; case matters.
    pub(crate) fn method(&self) -> Option<&'q str> {
        self.request.attribute(attributes::METHOD)
    }

    /// The host in its normal form.
    pub(crate) fn host(&self) -> Option<&str> {
        self.host.get_or_init(|| Some(attributes::normalize_host(self.request.attribute(attributes::HOST)?))).as_deref()
    }

    /// A field of the body, which is parsed once.
    pub(crate) fn body_field(&self, name: &str) -> Option<String> {
        let body = self.body.get_or_init(|| claims::parse_body(self.request.attribute(attributes::BODY)?));
        claims::field_text(body.as_ref()?, name)
    }

    /// A claim of the token, which is decoded once.
    pub(crate) fn claim(&self, name: &str) -> Option<String> {
        let token = self
            .claims
            .get_or_init(|| claims::decode_claims(self.request.attribute(&self.matcher.identity_config.token)?));
        claims::field_text(token.as_ref()?, name)
    }

    /// The tenant.
    pub(crate) fn tenant(&self) -> Option<&str> {
        self.tenant_value().map(|found| &*found.value)
    }

    /// The provenance of the tenant, or of its absence.
    pub(crate) fn tenant_provenance(&self) -> Provenance {
        self.tenant_value().map_or_else(|| self.matcher.tenant.provenance_if_missing(), |found| found.provenance)
    }

    fn tenant_value(&self) -> Option<&IdentityValue<'q>> {
        self.tenant.get_or_init(|| self.matcher.tenant.find(self)).as_ref()
    }

    /// The plan: that of the request, else that of its tenant, else the default; empty if there is none.
    pub(crate) fn plan(&self) -> &str {
        &self.plan_value().0
    }

    /// The provenance of the plan. Plans are few and identify nobody, unless a client can choose any.
    pub(crate) fn plan_provenance(&self) -> Provenance {
        self.plan_value().1
    }

    fn plan_value(&self) -> &(SmolStr, Provenance) {
        self.plan.get_or_init(|| {
            if let Some(found) = self.matcher.plan.find(self) {
                let provenance =
                    if found.provenance == Provenance::Verified { Provenance::NoIdentity } else { found.provenance };
                return (SmolStr::new(&found.value), provenance);
            }
            let belongs_to_tenant = self.tenant().and_then(|tenant| self.matcher.plan_of_tenant.get(tenant));
            (belongs_to_tenant.unwrap_or(&self.matcher.default_plan).clone(), Provenance::NoIdentity)
        })
    }

    /// The address of the client.
    pub(crate) fn client(&self) -> Option<IpAddr> {
        *self.client.get_or_init(|| self.matcher.identity_config.client(self.request))
    }
}
