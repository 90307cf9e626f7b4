//! `DoorGap`: what a rule reads and a front end never has. Nothing fails for it: the requests share one count, or the rule never
//! applies. So it is reported when a file is validated for a door, when a server starts, and in its metrics.

mod every_door;
mod help;
mod needs;

pub use every_door::report_for_every_door;

use std::fmt;

use tidegate::attributes;
use tidegate_rules::internals::{
    CompiledRule, Cost, Identity, NEVER_APPLIES, NeverApplies, ProxyTrust, RequestMatcher, Source, Span, TenantUse,
    compiled, report_of,
};
use tidegate_rules::{FrontDoor, Problem, Report, RuleFile};

use self::help::help;
use crate::lint::{UNAVAILABLE_AT_DOOR, limits};

/// Something that a rule reads and a front end never has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoorGap {
    rule: String,
    door: FrontDoor,
    source: String,
    effect: GapEffect,
    is_error: bool,
    help: &'static str,
    span: Span,
}

/// What happens to requests through the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GapEffect {
    /// All of them share one count of the rule.
    SharedCount,
    /// They are counted by the other parts of the subject alone.
    CoarserCount,
    /// All clients of a proxy share one count, because the file trusts no proxy.
    ProxyAddress,
    /// Nobody has verified the token, if clients reach the gateway directly: the file trusts no proxy that could have.
    UnverifiedClaim,
    /// The cost is computed without the value.
    MissingInCost,
    /// Every request costs as a body without a length.
    AssumedSize,
    /// The rule never applies to them.
    NeverApplies,
    /// The rule applies to them, although its `front_ends` leave the door out.
    AppliesAnyway,
    /// Each holds its slot for the whole lease: the door does not learn when a request ends.
    HeldForLease,
    /// Each costs its estimate: the door does not learn how many tokens it used.
    UnknownUsage,
}

impl DoorGap {
    /// The id of the rule.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The front end.
    pub const fn door(&self) -> FrontDoor {
        self.door
    }

    /// What the rule reads, as the file names it: `body:email`.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What happens to requests through the door.
    pub const fn effect(&self) -> GapEffect {
        self.effect
    }

    /// What to do about it.
    pub const fn help(&self) -> &'static str {
        self.help
    }

    /// Whether a server with this front end refuses the file: a rule with `security: true` that never applies at the gateway would leave
    /// guesses unlimited.
    pub const fn is_error(&self) -> bool {
        self.is_error
    }

    fn problem(self) -> Problem {
        let code = if self.effect == GapEffect::NeverApplies { NEVER_APPLIES } else { UNAVAILABLE_AT_DOOR };
        let new: fn(_, String, _) -> _ = if self.is_error { Problem::error } else { Problem::warning };
        new(code, self.to_string(), self.span).with_help(self.help)
    }
}

/// One sentence, without a full stop.
impl fmt::Display for DoorGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rule, source, door) = (&self.rule, &self.source, self.door.title());
        match self.effect {
            GapEffect::SharedCount => write!(
                f,
                "rule `{rule}` counts by `{source}`, which {door} never has: all requests there share one count"
            ),
            GapEffect::CoarserCount => write!(
                f,
                "rule `{rule}` counts by `{source}`, which {door} never has: requests there are counted without it"
            ),
            GapEffect::ProxyAddress => write!(
                f,
                "rule `{rule}` counts by `{source}`, and the file trusts no proxy: at {door}, all clients of a proxy share one \
                 count"
            ),
            GapEffect::UnverifiedClaim => write!(
                f,
                "rule `{rule}` reads `{source}`, and the file trusts no proxy: if clients reach {door} directly, nobody has verified \
                 their tokens, and they can forge every claim"
            ),
            GapEffect::MissingInCost => write!(
                f,
                "the cost of rule `{rule}` reads `{source}`, which {door} never has: the cost there is computed without it"
            ),
            GapEffect::AssumedSize => write!(
                f,
                "the cost of rule `{rule}` reads `{source}`, which {door} never has: every request there costs as a body of \
                 `unknown_size` bytes"
            ),
            GapEffect::HeldForLease => write!(
                f,
                "rule `{rule}` holds slots (`{source}`), and {door} never learns when a request ends: each slot is held for the \
                 whole lease"
            ),
            GapEffect::UnknownUsage => write!(
                f,
                "the actual cost of rule `{rule}` is token usage (`{source}`), which {door} never learns: each request costs its \
                 estimate"
            ),
            GapEffect::AppliesAnyway => {
                write!(f, "rule `{rule}` applies at {door}, which its `{source}` leave out: they change no decision")
            }
            GapEffect::NeverApplies => {
                write!(f, "rule `{rule}` matches by `{source}`, which {door} never has: it never applies there")?;
                let refused = ", and with `security: true` a server with a gateway refuses the file";
                f.write_str(if self.is_error { refused } else { "" })
            }
        }
    }
}

