//! `RedisStore`: one script call for a whole plan.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, IntoConnectionInfo, Pipeline, RedisError, Script, Value};
use tidegate::algorithm::Op;
use tidegate::{Adjustment, Clock, Key, MOST_CHECKS, Plan, Store, StoreError, StoreErrorKind, Timestamp, Verdict};

use crate::error::{is_noscript, store_error};
use crate::scripts::SCRIPTS;
use crate::{args, health, reply, version};

/// The prefix of every key unless told otherwise.
pub const DEFAULT_PREFIX: &str = "tg";

/// A store on a Redis or Valkey server, shared by every instance that connects to it.
///
/// Time is the server's. A decision is one `EVALSHA`; a server that has forgotten the script, after a restart or a flush,
/// gets it again on the way. A decision that may have been carried out is never sent twice.
#[derive(Clone)]
pub struct RedisStore {
    connection: ConnectionManager,
    options: RedisOptions,
    warnings: Arc<[String]>,
}

/// How to use the server.
#[derive(Clone)]
pub struct RedisOptions {
    prefix: Arc<str>,
    response_timeout: Duration,
    connection_timeout: Duration,
    clock: Option<Arc<dyn Clock>>,
}

/// Options
impl RedisOptions {
    /// The prefix [`DEFAULT_PREFIX`], half a second for an answer, one for a connection.
    pub fn new() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.into(),
            response_timeout: Duration::from_millis(500),
            connection_timeout: Duration::from_secs(1),
            clock: None,
        }
    }

    /// Puts `prefix` before every key: without braces, which would decide the slot, and short, since every key has it.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long to wait for an answer.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// How long to wait for a connection.
    pub fn connection_timeout(mut self, timeout: Duration) -> Self {
        self.connection_timeout = timeout;
        self
    }

    /// Decides by `clock` instead of the server's time: for tests. Keys then live an hour longer, so that the real time
    /// does not take them away.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.prefix.len() > 32 || self.prefix.contains(|c: char| c == '{' || c == '}' || !c.is_ascii_graphic()) {
            let message = "the prefix must be at most 32 visible ASCII characters without braces";
            return Err(StoreError::new(StoreErrorKind::Unexpected, message));
        }
        Ok(())
    }
}

/// Connecting
impl RedisStore {
    /// Connects to `url` (`redis://[user:password@]host[:port][/database]`) with the default options.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, RedisOptions::new()).await
    }

    /// Connects, checks the version of the server, and loads the scripts.
    pub async fn connect_with(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        options.check()?;
        if url.starts_with("rediss:") {
            let message = "TLS is not supported yet: rediss:// cannot be used, put a TLS proxy in front of redis://";
            return Err(StoreError::new(StoreErrorKind::Unsupported, message));
        }
        let failed = |error: RedisError| store_error(&error);
        let info =
            url.into_connection_info().map_err(failed)?.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(options.response_timeout))
            .set_connection_timeout(Some(options.connection_timeout))
            .set_number_of_retries(1)
            .set_pipeline_buffer_size(1024);
        let client = Client::open(info).map_err(failed)?;
        let connection = ConnectionManager::new_with_config(client, config).await.map_err(failed)?;
        let mut info = redis::cmd("INFO");
        let info: String =
            info.arg(&["server", "memory"]).query_async(&mut connection.clone()).await.map_err(failed)?;
        version::check(&info)?;
        let store = Self { connection, options, warnings: health::warnings(&info).into() };
        for script in SCRIPTS.all() {
            store.load(script).await?;
        }
        Ok(store)
    }

    /// What was found at the start that an operator should change, in plain words.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    async fn load(&self, script: &Script) -> Result<(), StoreError> {
        script.load_async(&mut self.connection.clone()).await.map(drop).map_err(|error| store_error(&error))
    }
}

