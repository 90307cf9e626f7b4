//! The outbox of the ledger: a stream for each partition, to which the scripts append every change of a quota with a ledger, in the same
//! atomic step.
//!
//! Beside the stream, a partition has a *generation*, a random number. A server that was emptied or replaced has none, and then the scripts
//! decide nothing under rules with a ledger until the states are rebuilt from it. Neither key expires. An instance sends the generation
//! that it knows with every call, and learns another one from the reply.

mod entry;
mod gate_value;
mod keys;
mod partitions;

use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};

use futures_util::future::join_all;
use redis::Value;
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::{AccountKey, EntryId, GateState, Outbox, OutboxBatch, OutboxPosition};
use tidegate::{StoreError, StoreErrorKind};

use crate::adjust::first_error;
use crate::args::{PackedNumbers, append_injected_now};
use crate::call::Call;
use crate::error::not_applied;
use crate::reply::{malformed, parse_stream_id, unreadable};
use crate::scripts::{SCRIPTS, Script};
use crate::slot_map::slot_of;
use crate::store::RedisStore;
use crate::timeouts::Timeouts;
use entry::decode_entry;
use gate_value::{decode_value, limit_value, value_with_holds};
pub(crate) use keys::OutboxKeys;
use keys::account_name;
pub(crate) use partitions::{LedgerPartitions, ledger_partition, ledger_partitions};

/// The largest number of entries in the stream of one partition. When there are as many, plans with a ledger are refused: the ledger
/// has been unreachable for long, and the server would run out of memory.
pub(crate) const MAX_OUTBOX_ENTRIES: u64 = 100_000;

/// The largest number of states that one call writes, and of entries that one call deletes: a server does nothing else in the meantime.
const MAX_CALL_ITEMS: usize = 500;

/// How long an instance may take from one call of a rebuild to the next, in milliseconds. After that, another one may take over.
const REBUILD_LOCK_MILLIS: u64 = 10_000;

/// A state as the scripts write it: the name of its key, its value, and when it expires.
struct PackedState {
    key: Vec<u8>,
    value: Vec<u8>,
    expiry: u64,
}

impl Outbox for RedisStore {
    async fn read_outbox(&self, partition: u16, max: usize) -> Result<OutboxBatch, StoreError> {
        let keys = self.outbox_keys(partition);
        let mut call = self.outbox_call(SCRIPTS.read_outbox(), [&keys.marker, &keys.stream]);
        call.command.arg(max);
        let reply = self.send_outbox_call(partition, call).await.map_err(|error| not_applied(&error))?;
        let Value::Array(fields) = reply else { return Err(malformed()) };
        let [marker, last_id, deleted_id, Value::Int(length), server, Value::Array(entries)] = fields.as_slice() else {
            return Err(malformed());
        };
        let generation = self.learn_marker(partition, marker)?;
        let decode = |entry: &Value| decode_entry(partition, entry).ok_or_else(unknown_entry);
        let entries: Vec<_> = entries.iter().map(decode).collect::<Result<_, _>>()?;
        Ok(OutboxBatch {
            generation,
            waiting: u64::try_from(*length).unwrap_or_default().saturating_sub(entries.len() as u64),
            entries,
            position: position(generation, last_id)?,
            acknowledged: position(generation, deleted_id)?,
            server: server_number(server)?,
        })
    }

    async fn acknowledge(&self, partition: u16, ids: &[EntryId]) -> Result<(), StoreError> {
        let keys = self.outbox_keys(partition);
        let calls = ids.chunks(MAX_CALL_ITEMS).map(|ids| {
            let mut command = redis::cmd("XDEL");
            command.arg(&keys.stream);
            for EntryId { millis, sequence, .. } in ids {
                command.arg(format!("{millis}-{sequence}"));
            }
            self.send_outbox_call(partition, Call::command(command, self.outbox_timeouts()))
        });
        first_error(join_all(calls).await)
    }

    fn take_written_partitions(&self) -> Vec<u16> {
        self.ledger.take_written()
    }