/// What the rules read and `door` never has, in the order of the file. Disabled rules are left out, and so are rules that never apply
/// at a front end that their `front_ends` leave out.
///
/// ```
/// use tidegate_rule_tools::door_gaps;
/// use tidegate_rules::{FrontDoor, RuleFile};
///
/// let text = "version: 1\nrules: [{ id: login, match: { path: /login }, per: ['body:email'], sliding_log: { limit: 5, window: 10m } }]\n";
/// let file = RuleFile::parse("rules.yaml", text)?;
/// assert!(door_gaps(&file, FrontDoor::Gateway).is_empty());
/// assert_eq!(
///     door_gaps(&file, FrontDoor::ForwardAuth)[0].to_string(),
///     "rule `login` counts by `body:email`, which forward-auth never has: all requests there share one count"
/// );
/// # Ok::<(), tidegate_rules::Report>(())
/// ```
pub fn door_gaps(file: &RuleFile, door: FrontDoor) -> Vec<DoorGap> {
    let file = compiled(file);
    file.enabled_rules().flat_map(|rule| RuleAtDoor { rule, door, matcher: &file.matcher }.gaps()).collect()
}

/// Refuses a file that a server with this front end must not use: the errors among the [gaps](door_gaps).
pub fn check_for_door(file: &RuleFile, door: FrontDoor) -> Result<(), Report> {
    let errors: Vec<Problem> =
        door_gaps(file, door).into_iter().filter(DoorGap::is_error).map(DoorGap::problem).collect();
    if errors.is_empty() { Ok(()) } else { Err(report_of(file, errors)) }
}

/// The [report](RuleFile::report), and for each of `doors` a warning for what the rules read and it never has, and a note of what its
/// callers must send. A rule for which [`check_for_door`] refuses the file is an error.
pub fn report_for_doors(file: &RuleFile, doors: &[FrontDoor]) -> Report {
    let gaps = doors.iter().flat_map(|door| door_gaps(file, *door)).map(DoorGap::problem);
    let needs = doors.iter().flat_map(|door| needs::problems(file, *door));
    with_further(file, gaps.chain(needs))
}

/// The report of a file with further problems.
fn with_further(file: &RuleFile, further: impl Iterator<Item = Problem>) -> Report {
    report_of(file, file.report().problems().iter().cloned().chain(further).collect())
}

/// A rule at a front end.
struct RuleAtDoor<'r> {
    rule: &'r CompiledRule,
    door: FrontDoor,
    matcher: &'r RequestMatcher,
}

impl<'r> RuleAtDoor<'r> {
    fn gaps(&self) -> Vec<DoorGap> {
        if let Some(gap) = self.mismatch() {
            return if self.rule.front_ends.contains(self.door) { vec![gap] } else { Vec::new() };
        }
        let mut gaps = self.subject_gaps();
        gaps.extend(self.statement_gap());
        gaps.extend(self.cost_gap());
        gaps.extend(self.claim_gap());
        gaps.extend(self.lease_gap());
        gaps.extend(self.usage_gap());
        gaps
    }

    /// Why the rule never applies, if it does not.
    fn mismatch(&self) -> Option<DoorGap> {
        let reason = NeverApplies::find(self.rule, self.door, self.matcher)?;
        let gap = self.gap(&reason.source, GapEffect::NeverApplies, reason.missing.as_ref(), &self.rule.match_span);
        Some(DoorGap { help: reason.help(), ..gap })
    }

    /// The parts of the subject that are always missing.
    fn subject_gaps(&self) -> Vec<DoorGap> {
        let tenant = (self.rule.matcher.tenant == TenantUse::Subject).then_some(&self.matcher.tenant);
        let parts = || tenant.into_iter().chain(self.rule.matcher.per.iter());
        let is_missing = |identity: &Identity| match identity.name.as_str() {
            "plan" => !self.has_any_plan(),
            _ => !self.door.has_identity(identity),
        };
        let effect = if parts().all(is_missing) { GapEffect::SharedCount } else { GapEffect::CoarserCount };
        let missing = parts().filter(|identity| is_missing(identity));
        let mut gaps: Vec<DoorGap> = missing
            .map(|identity| {
                self.gap(&describe(identity), effect, identity.each_source().next(), self.per_span(identity))
            })
            .collect();
        let has_address =
            |identity: &&Identity| identity.each_source().any(|source| matches!(source, Source::Ip | Source::Net(_)));
        if self.door == FrontDoor::ForwardAuth
            && self.matcher.identity_config.trust == ProxyTrust::None
            && let Some(identity) = parts().find(has_address)
        {
            let span = self.per_span(identity);
            gaps.push(self.gap(&describe(identity), GapEffect::ProxyAddress, Some(&Source::Ip), span));
        }
        gaps
    }

