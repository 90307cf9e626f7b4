//! Finding the rules of a request by matching alone, for a front end that must know what they read before it has it.

use super::RuleSet;
use crate::attributes::BODY;
use crate::rule::Rule;
use crate::spi::{BodyUse, RequestMemo};
use crate::{Request, RequestProblem};

/// Finding
impl RuleSet {
    /// Calls `found` with each rule that applies to `request`, and returns how the result depends on the parts of the body that the request
    /// does not have. This takes no key, no hash and no plan. A rule may be found several times: for each reading of the path, and for each
    /// subject. An error means that the request cannot be judged, whatever was found before.
    ///
    /// ```
    /// use tidegate::spi::BodyNeed;
    /// use tidegate::{Limit, Rate, Request, Rule, RuleSet};
    ///
    /// let limit = Limit::token_bucket(20, Rate::per_second(10)?)?;
    /// let rules = RuleSet::new([
    ///     Rule::new("login", limit).with_action("login").with_per(["body"]),
    ///     Rule::new("api", limit).with_per(["ip"]),
    /// ])?;
    ///
    /// let find = |action| {
    ///     let mut ids = Vec::new();
    ///     let body_use = rules.find(&Request::new(action), |rule| ids.push(rule.id.to_string()));
    ///     body_use.map(|body_use| (ids, body_use.text))
    /// };
    /// assert_eq!(find("login"), Ok((vec!["login".to_owned(), "api".to_owned()], BodyNeed::Enforced)));
    /// assert_eq!(find("list"), Ok((vec!["api".to_owned()], BodyNeed::None)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn find(&self, request: &Request<'_>, mut found: impl FnMut(&Rule)) -> Result<BodyUse, RequestProblem> {
        let Some(path) = self.ambiguous_path(request) else {
            return self.find_in_reading(request, &RequestMemo::new(), &mut found);
        };
        let mut all = Ok(BodyUse::default());
        self.for_each_reading(request, path, |request, memo| {
            if let Ok(body_use) = &mut all {
                match self.find_in_reading(request, memo, &mut found) {
                    Ok(further) => *body_use = body_use.unite(further),
                    Err(problem) => all = Err(problem),
                }
            }
        })?;
        all
    }

    fn find_in_reading(
        &self,
        request: &Request<'_>,
        memo: &RequestMemo,
        found: &mut impl FnMut(&Rule),
    ) -> Result<BodyUse, RequestProblem> {
        if let Some(matcher) = &self.matcher {
            return matcher.find(request, memo, &mut |matched| found(&self.rules[matched.rule].rule));
        }
        let lacks_body = self.lacks_body(request);
        let mut body_use = BodyUse::default();
        for index in self.matching(request.action()) {
            let indexed = &self.rules[*index as usize];
            if let Some((kind, name)) = indexed.problem(request) {
                return Err(RequestProblem::new(kind, name));
            }
            if lacks_body {
                body_use = body_use.unite(indexed.body_use());
            }
            found(&indexed.rule);
        }
        Ok(body_use)
    }

    /// Whether rules read bodies, and the request has none.
    #[inline(always)]
    pub(super) fn lacks_body(&self, request: &Request<'_>) -> bool {
        self.reads_body && request.attribute(BODY).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::OnMissing;
    use crate::spi::{BodyNeed, RequestProblemKind};
    use crate::{Limit, Rate, RuleMode};

    fn rules() -> RuleSet {
        let limit = Limit::token_bucket(5, Rate::per_hour(1).unwrap()).unwrap();
        let rule = |id| Rule::new(id, limit);
        RuleSet::new([
            rule("page").with_per(["path"]).with_action("read"),
            rule("new").with_per(["body"]).with_action("read").with_mode(RuleMode::Shadow),
            rule("login").with_per(["body"]).with_action("login"),
            rule("user").with_per(["user"]).with_on_missing(OnMissing::Error).with_action("login"),
        ])
        .unwrap()
    }

    fn find(request: &Request<'_>) -> Result<(Vec<String>, BodyNeed), RequestProblemKind> {
        let (rules, mut ids) = (rules(), Vec::new());
        let body_use = rules.find(request, |rule| ids.push(rule.id.to_string()));
        let plan = rules.resolve(request);
        assert_eq!(body_use.clone().ok(), plan.problem().is_none().then(|| plan.body_use()), "as the plan says");
        assert_eq!(body_use.as_ref().err(), plan.problem());
        body_use.map(|body_use| (ids, body_use.text)).map_err(|problem| problem.kind())
    }

    #[test]
    fn matching_alone_finds_the_rules_of_the_plan_and_what_they_read_of_the_body() {
        let read = Request::new("read");
        let both = vec!["page".to_owned(), "new".to_owned()];
        assert_eq!(find(&read), Ok((both.clone(), BodyNeed::Shadow)));
        assert_eq!(find(&read.clone().with_attribute("body", "{}")), Ok((both.clone(), BodyNeed::None)));
        let readings = [both.clone(), both].concat();
        assert_eq!(find(&read.with_attribute("path", "/a%2Fb")), Ok((readings, BodyNeed::Shadow)));
        let login = Request::new("login").with_attribute("user", "ann");
        assert_eq!(find(&login), Ok((vec!["login".to_owned(), "user".to_owned()], BodyNeed::Enforced)));
        assert_eq!(find(&Request::new("other")), Ok((vec![], BodyNeed::None)));
    }

    #[test]
    fn a_request_that_cannot_be_judged_is_found_out_by_matching() {
        assert_eq!(find(&Request::new("login")), Err(RequestProblemKind::Missing));
        let repeated = Request::new("login").with_attribute("user", "ann").with_further_value("user", "ben");
        assert_eq!(find(&repeated), Err(RequestProblemKind::Repeated));
        let ambiguous = Request::new("read").with_attribute("path", "/a;b%2Fc\\d");
        assert!(matches!(find(&ambiguous), Err(RequestProblemKind::Path(_))));
    }
}
