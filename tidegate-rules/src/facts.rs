//! `Facts`: what conditions ask about a request, each found out at most once.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;

use serde_json::Value;
use smol_str::SmolStr;
use tidegate::Request;

use crate::claims;
use crate::matching::Matching;

/// A request as the rules see it.
pub(crate) struct Facts<'m, 'q> {
    pub(crate) request: &'m Request<'q>,
    pub(crate) matching: &'m Matching,
    path: OnceCell<Option<Cow<'q, str>>>,
    host: OnceCell<Option<Cow<'q, str>>>,
    tenant: OnceCell<Option<Cow<'q, str>>>,
    plan: OnceCell<SmolStr>,
    client: OnceCell<Option<IpAddr>>,
    body: OnceCell<Option<Value>>,
    claims: OnceCell<Option<Value>>,
}

impl<'m, 'q> Facts<'m, 'q> {
    pub(crate) fn new(request: &'m Request<'q>, matching: &'m Matching) -> Self {
        Self {
            request,
            matching,
            path: OnceCell::new(),
            host: OnceCell::new(),
            body: OnceCell::new(),
            claims: OnceCell::new(),
            tenant: OnceCell::new(),
            plan: OnceCell::new(),
            client: OnceCell::new(),
        }
    }

    /// The path in its normal form.
    pub(crate) fn path(&self) -> Option<&str> {
        self.path.get_or_init(|| Some(crate::path::normal(self.request.value("path")?))).as_deref()
    }

    /// The method; methods are told apart by case.
    pub(crate) fn method(&self) -> Option<&'q str> {
        self.request.value("method")
    }

    /// The host in its normal form.
    pub(crate) fn host(&self) -> Option<&str> {
        self.host.get_or_init(|| Some(crate::host::normal(self.request.value("host")?))).as_deref()
    }

    /// A field of the body, which is parsed once.
    pub(crate) fn body_field(&self, name: &str) -> Option<String> {
        let body = self.body.get_or_init(|| claims::body(self.request.value("body")?));
        claims::field(body.as_ref()?, name)
    }

    /// A claim of the token, which is decoded once.
    pub(crate) fn claim(&self, name: &str) -> Option<String> {
        let token = self.claims.get_or_init(|| claims::claims(self.request.value(&self.matching.reading.token)?));
        claims::field(token.as_ref()?, name)
    }

    /// The tenant.
    pub(crate) fn tenant(&self) -> Option<&str> {
        let find = || self.matching.tenant.find(self).map(|found| found.value);
        self.tenant.get_or_init(find).as_deref()
    }

    /// The plan: what the request says, else that of its tenant, else the default one; empty if there is none.
    pub(crate) fn plan(&self) -> &str {
        self.plan.get_or_init(|| {
            if let Some(found) = self.matching.plan.find(self) {
                return SmolStr::new(&found.value);
            }
            let of_tenant = self.tenant().and_then(|tenant| self.matching.plan_of_tenant.get(tenant));
            of_tenant.unwrap_or(&self.matching.default_plan).clone()
        })
    }

    /// The address of the client.
    pub(crate) fn client(&self) -> Option<IpAddr> {
        *self.client.get_or_init(|| self.matching.reading.client(self.request))
    }
}
