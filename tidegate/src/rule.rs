//! `Rule`: a limit with the requests and subjects that it applies to. A [`RuleSet`](crate::RuleSet) validates and indexes it.

mod anonymous_bounds;
pub use anonymous_bounds::AnonymousBounds;
mod partition_by;
pub use partition_by::PartitionBy;

use smol_str::SmolStr;

use crate::http::ErrorFormat;
use crate::limits::Penalty;
use crate::rules::{LedgerMode, OnOverload, UsageKind};
use crate::{Limit, OnFailure};

/// The default maximum number of authenticated subjects of a limit in a shared store.
pub const DEFAULT_MAX_SUBJECTS: u64 = 10_000_000;

/// Whether a rule is applied, reported or ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleMode {
    /// The rule is applied.
    #[default]
    Enabled,
    /// The rule is ignored.
    Disabled,
    /// The rule counts requests and reports which ones it would reject, but rejects none.
    Shadow,
}

/// What happens to a request without a value that a rule counts by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissing {
    /// All such requests are one subject. It is never exempt.
    #[default]
    Shared,
    /// The request cannot be judged, and is refused with a [`RequestProblem`](crate::RequestProblem). A rule in shadow mode refuses none.
    Error,
}

/// A limit with the requests and subjects that it applies to.
///
/// A rule is plain data: its fields say what it does, and `with_*` sets them. A [`RuleSet`](crate::RuleSet) finds what does not fit together.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limit, Rule};
///
/// let login = Rule::new("login", Limit::sliding_log(5, Duration::from_secs(600))?)
///     .with_action("login")
///     .with_per(["account"]);
/// assert_eq!((login.id.as_str(), login.action.as_deref()), ("login", Some("login")));
/// # Ok::<(), tidegate::limits::LimitError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Rule {
    /// The name in keys, responses and metrics.
    pub id: SmolStr,
    /// The action that the rule applies to; `None` for every action.
    pub action: Option<SmolStr>,
    /// The attributes whose combinations are counted separately, each with the [normal forms](crate::attributes::NormalForms) that the rule
    /// states for it, as in [`with_per`](Self::with_per).
    pub per: Vec<SmolStr>,
    /// The limits by name, without those of plans.
    pub limits: Vec<(SmolStr, Limit)>,
    /// The limits in place of these for requests whose attribute `plan` has such a value.
    pub plans: Vec<(SmolStr, Vec<(SmolStr, Limit)>)>,
    /// The penalty for repeated denials.
    pub penalty: Option<Penalty>,
    /// The cost of a request under this rule; `None` for the request's own.
    pub cost: Option<u64>,
    /// Whether a [matcher](crate::spi::Matcher) computes the cost of a request under this rule. As with a [cost of its own](Self::cost), a
    /// [commit](crate::Ending::Commit) with one cost for all rules leaves it as it was reserved.
    pub computed_cost: bool,
    /// Whether the rule is applied.
    pub mode: RuleMode,
    /// The budget: one allowance that all rules of the same budget share.
    pub budget: Option<SmolStr>,
    /// What happens while the store fails.
    pub on_failure: OnFailure,
    /// What happens while this instance is overloaded.
    pub on_overload: OnOverload,
    /// Whether a store may deny a request in the process, without a call, for up to a second after it denied the same one. A refund on
    /// another instance is seen at the end of that second.
    pub denial_cache: bool,
    /// The limit of one instance under [`OnFailure::Static`], for all subjects together.
    pub static_limit: Option<Limit>,
    /// The bounds for anonymous subjects. Without a [matcher](crate::spi::Matcher), which says it for each request, all subjects of a rule that
    /// has them are anonymous.
    pub anonymous: Option<AnonymousBounds>,
    /// The number of authenticated subjects that a shared store remembers at the same time, under each limit of the rule. Further new ones
    /// share overflow buckets. With `u64::MAX` it does not count them.
    pub max_subjects: u64,
    /// What decides the partition of the rule's keys.
    pub partition_by: PartitionBy,
    /// Whether the rule protects against guessing: responses say only that the request was refused, and when to retry.
    pub security: bool,
    /// The message for refused requests.
    pub message: Option<SmolStr>,
    /// The format of the body of refusals; `None` for that of the [header policy](crate::http::HeaderPolicy::with_error_format).
    pub error_format: Option<ErrorFormat>,
    /// The response header, in lower case, that contains the actual cost of a request. Front ends [settle](crate::Ending::Settle) it then.
    pub cost_header: Option<SmolStr>,
    /// The tokens of a language model that are the actual cost of a request.
    pub usage: Option<UsageKind>,
    /// How what its quotas consume reaches the ledger, if it does.
    pub ledger: Option<LedgerMode>,
    /// Whether the ledger keeps the names of tenants in clear text, beside their hashes.
    pub ledger_names: bool,
    /// What happens to a request without a value that the rule counts by.
    pub on_missing: OnMissing,
}

