//! `Facts`: what conditions ask about a request, each found out at most once.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;

use smol_str::SmolStr;
use tidegate::Request;

use crate::matching::Matching;

/// A request as the rules see it.
pub(crate) struct Facts<'m, 'q> {
    pub(crate) request: &'m Request<'q>,
    matching: &'m Matching,
    path: OnceCell<Option<Cow<'q, str>>>,
    tenant: OnceCell<Option<Cow<'q, str>>>,
    plan: OnceCell<SmolStr>,
    client: OnceCell<Option<IpAddr>>,
}

impl<'m, 'q> Facts<'m, 'q> {
    pub(crate) fn new(request: &'m Request<'q>, matching: &'m Matching) -> Self {
        Self {
            request,
            matching,
            path: OnceCell::new(),
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

    /// The host in lower case, without a port.
    pub(crate) fn host(&self) -> Option<Cow<'q, str>> {
        let host = self.request.value("host")?;
        let host = match host.rsplit_once(':') {
            Some((name, port)) if !name.ends_with(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let host = host.strip_suffix('.').unwrap_or(host);
        let lower = !host.bytes().any(|byte| byte.is_ascii_uppercase());
        Some(if lower { Cow::Borrowed(host) } else { Cow::Owned(host.to_ascii_lowercase()) })
    }

    /// The tenant.
    pub(crate) fn tenant(&self) -> Option<&str> {
        let find = || self.matching.tenant.find(self.request, &self.matching.reading).map(|found| found.value);
        self.tenant.get_or_init(find).as_deref()
    }

    /// The plan: what the request says, else that of its tenant, else the default one; empty if there is none.
    pub(crate) fn plan(&self) -> &str {
        self.plan.get_or_init(|| {
            if let Some(found) = self.matching.plan.find(self.request, &self.matching.reading) {
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
