//! `Phase`: one evening of the four, and how it goes: the service, the gateways, the crowd, and what is seen of them. What that
//! means is told by [`Found`].

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::{RuleSet, Timer};
use tidegate_rules::RuleFile;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::backend::Backend;
use super::fleet::{Fleet, Shared};
use super::found::Found;
use super::machine::Machine;
use super::options::Shape;
use super::store::Hosted;
use super::town::Town;
use super::{others, riders};
use tidegate_server::command::Failure;

/// From when everything is there to when it begins.
const BREATH: Duration = Duration::from_millis(100);

/// How often somebody looks at the service.
const LOOKS: Duration = Duration::from_millis(100);

/// At the end, what is under way may still end, for so long.
const GRACE: Duration = Duration::from_secs(1);

/// The limits for each rider.
const RIDERS: &str = include_str!("riders.yaml");

/// Those, and the ones for all together.
const ALL: &str = include_str!("surge.yaml");

/// What stands between the crowd and the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    NoLimits,
    EachItsOwn,
    Shared,
    Capacity,
}

/// What every phase needs.
pub(crate) struct Evening<'a> {
    pub(crate) shape: Shape,
    pub(crate) instances: u32,
    pub(crate) hosted: &'a Hosted,
    /// Where the gateways run, apart from the crowd.
    pub(crate) gateways: Handle,
    pub(crate) timer: Arc<dyn Timer>,
}

/// What the service looked like at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) waiting: u64,
    pub(crate) busy: u32,
    pub(crate) index_behind: Duration,
}

/// How a phase goes, as far as it has gone.
pub(crate) struct Progress {
    pub(crate) second: u64,
    /// How many seconds there will be.
    pub(crate) of: u64,
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) waiting: u64,
}

impl Phase {
    pub(crate) const ALL: [Self; 4] = [Self::NoLimits, Self::EachItsOwn, Self::Shared, Self::Capacity];

    pub(crate) const fn number(self) -> usize {
        self as usize + 1
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::NoLimits => "no limits",
            Self::EachItsOwn => "limits for each rider, in the memory of each gateway",
            Self::Shared => "limits for each rider, shared",
            Self::Capacity => "shared, and one for all riders together",
        }
    }

    /// The rule file in `examples/`.
    pub(crate) const fn file(self) -> Option<&'static str> {
        match self {
            Self::NoLimits => None,
            Self::EachItsOwn | Self::Shared => Some("examples/surge-riders.yaml"),
            Self::Capacity => Some("examples/surge.yaml"),
        }
    }

    pub(crate) fn rules(self) -> Result<RuleSet, Failure> {
        let text = match self {
            Self::NoLimits => "version: 1\nrules: []\n",
            Self::EachItsOwn | Self::Shared => RIDERS,
            Self::Capacity => ALL,
        };
        Ok(RuleFile::parse(self.file().unwrap_or("no rules"), text)?.rules().clone())
    }

    fn shared(self, hosted: &Hosted) -> Shared {
        match self {
            Self::NoLimits | Self::EachItsOwn => Shared::Nothing,
            Self::Shared | Self::Capacity => hosted.shared(self.number()),
        }
    }

    /// Lets the evening happen, until its end or until it is stopped, and says whether it was.
    pub(crate) async fn run(
        self,
        evening: &Evening<'_>,
        stopped: impl Future<Output = ()>,
        mut tell: impl FnMut(&Progress),
    ) -> Result<(Found, bool), Failure> {
        let Evening { shape, instances, hosted, ref gateways, ref timer } = *evening;
        let rules = self.rules()?;
        let failed = |error: io::Error| Failure::usage(format!("the service cannot be started: {error}"));
        let backend = Backend::start(shape.seed, Arc::clone(timer)).await.map_err(failed)?;
        let fleet = Fleet::start(gateways, instances, backend.address, &rules, &self.shared(hosted), timer).await?;
        let mut town = Town::new(&fleet.addresses, Arc::clone(timer), shape);
        town.open().await.map_err(|error| Failure::usage(format!("a gateway cannot be reached: {error}")))?;
        town.begin(timer.now().plus(BREATH));
        let town = Arc::new(town);

        let (before, mut crowd) = (Machine::now(hosted.process()), crowd(&town));
        let looks = Arc::new(Mutex::new(Vec::new()));
        crowd.spawn(look(Arc::clone(&town), Arc::clone(&backend.parts), Arc::clone(&looks)));
        let early = tokio::select! {
            () = progress(&town, &looks, &mut tell) => false,
            () = stopped => true,
        };
        let lasted = timer.now().since(town.start);
        if !early {
            grace(&town).await;
        }
        town.ledger().cut_off(timer.now());
        let cpu = before.and_then(|before| Machine::now(hosted.process())?.since(before));
        let looks = std::mem::take(&mut *looks.lock().unwrap_or_else(PoisonError::into_inner));
        let found = Found::new(self, evening, &town, &backend.parts, &fleet.watched, &rules, &looks, cpu, lasted);
        crowd.shutdown().await;
        fleet.stop().await;
        Ok((found, early))
    }
}

/// Everybody, on their way.
fn crowd(town: &Arc<Town>) -> JoinSet<()> {
    let mut crowd = JoinSet::new();
    for number in 0..town.shape.users {
        crowd.spawn(riders::rider(Arc::clone(town), number));
    }
    for number in 0..others::drivers(town.shape.users) {
        crowd.spawn(others::driver(Arc::clone(town), number));
    }
    for number in 0..others::CLERKS {
        crowd.spawn(others::clerk(Arc::clone(town), number));
    }
    crowd.spawn(others::bot(Arc::clone(town)));
    crowd
}

/// Looks at the service again and again.
async fn look(town: Arc<Town>, parts: Arc<super::backend::Parts>, looks: Arc<Mutex<Vec<Look>>>) {
    let mut due = town.start;
    while town.until(due).await {
        let matching = &parts.matching;
        let look = Look { waiting: matching.waiting(), busy: matching.busy(), index_behind: parts.index.behind() };
        looks.lock().unwrap_or_else(PoisonError::into_inner).push(look);
        due = due.plus(LOOKS);
    }
}

/// Tells each second how it goes, until the end.
async fn progress(town: &Town, looks: &Mutex<Vec<Look>>, tell: &mut impl FnMut(&Progress)) {
    for second in 1..=town.shape.span.as_secs() {
        town.until(town.start.plus(Duration::from_secs(second))).await;
        let waiting = looks.lock().unwrap_or_else(PoisonError::into_inner).last().map_or(0, |look| look.waiting);
        let (mut served, mut refused, mut failed) = (0, 0, 0);
        for counted in town.ledger().seconds() {
            served += counted.served;
            refused += counted.refused;
            failed += counted.failed;
        }
        tell(&Progress { second, of: town.shape.span.as_secs(), served, refused, failed, waiting });
    }
}

/// Lets what is under way end, for a moment.
async fn grace(town: &Town) {
    let mut left = GRACE;
    while !left.is_zero() && town.ledger().under_way() > 0 {
        town.timer.sleep(LOOKS).await;
        left = left.saturating_sub(LOOKS);
    }
}