/// The limits of a rule, by name.
pub(crate) type NamedLimits = Vec<(SmolStr, Limit)>;

/// Constructors
impl Rule {
    /// A rule that applies `limit` to every request. It counts all requests together unless [`with_per`](Self::with_per) is set.
    pub fn new(id: impl Into<String>, limit: Limit) -> Self {
        Self::from_limits(id, [("", limit)])
    }

    /// A rule of several limits with distinct names.
    pub fn from_limits<N: Into<String>>(id: impl Into<String>, limits: impl IntoIterator<Item = (N, Limit)>) -> Self {
        Self {
            id: id.into().into(),
            action: None,
            per: Vec::new(),
            limits: named(limits),
            plans: Vec::new(),
            penalty: None,
            cost: None,
            computed_cost: false,
            mode: RuleMode::default(),
            budget: None,
            on_failure: OnFailure::default(),
            on_overload: OnOverload::default(),
            denial_cache: true,
            static_limit: None,
            anonymous: None,
            max_subjects: DEFAULT_MAX_SUBJECTS,
            partition_by: PartitionBy::Auto,
            security: false,
            message: None,
            error_format: None,
            cost_header: None,
            usage: None,
            ledger: None,
            on_missing: OnMissing::default(),
            ledger_names: false,
        }
    }
}

/// Settings
impl Rule {
    /// Adds a limit under a name that no other limit of the rule has.
    pub fn with_limit(mut self, name: impl Into<String>, limit: Limit) -> Self {
        self.limits.push((name.into().into(), limit));
        self
    }

    /// Sets other limits for requests whose attribute `plan` has the value `plan`.
    pub fn with_plan<N: Into<String>>(
        mut self,
        plan: impl Into<String>,
        limits: impl IntoIterator<Item = (N, Limit)>,
    ) -> Self {
        self.plans.push((plan.into().into(), named(limits)));
        self
    }

