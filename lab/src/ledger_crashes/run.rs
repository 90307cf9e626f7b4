//! `CrashRun`: rounds of load in which processes are killed. After each round everything is up again, and the promises are checked.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conformance::poll::Polling;
use fastrand::Rng;
use tidegate::{Clock, SystemClock};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::call::CallRecord;
use super::client::LoadClient;
use super::environment::Environment;
use super::inspection::inspect;
use super::load::{CLIENTS, Load};
use super::promises::StoreLoss;
use super::rules::{Account, AccountIndex, Quota, SLOTS};
use super::strike::{Deployment, Strike, Victim};
use crate::suite::AnswerCounts;
use crate::traffic::Workers;

/// Tenants under load in a round.
const TENANTS: usize = 3;

/// Rounds after which there are other tenants.
const ROUNDS_PER_TENANT: u32 = 3;

/// Calls under each quota that are decided after everything is up again, before a round ends.
const DECIDED_AFTER_REPAIR: u64 = 5;

/// Reservations that last for fewer seconds may run out before a repeat of the call that made them, which is a new reservation then.
const MIN_REPEATED_TTL: u64 = 3_600;

/// How a run is made. The same options draw the same calls and strikes again; processes interleave differently.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The processes.
    pub deployment: Deployment,
    /// What everything random is drawn from.
    pub seed: u64,
    /// Rounds.
    pub rounds: u32,
    /// Calls in a round, about.
    pub calls: u64,
    /// Seconds that reservations last.
    pub reservation_ttl: u64,
    /// The program `tidegate`.
    pub program: PathBuf,
}

/// What happened in one round.
#[derive(Clone, Debug)]
pub struct RoundOutcome {
    pub(super) deployment: Deployment,
    strikes: Vec<Strike>,
    /// The calls by their answer.
    pub counts: AnswerCounts,
    /// Units that were acknowledged under the rule with `async`, and that the ledger does not have.
    pub(super) lost_units: u64,
    /// The time from the last look into the outboxes back to the oldest entry there, in microseconds: the lag of the ledger at a loss.
    pub(super) lag_micros: u64,
}

pub(super) struct CrashRun {
    pub(super) options: RunOptions,
    pub(super) environment: Environment,
    pub(super) index: AccountIndex,
    pub(super) calls: BTreeMap<Account, Vec<CallRecord>>,
    /// The losses of the store while the account was under load.
    pub(super) losses: BTreeMap<Account, Vec<StoreLoss>>,
    /// The acknowledged units of each account that the ledger did not have at the last inspection.
    pub(super) lost_units: BTreeMap<Account, u64>,
}

impl RoundOutcome {
    /// The names of what was killed.
    pub(super) fn victims(&self) -> String {
        let mut names: Vec<_> = self.strikes.iter().map(|strike| strike.victim.name()).collect();
        names.sort_unstable();
        names.join(", ")
    }

    /// Whether the store has lost everything.
    pub(super) fn lost_store(&self) -> bool {
        self.strikes.iter().any(|strike| strike.victim == Victim::Redis)
    }
}

/// Runs all rounds. Panics with the seed, the round and the history of the account if a promise is broken.
pub async fn run(options: RunOptions) -> Vec<RoundOutcome> {
    let environment = Environment::start(options.deployment, &options.program, options.reservation_ttl).await;
    let (calls, losses, lost_units) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut run = CrashRun { options, environment, index: AccountIndex::new(), calls, losses, lost_units };
    let mut outcomes = Vec::new();
    for round in 0..run.options.rounds {
        outcomes.push(run.round(round).await);
    }
    outcomes
}

