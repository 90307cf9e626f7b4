//! Resolving a request whose path servers may read in several ways.

use smallvec::SmallVec;

use super::RuleSet;
use crate::Request;
use crate::attributes::{PATH, PathError, PathReadings, is_plain_path};
use crate::plan::Plan;
use crate::spi::RequestMemo;

/// Readings
impl RuleSet {
    /// The readings of a path, unless it is refused.
    pub fn path_readings<'p>(&self, path: &'p str) -> Result<PathReadings<'p>, PathError> {
        self.escaped_slashes.validate(path)?;
        PathReadings::new(path)
    }

    /// The path of a request, if rules read it and it may have several readings.
    #[inline(always)]
    pub(super) fn ambiguous_path<'q>(&self, request: &Request<'q>) -> Option<&'q str> {
        if !self.reads_path {
            return None;
        }
        request.attribute(PATH).filter(|path| !is_plain_path(path))
    }

    /// Calls `read` with the request for each reading of its path.
    pub(super) fn for_each_reading(
        &self,
        request: &Request<'_>,
        path: &str,
        mut read: impl FnMut(&Request<'_>, &RequestMemo),
    ) -> Result<(), PathError> {
        let (readings, memo) = (self.path_readings(path)?, RequestMemo::new());
        for reading in readings.iter() {
            if reading == path {
                read(request, &memo);
            } else {
                read(&request.clone().with_replaced_attribute(PATH, reading), &memo);
            }
        }
        Ok(())
    }

    /// The checks of every reading.
    #[inline(never)]
    pub(super) fn resolve_readings(&self, request: &Request<'_>, path: &str) -> Plan<'_> {
        let mut united: Option<Plan<'_>> = None;
        let readings = self.for_each_reading(request, path, |request, memo| {
            let plan = self.resolve_reading(request, memo);
            united = Some(match united.take() {
                Some(others) => others.unite(&plan),
                None => plan,
            });
        });
        match (readings, united) {
            (Ok(()), Some(plan)) => plan,
            (Ok(()), None) => Plan::from_distinct(SmallVec::new()),
            (Err(error), _) => Plan::refused(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::EscapedSlashes;
    use crate::spi::RequestProblemKind;
    use crate::{Limit, Limiter, MemoryStore, Rate, RequestProblem, Rule};

    /// A path with more than four readings.
    const AMBIGUOUS: &str = "/a;b%2Fc\\d";

    fn limit() -> Limit {
        Limit::token_bucket(5, Rate::per_hour(1).unwrap()).unwrap()
    }

    fn rules() -> RuleSet {
        RuleSet::new([Rule::new("page", limit()).with_per(["path"]), Rule::new("all", limit())]).unwrap()
    }

    fn request(path: &str) -> Request<'_> {
        Request::new("").with_attribute("path", path)
    }

    fn path_error(plan: &Plan<'_>) -> Option<PathError> {
        match plan.problem()?.kind() {
            RequestProblemKind::Path(error) => Some(error),
            _ => None,
        }
    }

    fn keys(plan: &Plan<'_>) -> Vec<(String, u128, u64)> {
        plan.checks().iter().map(|check| (check.gate().rule().id.to_string(), check.key().id(), check.cost())).collect()
    }

    #[test]
    fn a_request_must_pass_the_checks_of_every_reading() {
        let rules = rules();
        let (written, decoded) = (rules.resolve(&request("/a%2Fb")), rules.resolve(&request("/a/b")));
        assert_eq!(keys(&decoded).len(), 2);
        let written = keys(&written);
        // The rule for all requests counts once.
        assert_eq!(written.iter().map(|(rule, ..)| rule.as_str()).collect::<Vec<_>>(), ["page", "all", "page"]);
        assert!(written.contains(&keys(&decoded)[0]) && written[0] != written[2]);
        // Spellings that all servers agree on are one subject.
        assert_eq!(keys(&rules.resolve(&request("/%61/b/"))), keys(&decoded));
    }

    #[test]
    fn a_request_whose_path_cannot_be_judged_is_denied() {
        let limiter = Limiter::new(rules(), MemoryStore::new());
        let ambiguous = request(AMBIGUOUS);
        assert_eq!(path_error(&limiter.plan(&ambiguous)), Some(PathError::TooManyReadings));
        let decision = limiter.check_now(&ambiguous);
        assert!(!decision.is_allowed() && decision.rule().is_none() && decision.retry_after().is_none());
        assert_eq!(decision.problem().map(RequestProblem::status), Some(400));
        let all = limiter.plan(&request("/a")).merge(&limiter.plan(&ambiguous));
        assert_eq!(path_error(&all), Some(PathError::TooManyReadings));
        assert!(all.checks().is_empty());

        let reject = rules().with_escaped_slashes(EscapedSlashes::Reject);
        assert_eq!(path_error(&reject.resolve(&request("/a%2Fb"))), Some(PathError::EscapedSlash));
        assert_eq!(reject.resolve(&request("/a/b")).problem(), None);
    }

    /// Otherwise a spelling of the path would hide the second value.
    #[test]
    fn a_problem_with_one_reading_is_a_problem_with_the_request() {
        let rules = rules();
        let repeated = request("/a%2Fb").with_further_value("path", "/c");
        let (good, bad) = (rules.resolve(&request("/a%2Fb")), rules.resolve(&repeated));
        for united in [good.clone().unite(&bad), bad.clone().unite(&good)] {
            assert_eq!(united.problem().map(RequestProblem::kind), Some(RequestProblemKind::Repeated));
            assert!(united.checks().is_empty());
        }
    }

    #[test]
    fn a_path_that_no_rule_reads_is_not_judged() {
        let rules = RuleSet::new([Rule::new("all", limit())]).unwrap();
        let plan = rules.resolve(&request(AMBIGUOUS));
        assert_eq!((plan.problem(), plan.checks().len()), (None, 1));
    }
}