/// Deciding many plans at once
impl RedisStore {
    /// Decides each plan on its own, all in one round trip. One that fails does not touch the others.
    pub async fn decide_each(&self, plans: &[Plan<'_>]) -> Vec<Result<Verdict, StoreError>> {
        let commands: Vec<(Cmd, &Script, bool)> = plans.iter().map(|plan| self.decide_command(plan)).collect();
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for (command, _, _) in &commands {
            pipeline.add_command(command.clone());
        }
        let replies = self.connection.clone().req_packed_commands(&pipeline, 0, commands.len()).await;
        let mut verdicts = Vec::with_capacity(plans.len());
        match replies {
            Ok(replies) => {
                for ((reply, plan), (command, script, single)) in replies.into_iter().zip(plans).zip(&commands) {
                    let reply = match reply.extract_error() {
                        Err(error) if is_noscript(&error) => self.reload_and_send(command, script).await,
                        reply => reply.map_err(|error| store_error(&error)),
                    };
                    verdicts.push(reply.and_then(|reply| decided(plan, *single, &reply)));
                }
            }
            Err(error) => verdicts.extend(plans.iter().map(|_| Err(store_error(&error)))),
        }
        verdicts
    }
}

impl RedisStore {
    fn decide_command(&self, plan: &Plan<'_>) -> (Cmd, &'static Script, bool) {
        let (script, single) = SCRIPTS.decide(plan);
        let mut command = evalsha("EVALSHA", script);
        let append = if single { args::decide_one } else { args::decide };
        append(&mut command, &self.options.prefix, plan, self.now());
        (command, script, single)
    }

    fn adjust_command(&self, adjustments: &[Adjustment<'_>]) -> Cmd {
        let mut command = evalsha("EVALSHA", SCRIPTS.adjust());
        args::adjust(&mut command, &self.options.prefix, adjustments, self.now());
        command
    }

    /// Sends a call of `script`, and loads it first if the server does not know it.
    async fn send(&self, command: &Cmd, script: &Script) -> Result<Value, StoreError> {
        let reply = self.connection.clone().req_packed_command(command).await.and_then(Value::extract_error);
        match reply {
            Err(error) if is_noscript(&error) => self.reload_and_send(command, script).await,
            reply => reply.map_err(|error| store_error(&error)),
        }
    }

    async fn reload_and_send(&self, command: &Cmd, script: &Script) -> Result<Value, StoreError> {
        self.load(script).await?;
        let reply = self.connection.clone().req_packed_command(command).await.and_then(Value::extract_error);
        reply.map_err(|error| store_error(&error))
    }

    fn now(&self) -> Option<Timestamp> {
        self.options.clock.as_ref().map(|clock| clock.now())
    }
}

impl Store for RedisStore {
    async fn decide(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        bounded(plan)?;
        let (command, script, single) = self.decide_command(plan);
        let reply = self.send(&command, script).await?;
        decided(plan, single, &reply)
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Verdict, StoreError> {
        bounded(plan)?;
        let mut command = evalsha("EVALSHA_RO", SCRIPTS.peek());
        args::decide(&mut command, &self.options.prefix, plan, self.now());
        let reply = self.send(&command, SCRIPTS.peek()).await?;
        reply::verdict(plan, false, &reply)
    }

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> Result<(), StoreError> {
        if adjustments.iter().any(|adjustment| matches!(adjustment.op, Op::Take(_))) {
            return Err(StoreError::new(StoreErrorKind::Unexpected, "a take is decided, not adjusted"));
        }
        self.send(&self.adjust_command(adjustments), SCRIPTS.adjust()).await.map(drop)
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        if let (Ok(runtime), false) = (tokio::runtime::Handle::try_current(), adjustments.is_empty()) {
            let (store, command) = (self.clone(), self.adjust_command(adjustments));
            runtime.spawn(async move { store.send(&command, SCRIPTS.adjust()).await });
        }
    }

    async fn forget(&self, keys: &[Key<'_>]) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("DEL");
        for key in keys {
            command.arg(args::name(&self.options.prefix, key));
        }
        let reply = self.connection.clone().req_packed_command(&command).await.and_then(Value::extract_error);
        reply.map(drop).map_err(|error| store_error(&error))
    }
}

/// The reply of the script for a single check, or for any plan.
/// The reply tells what each check says in the bits of one number, which has no room for more.
fn bounded(plan: &Plan<'_>) -> Result<(), StoreError> {
    let checks = plan.checks().len();
    if checks <= MOST_CHECKS {
        return Ok(());
    }
    let message = format!("{checks} limits apply to one request; at most {MOST_CHECKS} may: let fewer rules match it");
    Err(StoreError::new(StoreErrorKind::Unexpected, message))
}

fn decided(plan: &Plan<'_>, single: bool, reply: &Value) -> Result<Verdict, StoreError> {
    if single { reply::verdict_of_one(plan, reply) } else { reply::verdict(plan, true, reply) }
}

fn evalsha(verb: &str, script: &Script) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(script.get_hash());
    command
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.options.prefix).finish_non_exhaustive()
    }
}