impl CrashRun {
    async fn round(&mut self, round: u32) -> RoundOutcome {
        let RunOptions { seed, deployment, calls, .. } = self.options;
        let mut rng = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(u64::from(round)));
        let strikes = deployment.strikes(calls, &mut rng);
        let named: Vec<_> = strikes.iter().map(|strike| strike.victim).collect();
        eprintln!("{}, seed {seed}, round {round}: {named:?}", deployment.name());
        let load = Arc::new(Load {
            round,
            tenants: tenants_of(round),
            instances: self.environment.instances.clone(),
            may_repeat_reservations: self.options.reservation_ttl >= MIN_REPEATED_TTL,
            notes: Mutex::default(),
        });
        let mut clients = load.start(&mut rng);
        let lag_micros = self.strike_all(&strikes, &load, &mut clients).await;
        self.wait_for_decisions(&load, &mut clients).await;
        clients.stop().await;
        self.take_slots(&load, rng.u64(..)).await;
        let counts = self.collect(&load);
        let lost_units = inspect(self, round, &mut rng).await;
        RoundOutcome { deployment, strikes, counts, lost_units, lag_micros }
    }

    /// Where a promise is broken.
    pub(super) fn place(&self, round: u32) -> String {
        format!("{}, seed {}, round {round}", self.options.deployment.name(), self.options.seed)
    }

    /// A client ends before the round only if an answer has no meaning.
    fn assert_no_client_ended(&self, round: u32, clients: &mut Workers) {
        if let Some(ended) = clients.find_ended() {
            panic!("{}: a client has ended: {ended:?}", self.place(round));
        }
    }

    /// Kills and repairs all victims at their moments. Returns the lag of the ledger at a loss of the store.
    async fn strike_all(&mut self, strikes: &[Strike], load: &Arc<Load>, clients: &mut Workers) -> u64 {
        let mut moments: Vec<(u64, bool, &Strike)> = Vec::new();
        for strike in strikes {
            moments.push((strike.after_calls, true, strike));
            moments.push((strike.after_calls + strike.dead_for_calls, false, strike));
        }
        moments.sort_by_key(|(calls, ..)| *calls);
        let (mut lag_micros, mut restarts) = (0, JoinSet::new());
        for (calls, is_strike, strike) in moments {
            let mut polling = Polling::until("the load goes on");
            while load.calls() < calls {
                self.assert_no_client_ended(load.round, clients);
                polling.pause(|| self.place(load.round)).await;
            }
            match (is_strike, strike.victim) {
                (true, victim) => {
                    let _ = timeout(Duration::from_micros(strike.delay_micros), pending::<()>()).await;
                    lag_micros = lag_micros.max(self.strike(victim, load).await);
                }
                // An instance may wait for its ledger, which is started later.
                (false, Victim::Instance(index)) => {
                    let instance = Arc::clone(&self.environment.instances[index]);
                    restarts.spawn(async move { instance.restart().await });
                }
                (false, victim) => self.environment.repair(victim).await,
            }
        }
        restarts.join_all().await;
        lag_micros
    }

    async fn strike(&mut self, victim: Victim, load: &Load) -> u64 {
        if victim != Victim::Redis {
            self.environment.strike(victim);
            return 0;
        }
        let clock = SystemClock::new();
        let lagging = |tenant: &String| [Quota::Async, Quota::Local].map(|quota| account(quota, tenant));
        let accounts: Vec<Account> = load.tenants.iter().flat_map(lagging).collect();
        let keys: Vec<_> = accounts.iter().map(|account| self.index.key(account)).collect();
        let looked_at = clock.now();
        let waiting = self.environment.waiting(&keys).await;
        self.environment.strike(victim);
        let dead_at = clock.now();
        let oldest = waiting.iter().flatten().map(|entry| entry.at.as_micros()).min();
        for (account, entries) in accounts.into_iter().zip(waiting) {
            let waiting = entries.iter().map(|entry| (entry.kind, entry.amount)).collect();
            self.losses.entry(account).or_default().push(StoreLoss { looked_at, dead_at, waiting });
        }
        oldest.map_or(0, |oldest| looked_at.as_micros().saturating_sub(oldest))
    }

    /// Waits until calls under every quota are decided again.
    async fn wait_for_decisions(&self, load: &Load, clients: &mut Workers) {
        let before = Quota::ALL.map(|quota| load.decided(quota));
        let decided = || Quota::ALL.map(|quota| load.decided(quota) - before[quota as usize]);
        let details = || {
            let (place, latest, logs) = (self.place(load.round), load.latest_notes(20), self.environment.log_lines());
            format!("{place}: decided {:?}\n{latest}\n{logs}", decided())
        };
        let mut polling = Polling::until("calls are decided after everything is up again");
        while decided().iter().any(|count| *count < DECIDED_AFTER_REPAIR) {
            self.assert_no_client_ended(load.round, clients);
            self.environment.assert_no_instance_ended();
            polling.pause(details).await;
        }
    }

    /// Takes every slot of every tenant: none is leaked.
    async fn take_slots(&self, load: &Arc<Load>, seed: u64) {
        for tenant in &load.tenants {
            let mut client = LoadClient::new(load, CLIENTS, seed);
            let mut polling = Polling::until("every slot can be taken after the lease");
            while !client.take_all_slots(tenant, SLOTS).await {
                polling.pause(|| format!("{}, tenant {tenant}", self.place(load.round))).await;
            }
        }
    }

    /// Files the notes of a round by account.
    fn collect(&mut self, load: &Load) -> AnswerCounts {
        let mut counts = AnswerCounts::default();
        for note in std::mem::take(&mut *load.notes.lock().unwrap()) {
            note.answer.counted().into_iter().for_each(|answer| counts.record(answer));
            self.calls.entry(note.account.clone()).or_default().push(note);
        }
        counts
    }
}

/// The tenants of a round.
pub(super) fn tenants_of(round: u32) -> Vec<String> {
    (0..TENANTS).map(|number| format!("tenant-{}-{number}", round / ROUNDS_PER_TENANT)).collect()
}

pub(super) fn account(quota: Quota, tenant: &str) -> Account {
    Account { quota, tenant: tenant.to_owned() }
}