    /// A statement that the rule is meant for other doors only, although it applies.
    fn statement_gap(&self) -> Option<DoorGap> {
        let (_, span) = self.rule.front_ends.listed().first()?;
        let is_left_out = !self.rule.front_ends.contains(self.door);
        is_left_out.then(|| self.gap("front_ends", GapEffect::AppliesAnyway, None, span))
    }

    /// What the cost reads and never has.
    fn cost_gap(&self) -> Option<DoorGap> {
        let Cost::Table(table) = &self.rule.matcher.cost else { return None };
        table.from.names().iter().find_map(|name| {
            if name == attributes::SIZE {
                return (!self.door.has_body_size()).then(|| {
                    let size = Source::Attribute(attributes::SIZE.into());
                    self.gap("request.size", GapEffect::AssumedSize, Some(&size), &self.rule.cost_span)
                });
            }
            let identity = self.matcher.named(name);
            let source = Source::parse(name).ok();
            let is_missing = match identity {
                Some(_) if name == attributes::PLAN => !self.has_any_plan(),
                Some(identity) => !self.door.has_identity(identity),
                None => source.as_ref().is_some_and(|source| !self.door.has(source)),
            };
            let missing = identity.and_then(|identity| identity.each_source().next()).or(source.as_ref());
            is_missing.then(|| self.gap(name, GapEffect::MissingInCost, missing, &self.rule.cost_span))
        })
    }

    /// A concurrency limit at a door that is asked before a request, and not told of its end.
    fn lease_gap(&self) -> Option<DoorGap> {
        let is_held = limits::all(self.rule).any(|(_, limit)| limit.has_slots());
        let gap = || self.gap("concurrency", GapEffect::HeldForLease, None, &self.rule.id_span);
        (is_held && !self.door.learns_of_ends()).then(gap)
    }

    /// An actual cost that the door does not learn.
    fn usage_gap(&self) -> Option<DoorGap> {
        let gap = |_| self.gap("usage", GapEffect::UnknownUsage, None, &self.rule.cost_span);
        // Callers of the check API, and services behind the tower layer, report it themselves.
        self.rule.usage.filter(|_| !self.door.learns_of_ends()).map(gap)
    }

    /// A claim that the rule counts by, or that chooses its limit, if no proxy in front can have verified it.
    fn claim_gap(&self) -> Option<DoorGap> {
        if self.door != FrontDoor::Gateway || self.matcher.identity_config.trust != ProxyTrust::None {
            return None;
        }
        let rule = &self.rule.matcher;
        let tenant = (rule.tenant != TenantUse::No).then_some(&self.matcher.tenant);
        let plan = (!self.rule.plans.is_empty() || !rule.condition.plans.is_empty()).then_some(&self.matcher.plan);
        let sources = rule.per.iter().chain(tenant).chain(plan).flat_map(|identity| &identity.sources);
        let claim = sources.into_iter().find(|one| matches!(one.source, Source::Claim(_)))?;
        Some(self.gap(&claim.kind, GapEffect::UnverifiedClaim, Some(&claim.source), &self.rule.per_span))
    }

    fn has_any_plan(&self) -> bool {
        self.door.has_identity(&self.matcher.plan)
            || !self.matcher.default_plan.is_empty()
            || (self.door.has_identity(&self.matcher.scope) && !self.matcher.plan_of_tenant.is_empty())
    }

    fn per_span(&self, identity: &Identity) -> &'r Span {
        self.rule.per_span_of(identity).unwrap_or(&self.rule.per_span)
    }

    fn gap(&self, source: &str, effect: GapEffect, missing: Option<&Source>, span: &Span) -> DoorGap {
        DoorGap {
            rule: self.rule.id.to_string(),
            door: self.door,
            source: source.to_owned(),
            effect,
            is_error: effect == GapEffect::NeverApplies && self.door == FrontDoor::Gateway && self.rule.security,
            help: help(effect, missing),
            span: span.clone(),
        }
    }
}

/// The sources of an identity, or its name if only the application sets it.
fn describe(identity: &Identity) -> String {
    let kinds: Vec<&str> = identity.sources.iter().map(|one| one.kind.as_str()).collect();
    if kinds.is_empty() { identity.name.to_string() } else { kinds.join(", ") }
}
