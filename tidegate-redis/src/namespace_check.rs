//! `check_namespace`: refuses a namespace that begins with the name of another one in use. Their keys are distinct in any case, but an
//! operator's pattern such as `shop*` would match both.

use tidegate::{StoreError, StoreErrorKind};

use crate::call::{Call, CallError};
use crate::heartbeat::{LIST_PARTITION, instances_key};
use crate::options::RedisOptions;
use crate::router::Router;
use crate::slot_map::slot_of;
use crate::timeouts::Timeouts;

/// Fails if the namespace begins with another one in use. If it is in use itself, that is only a warning, which is returned: a deployment
/// that runs must be able to restart its instances, whoever came later.
///
/// A namespace is in use as long as its list of instances exists, and as far as the user may see it.
pub(crate) async fn check_namespace(router: &Router, options: &RedisOptions) -> Result<Option<String>, StoreError> {
    let namespace = &options.namespace;
    for other in namespace.beginnings() {
        match is_in_use(router, options, other).await {
            Ok(false) => {}
            Ok(true) => {
                let problem = format!(
                    "the namespace `{namespace}` begins with `{other}`, which another deployment on this store has"
                );
                if is_in_use(router, options, namespace.as_str()).await? {
                    return Ok(Some(format!(
                        "{problem}; it is accepted as long as instances of `{namespace}` run: give one of the two another --namespace"
                    )));
                }
                let message = format!("{problem}; choose a --namespace that begins differently");
                return Err(StoreError::new(StoreErrorKind::Unexpected, message));
            }
            // A user that may not see this one sees none of the shorter names either.
            Err(error) if error.missing_permission => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

async fn is_in_use(router: &Router, options: &RedisOptions, namespace: &str) -> Result<bool, CallError> {
    let mut exists = redis::cmd("EXISTS");
    exists.arg(instances_key(namespace));
    let call = Call::command(exists, Timeouts::for_startup(options));
    Ok(router.send(slot_of(LIST_PARTITION), &call).await? == redis::Value::Int(1))
}
