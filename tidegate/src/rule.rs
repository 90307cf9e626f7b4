//! `Rule`: a written limit, before it is checked and indexed by a [`RuleSet`](crate::RuleSet).

use std::time::Duration;

use smol_str::SmolStr;

use crate::Limit;

/// What a rule does when it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleMode {
    /// It is applied.
    #[default]
    Enabled,
    /// It is as if it were not there.
    Disabled,
    /// It counts and reports what it would reject, and affects nothing.
    Shadow,
}

/// What happens to a request that a rule applies to while the store fails. Only a failure asks for it, never a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// It passes.
    #[default]
    Open,
    /// It is refused, as a failure of the service and not as one of the caller.
    Closed,
    /// It is judged by this instance alone, in memory, at its [share](crate::Limit::share) of the limit.
    Local,
    /// It passes as long as this instance has not let more pass than the rule's [emergency limit](Rule::emergency) says,
    /// whoever asks.
    Static,
    /// It passes, and the application is told, so that it can do less.
    Degraded,
}

/// What becomes of subjects that nobody vouches for, such as addresses: whoever wants many of them has many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnonymousBounds {
    /// How many of them a shared store remembers at the same time; further new ones share overflow buckets.
    pub max_subjects: u64,
    /// After how much time one that has not been seen is forgotten, even if its limit remembers longer.
    pub forget_after: Option<Duration>,
}

/// What decides in which partition the keys of a rule lie, and so in which slot of a cluster. Checks of one request that lie in
/// one slot are decided in one step there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartitionBy {
    /// The tenant if the rule counts by tenant, else the subject, else the rule.
    #[default]
    Usual,
    /// The whole subject: users of one large tenant are then spread over all servers.
    Subject,
    /// The rule: all its subjects lie together.
    Rule,
    /// A name: the keys of all rules with this tag lie together. They are all on one server, so it is for few.
    Constant(SmolStr),
}

/// What is limited, per whom, and how.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limit, Rule};
///
/// let login = Rule::new("login", Limit::sliding_log(5, Duration::from_secs(600))?)
///     .action("login")
///     .per(["account"]);
/// # Ok::<(), tidegate::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) id: SmolStr,
    pub(crate) action: Option<SmolStr>,
    pub(crate) per: Vec<SmolStr>,
    pub(crate) limits: Vec<(SmolStr, Limit)>,
    pub(crate) plans: Vec<(SmolStr, Vec<(SmolStr, Limit)>)>,
    pub(crate) cost: Option<u64>,
    pub(crate) mode: RuleMode,
    pub(crate) budget: Option<SmolStr>,
    pub(crate) on_failure: OnFailure,
    pub(crate) emergency: Option<Limit>,
    pub(crate) anonymous: Option<AnonymousBounds>,
    pub(crate) tag: PartitionBy,
    pub(crate) security: bool,
    pub(crate) message: Option<SmolStr>,
    pub(crate) actual: Option<SmolStr>,
}

impl Rule {
    /// A rule that applies `limit` to every request, counting everybody together until [`per`](Self::per) says otherwise.
    pub fn new(id: impl Into<SmolStr>, limit: Limit) -> Self {
        Self::with_limits(id, [(SmolStr::default(), limit)])
    }

    /// A rule of several limits, each under a name that no other limit of the rule has.
    pub fn with_limits(id: impl Into<SmolStr>, limits: impl IntoIterator<Item = (SmolStr, Limit)>) -> Self {
        Self {
            id: id.into(),
            action: None,
            per: Vec::new(),
            limits: limits.into_iter().collect(),
            plans: Vec::new(),
            cost: None,
            mode: RuleMode::default(),
            budget: None,
            on_failure: OnFailure::default(),
            emergency: None,
            anonymous: None,
            tag: PartitionBy::Usual,
            security: false,
            message: None,
            actual: None,
        }
    }

