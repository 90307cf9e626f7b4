//! The store of a server: opened whether or not anybody is there, and looked at as soon as somebody is. A server must start
//! without its Redis, as it must go on without it.

use std::time::Duration;

use tidegate::{StoreError, Timer};
use tidegate_redis::RedisOptions;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::options::ServeArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::store::{AnyStore, StoreUrl};

/// How often a store is looked at that was not there.
const LOOKS: Duration = Duration::from_secs(1);

/// What an operator should know of the store, as it is found out.
pub(crate) type Told = UnboundedReceiver<String>;

/// Opens the store at `url`. One that can never be used is a failure; one that does not answer now is told of, and looked at
/// again until it does.
pub(crate) async fn open(
    url: &StoreUrl,
    arguments: &ServeArgs,
    output: &mut Output<'_>,
) -> Result<(AnyStore, Told), Failure> {
    let failed = |error: StoreError| Failure::Store { error, meanwhile: "" };
    let options = RedisOptions::new().with_budget(Duration::from_millis(arguments.store_budget));
    let store = AnyStore::at(url, options).map_err(failed)?;
    let (tell, told) = unbounded_channel();
    match store.check_servers().await {
        Ok(warnings) => warnings.iter().for_each(|warning| output.warn(warning)),
        Err(error) if error.is_transient() => {
            output.warn(format!("{error}. Until then each rule does what its on_failure says"));
            tokio::spawn(look(store.clone(), tell, crate::timer::tokio_timer()));
        }
        Err(error) => return Err(failed(error)),
    }
    Ok((store, told))
}

/// Looks at the store until it answers, or nobody listens any more.
async fn look(store: AnyStore, tell: UnboundedSender<String>, timer: impl Timer) {
    let mut last = String::new();
    while !tell.is_closed() {
        timer.sleep(LOOKS).await;
        let lines = match store.check_servers().await {
            Ok(warnings) => return warnings.into_iter().for_each(|warning| _ = tell.send(warning)),
            Err(error) if error.is_transient() => continue,
            Err(error) => error.to_string(),
        };
        // It is there, but cannot be used: that is said once, and may yet be mended.
        if lines != last {
            let _ = tell.send(lines.clone());
            last = lines;
        }
    }
}