    /// Blocks a subject that the rule denies again and again, each time for longer. For [security](Self::with_security) rules that
    /// count by a subject and share no budget. Its denials are answered from the
    /// [denial cache](Self::with_denial_cache) only while the subject is blocked, so that every strike is counted.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::limits::Penalty;
    /// use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Request, Rule, RuleSet};
    ///
    /// let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    /// let login = Rule::new("login-ip", Limit::sliding_log(20, minutes(10))?)
    ///     .with_per(["ip"])
    ///     .with_security()
    ///     .with_penalty(Penalty::new(3, minutes(15), 2, minutes(60))?);
    /// let limiter = Limiter::new(RuleSet::new([login])?, MemoryStore::new().with_clock(ManualClock::default()));
    /// let request = Request::new("login").with_attribute("ip", "192.0.2.7");
    /// assert!((0..20).all(|_| limiter.check_now(&request).is_allowed()));
    /// let retries = [1, 2, 3].map(|_| limiter.check_now(&request).retry_after());
    /// assert_eq!(retries, [Some(minutes(10)), Some(minutes(10)), Some(minutes(15))]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_penalty(mut self, penalty: Penalty) -> Self {
        self.penalty = Some(penalty);
        self
    }

    /// Applies the rule to requests for this [action](Self::action) only.
    pub fn with_action(mut self, action: impl Into<String>) -> Self {
        self.action = Some(action.into().into());
        self
    }

    /// Counts each combination of these attributes separately. Requests that lack an attribute share one subject, so that none
    /// is exempt.
    ///
    /// An attribute may have [normal forms](crate::attributes::NormalForms) behind it, so that all spellings of a value are one subject:
    /// `account | trim | lower`. Credentials, and accounts of [security](Self::with_security) rules, have [forms by
    /// default](crate::attributes::NormalForms::default_for); `account | exact` counts by the value as it is.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limit, Limiter, MemoryStore, Request, Rule, RuleSet};
    ///
    /// let invitations = Rule::new("invitations", Limit::sliding_log(1, Duration::from_secs(3600))?).with_per(["to | email"]);
    /// let limiter = Limiter::new(RuleSet::new([invitations])?, MemoryStore::new());
    /// let invite = |to| limiter.check_now(&Request::new("invite").with_attribute("to", to)).is_allowed();
    /// assert!(invite("zed@x.io") && !invite(" Zed@X.io"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_per<N: Into<String>>(mut self, attributes: impl IntoIterator<Item = N>) -> Self {
        self.per = attributes.into_iter().map(|attribute| attribute.into().into()).collect();
        self
    }

    /// Sets the [cost](Self::cost) of a request under this rule, in place of the request's own.
    pub fn with_cost(mut self, cost: u64) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Shares one allowance with every rule of the same budget. They must count by the same attributes and have the same limits.
    pub fn with_budget(mut self, budget: impl Into<String>) -> Self {
        self.budget = Some(budget.into().into());
        self
    }

    /// Sets [`on_failure`](Self::on_failure).
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Sets [`on_overload`](Self::on_overload).
    pub fn with_on_overload(mut self, on_overload: OnOverload) -> Self {
        self.on_overload = on_overload;
        self
    }

    /// Sets [`denial_cache`](Self::denial_cache).
    pub fn with_denial_cache(mut self, denial_cache: bool) -> Self {
        self.denial_cache = denial_cache;
        self
    }

    /// Sets [`static_limit`](Self::static_limit).
    pub fn with_static_limit(mut self, limit: Limit) -> Self {
        self.static_limit = Some(limit);
        self
    }

    /// Makes the subjects of the rule [anonymous](Self::anonymous), within these bounds.
    pub fn with_anonymous(mut self, bounds: AnonymousBounds) -> Self {
        self.anonymous = Some(bounds);
        self
    }

    /// Sets [`max_subjects`](Self::max_subjects).
    pub fn with_max_subjects(mut self, max_subjects: u64) -> Self {
        self.max_subjects = max_subjects;
        self
    }

    /// Sets [`partition_by`](Self::partition_by). A change resets the limits of the rule.
    pub fn with_partition_by(mut self, partition_by: PartitionBy) -> Self {
        self.partition_by = partition_by;
        self
    }

    /// Marks a [security](Self::security) rule, which protects against guessing.
    pub fn with_security(mut self) -> Self {
        self.security = true;
        self
    }

    /// Sets [`message`](Self::message).
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into().into());
        self
    }

    /// Sets the [format](Self::error_format) of the body of refusals; for rules that [count tokens](Self::with_usage) in place of
    /// [`OpenAi`](ErrorFormat::OpenAi).
    pub fn with_error_format(mut self, format: ErrorFormat) -> Self {
        self.error_format = Some(format);
        self
    }

    /// Sets [`cost_header`](Self::cost_header).
    pub fn with_cost_header(mut self, header: impl Into<String>) -> Self {
        self.cost_header = Some(header.into().into());
        self
    }

    /// States that the actual cost of a request is the number of tokens that a language model used. A gateway reserves the estimated
    /// cost, at least 1, and commits the actual one. Refusals have the format that client libraries of such models
    /// [read](ErrorFormat::OpenAi), unless the rule [says otherwise](Self::with_error_format).
    pub fn with_usage(mut self, usage: UsageKind) -> Self {
        self.usage = Some(usage);
        _ = self.error_format.get_or_insert(ErrorFormat::OpenAi);
        self
    }

    /// Records what the quotas of the rule consume in a ledger. While the store fails, the rule is [closed](OnFailure::Closed), and a request
    /// without a value that it counts by is an [error](OnMissing::Error): nobody would pay for it. To change that, call
    /// [`with_on_failure`](Self::with_on_failure) and [`with_on_missing`](Self::with_on_missing) after this.
    pub fn with_ledger(mut self, ledger: LedgerMode) -> Self {
        (self.ledger, self.on_failure, self.on_missing) = (Some(ledger), OnFailure::Closed, OnMissing::Error);
        self
    }

    /// Sets [`on_missing`](Self::on_missing).
    pub fn with_on_missing(mut self, on_missing: OnMissing) -> Self {
        self.on_missing = on_missing;
        self
    }

    /// Sets [`ledger_names`](Self::ledger_names).
    pub fn with_ledger_names(mut self, ledger_names: bool) -> Self {
        self.ledger_names = ledger_names;
        self
    }

    /// Sets [`mode`](Self::mode).
    pub fn with_mode(mut self, mode: RuleMode) -> Self {
        self.mode = mode;
        self
    }
}

/// Facts
impl Rule {
    /// Whether the request has another cost under this rule than its own.
    pub(crate) const fn has_own_cost(&self) -> bool {
        self.cost.is_some() || self.computed_cost
    }
}

fn named<N: Into<String>>(limits: impl IntoIterator<Item = (N, Limit)>) -> NamedLimits {
    limits.into_iter().map(|(name, limit)| (name.into().into(), limit)).collect()
}