    /// Adds a further limit, under a name that no other limit of the rule has.
    pub fn and(mut self, name: impl Into<SmolStr>, limit: Limit) -> Self {
        self.limits.push((name.into(), limit));
        self
    }

    /// Has other limits, by name, for requests whose attribute `plan` says so.
    pub fn plan(mut self, plan: impl Into<SmolStr>, limits: impl IntoIterator<Item = (SmolStr, Limit)>) -> Self {
        self.plans.push((plan.into(), limits.into_iter().collect()));
        self
    }

    /// Applies only to requests for this action.
    pub fn action(mut self, action: impl Into<SmolStr>) -> Self {
        self.action = Some(action.into());
        self
    }

    /// Counts separately for each combination of these attributes. Requests that lack one share the subject of those
    /// that lack it: nobody is exempt.
    pub fn per<N: Into<SmolStr>>(mut self, attributes: impl IntoIterator<Item = N>) -> Self {
        self.per = attributes.into_iter().map(Into::into).collect();
        self
    }

    /// What a request costs here, whatever cost it brings.
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Shares one allowance with every rule that names the same budget, counts by the same attributes and has the same
    /// limits.
    pub fn budget(mut self, budget: impl Into<SmolStr>) -> Self {
        self.budget = Some(budget.into());
        self
    }

    /// Says what happens while the store fails.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Says how much one instance lets pass under [`OnFailure::Static`], of everybody together.
    pub fn emergency(mut self, limit: Limit) -> Self {
        self.emergency = Some(limit);
        self
    }

    /// Says that nobody vouches for its subjects, and what becomes of them when there are many. Rules of a
    /// [`Matcher`](crate::spi::Matcher) are told with each request whether somebody does.
    pub fn anonymous(mut self, anonymous: AnonymousBounds) -> Self {
        self.anonymous = Some(anonymous);
        self
    }

    /// Says what decides in which partition its keys lie. Another tag starts its limits afresh.
    pub fn tag(mut self, tag: PartitionBy) -> Self {
        self.tag = tag;
        self
    }

    /// Guards against guessing: answers tell no more than that, and when, to try again.
    pub fn security(mut self) -> Self {
        self.security = true;
        self
    }

    /// What a refused caller reads.
    pub fn message(mut self, message: impl Into<SmolStr>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Names the header of a response, in lower case, that tells what the request really cost: doors then
    /// [settle](crate::Limiter::settle) it.
    pub fn actual(mut self, header: impl Into<SmolStr>) -> Self {
        self.actual = Some(header.into());
        self
    }

    /// Sets the mode.
    pub fn mode(mut self, mode: RuleMode) -> Self {
        self.mode = mode;
        self
    }

    /// Its name in keys, answers and metrics.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What a refused caller reads, if the rule has words of its own.
    pub fn message_text(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// The header of a response that tells what a request really cost, if there is one.
    pub fn actual_header(&self) -> Option<&str> {
        self.actual.as_deref()
    }

    /// Its limits by name, those of its plans not among them.
    pub fn limits(&self) -> &[(SmolStr, Limit)] {
        &self.limits
    }
}

impl Default for AnonymousBounds {
    /// A million, each as long as its limit remembers.
    fn default() -> Self {
        Self { max_subjects: 1_000_000, forget_after: None }
    }
}

impl OnFailure {
    /// Its name, as rule files write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
            Self::Degraded => "degraded",
            Self::Static => "static",
        }
    }

    /// The one of two that lets less pass.
    pub(crate) const fn stricter(self, other: Self) -> Self {
        if self.strictness() < other.strictness() { other } else { self }
    }

    const fn strictness(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Degraded => 1,
            Self::Static => 2,
            Self::Local => 3,
            Self::Closed => 4,
        }
    }

    /// Whether requests pass while the store fails, however many there are.
    pub const fn lets_pass(self) -> bool {
        matches!(self, Self::Open | Self::Degraded)
    }
}