    async fn read_states(
        &self,
        partition: u16,
        keys: &[AccountKey],
    ) -> Result<Option<(OutboxPosition, Vec<Option<QuotaState>>)>, StoreError> {
        let names: Vec<Vec<u8>> = keys.iter().map(|key| account_name(self.options.namespace.as_str(), key)).collect();
        let keys = self.outbox_keys(partition);
        let call =
            self.outbox_call(SCRIPTS.read_states(), [&keys.marker, &keys.stream].into_iter().chain(names.iter()));
        let reply = self.send_outbox_call(partition, call).await.map_err(|error| not_applied(&error))?;
        let Value::Array(fields) = reply else { return Err(malformed()) };
        let [marker, last_id, Value::Array(values)] = fields.as_slice() else { return Err(malformed()) };
        let Some(generation) = self.learn_marker(partition, marker)? else { return Ok(None) };
        if values.len() != names.len() {
            return Err(malformed());
        }
        let decode = |(index, value): (usize, &Value)| match value {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => decode_value(bytes).map_err(|_| unreadable(index as u64 + 1)),
            _ => Err(malformed()),
        };
        let states = values.iter().enumerate().map(decode).collect::<Result<_, _>>()?;
        Ok(Some((position(Some(generation), last_id)?, states)))
    }

    async fn repair_states(
        &self,
        partition: u16,
        position: &OutboxPosition,
        states: &[GateState],
    ) -> Result<bool, StoreError> {
        let OutboxPosition { generation, millis, sequence } = *position;
        let _change = self.denial_cache.begin_change_of_all();
        let keys = self.outbox_keys(partition);
        let packed = self.pack_states(states, limit_value);
        for chunk in chunks(&packed) {
            let names = [&keys.marker, &keys.stream].into_iter().chain(chunk.iter().map(|state| &state.key));
            let mut call = self.outbox_call(SCRIPTS.repair_states(), names);
            call.command.arg(generation).arg(format!("{millis}-{sequence}"));
            append_states(&mut call, chunk);
            match self.send_outbox_call(partition, call).await? {
                Value::Int(1) => {}
                Value::Int(0) => return Ok(false),
                _ => return Err(malformed()),
            }
        }
        Ok(true)
    }

    async fn rebuild_partition(
        &self,
        partition: u16,
        generation: u64,
        states: &[GateState],
    ) -> Result<u64, StoreError> {
        let _change = self.denial_cache.begin_change_of_all();
        let keys = self.outbox_keys(partition);
        let packed = self.pack_states(states, value_with_holds);
        // Each `RandomState` has a random seed, so the token is unique.
        let token = RandomState::new().hash_one(generation).to_string();
        let chunks = chunks(&packed);
        for (index, chunk) in chunks.iter().enumerate() {
            let own_keys = [&keys.marker, &keys.stream, &keys.lock];
            let names = own_keys.into_iter().chain(chunk.iter().map(|state| &state.key));
            let mut call = self.outbox_call(SCRIPTS.rebuild_partition(), names);
            let (is_first, is_last) = (index == 0, index + 1 == chunks.len());
            let mut numbers = Vec::new();
            PackedNumbers(&mut numbers).push_all(&[is_first.into(), is_last.into(), REBUILD_LOCK_MILLIS]);
            call.command.arg(generation).arg(&token).arg(numbers);
            append_states(&mut call, chunk);
            let reply = self.send_outbox_call(partition, call).await?;
            let Value::BulkString(reply) = reply else { return Err(malformed()) };
            match &reply[..] {
                b"0" if !is_last => {}
                b"lost" => return Err(rebuilding("another instance rebuilds the partition from the ledger")),
                b"waiting" => return Err(rebuilding("entries of the partition wait for the ledger; read them first")),
                digits => {
                    let generation = parse_generation(digits).ok_or_else(malformed)?;
                    self.ledger.set_generation(partition, generation);
                    return Ok(generation);
                }
            }
        }
        Err(malformed())
    }

    async fn discard_generation(&self, partition: u16, generation: u64) -> Result<(), StoreError> {
        let keys = self.outbox_keys(partition);
        let mut call = self.outbox_call(SCRIPTS.discard_generation(), [&keys.marker]);
        call.command.arg(generation);
        match self.send_outbox_call(partition, call).await? {
            Value::Int(_) => {
                self.ledger.learn([(partition, 0)]);
                Ok(())
            }
            _ => Err(malformed()),
        }
    }
}

impl RedisStore {
    fn outbox_keys(&self, partition: u16) -> OutboxKeys {
        OutboxKeys::new(self.options.namespace.as_str(), partition)
    }

    /// A call of `script` with these keys.
    fn outbox_call<'k>(&self, script: &'static Script, keys: impl IntoIterator<Item = &'k Vec<u8>>) -> Call {
        let mut call = Call::script("EVALSHA", script, self.outbox_timeouts());
        let keys: Vec<&Vec<u8>> = keys.into_iter().collect();
        call.command.arg(keys.len());
        for key in keys {
            call.command.arg(key);
        }
        call
    }

    /// Decisions under a synchronous ledger wait for these calls, but each of them serves many.
    fn outbox_timeouts(&self) -> Timeouts {
        Timeouts::for_background(&self.options).with_bounded_attempts()
    }

    async fn send_outbox_call(&self, partition: u16, mut call: Call) -> Result<Value, StoreError> {
        if call.script.is_some() {
            append_injected_now(&mut call.command, self.injected_now());
        }
        Ok(self.router.send(slot_of(partition), &call).await?)
    }

    /// The generation of a partition, as found.
    fn learn_marker(&self, partition: u16, marker: &Value) -> Result<Option<u64>, StoreError> {
        let generation = match marker {
            Value::Nil => None,
            Value::BulkString(digits) => Some(parse_generation(digits).ok_or_else(unknown_entry)?),
            _ => return Err(malformed()),
        };
        self.ledger.set_generation(partition, generation.unwrap_or_default());
        Ok(generation)
    }

    fn pack_states(&self, states: &[GateState], value: impl Fn(&GateState) -> (Vec<u8>, u64)) -> Vec<PackedState> {
        let pack = |state: &GateState| {
            let (value, expiry) = value(state);
            PackedState { key: account_name(self.options.namespace.as_str(), &state.key), value, expiry }
        };
        states.iter().map(pack).collect()
    }
}

/// States in calls, at least one.
fn chunks(states: &[PackedState]) -> Vec<&[PackedState]> {
    if states.is_empty() { vec![states] } else { states.chunks(MAX_CALL_ITEMS).collect() }
}

/// Appends the expiry and length of each value, and the values.
fn append_states(call: &mut Call, states: &[PackedState]) {
    let mut numbers = Vec::with_capacity(16 * states.len());
    for PackedState { value, expiry, .. } in states {
        PackedNumbers(&mut numbers).push_all(&[(*expiry).min(1 << 53), value.len() as u64]);
    }
    let values: Vec<u8> = states.iter().flat_map(|state| &state.value).copied().collect();
    call.command.arg(numbers).arg(values);
}

/// The generation is a part of it, since another stream may give the same ids.
fn position(generation: Option<u64>, id: &Value) -> Result<OutboxPosition, StoreError> {
    let Value::BulkString(id) = id else { return Err(malformed()) };
    let (millis, sequence) = parse_stream_id(id).ok_or_else(malformed)?;
    Ok(OutboxPosition { generation: generation.unwrap_or_default(), millis, sequence })
}

/// A number for what a server says about itself. Never 0, which is for stores that do not go back.
fn server_number(server: &Value) -> Result<u64, StoreError> {
    let Value::BulkString(server) = server else { return Err(malformed()) };
    let mut hasher = DefaultHasher::new();
    hasher.write(server);
    Ok(hasher.finish() | 1)
}

fn parse_generation(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|generation| *generation > 0)
}

fn rebuilding(message: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Rebuilding, message)
}

/// An entry or a generation that this version has not written.
fn unknown_entry() -> StoreError {
    let message = "the outbox of the ledger contains a value that this version does not write; it was left as it is. \
                   Upgrade this instance, or give this deployment a namespace of its own";
    StoreError::new(StoreErrorKind::Unreadable, message)
}
