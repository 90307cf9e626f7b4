//! `AdminAccess`: who may do what at the admin address.
//!
//! | address | tokens | reading | changing |
//! |---|---|---|---|
//! | loopback | none | everybody | nobody |
//! | loopback | for changes | everybody | that token |
//! | loopback | for reading | either token | the token for changes |
//! | public | none | the server does not start | |
//! | public | any | either token | the token for changes |
//!
//! Wrong tokens are limited for each address by a [`GuessLimiter`].

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use serde_json::json;
use tidegate::MemoryStore;
use tidegate::sync::RwLock;

use super::guess_limiter::GuessLimiter;
use super::tokens::{AdminTokenArgs, AdminTokens, Permission};
use crate::calls::retry_after::insert_retry_after;
use crate::command::failure::Failure;

/// Decides who may call the admin address.
pub(crate) struct AdminAccess {
    flags: AdminTokenArgs,
    tokens: RwLock<AdminTokens>,
    is_public: bool,
    guesses: GuessLimiter,
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessError {
    /// It has no token.
    Unauthenticated,
    /// Its token is wrong.
    WrongToken,
    /// Its address has sent too many wrong tokens.
    Blocked(Duration),
    /// Its token is for reading only.
    ReadOnly,
    /// There is no token that permits changes.
    NoToken,
}

impl AdminAccess {
    /// The access to `address`. Fails if others can reach it and there is no token.
    pub(crate) fn new(address: SocketAddr, flags: AdminTokenArgs) -> Result<Self, Failure> {
        let tokens = flags.tokens().map_err(Failure::Usage)?;
        let is_public = !address.ip().is_loopback();
        if is_public && !tokens.is_any() {
            return Err(Failure::usage(format!(
                "--admin {address} can be reached from outside this machine, and there is no token: write one to a file \
                 (`openssl rand -hex 32 > admin-token`) and add --admin-token-file admin-token, or set TIDEGATE_ADMIN_TOKEN; or \
                 listen on 127.0.0.1:{}",
                address.port()
            )));
        }
        let guesses = GuessLimiter::new(MemoryStore::new()).map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Self { flags, tokens: RwLock::new(tokens), is_public, guesses })
    }

    /// Reads the token files again, if there are any.
    pub(crate) fn read_tokens(&self) -> Result<Option<AdminTokens>, String> {
        if self.flags.files().next().is_none() {
            return Ok(None);
        }
        self.flags.tokens().map(Some)
    }

    /// Replaces the tokens; the old ones permit nothing from then on.
    pub(crate) fn replace_tokens(&self, tokens: AdminTokens) {
        *self.tokens.write() = tokens;
    }

    /// Requires this permission for every call of `router`.
    pub(crate) fn require(self: &Arc<Self>, permission: Permission, router: Router) -> Router {
        let access = Arc::clone(self);
        router.layer(from_fn(move |request: Request, next: Next| {
            let access = Arc::clone(&access);
            async move {
                // Every request of the listener carries the address of its client.
                let client =
                    request.extensions().get::<SocketAddr>().map_or(IpAddr::from([0, 0, 0, 0]), SocketAddr::ip);
                match access.check(permission, request.headers(), client) {
                    Ok(()) => next.run(request).await,
                    Err(error) => error.into_response(),
                }
            }
        }))
    }

    fn check(&self, permission: Permission, headers: &HeaderMap, client: IpAddr) -> Result<(), AccessError> {
        let tokens = self.tokens.read();
        if permission == Permission::Read && !self.is_public && !tokens.has_read() {
            return Ok(());
        }
        if !tokens.can_permit(permission) {
            return Err(AccessError::NoToken);
        }
        // Without the scheme, nothing was guessed.
        let Some(token) = bearer_token(headers) else { return Err(AccessError::Unauthenticated) };
        let permitted = || tokens.permission(token);
        match self.guesses.guess(client, permitted).map_err(AccessError::Blocked)? {
            None => Err(AccessError::WrongToken),
            Some(permitted) if permitted < permission => Err(AccessError::ReadOnly),
            Some(_) => Ok(()),
        }
    }
}

impl fmt::Debug for AdminAccess {
    /// Shows no token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminAccess").field("is_public", &self.is_public).finish_non_exhaustive()
    }
}

/// The token of the only `Authorization` header.
fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.as_bytes().split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

impl IntoResponse for AccessError {
    fn into_response(self) -> Response {
        let (status, error, message) = match self {
            Self::Unauthenticated => {
                (StatusCode::UNAUTHORIZED, "unauthenticated", "Send a token: `Authorization: Bearer TOKEN`.")
            }
            Self::WrongToken => (StatusCode::UNAUTHORIZED, "wrong_token", "This is not a token of this server."),
            Self::Blocked(_) => {
                (StatusCode::TOO_MANY_REQUESTS, "too_many_guesses", "Your address has sent too many wrong tokens.")
            }
            Self::ReadOnly => (StatusCode::FORBIDDEN, "read_only", "This token is for reading only."),
            Self::NoToken => (
                StatusCode::FORBIDDEN,
                "no_token",
                "Nothing can be changed here, since the server has no token for it: start it with --admin-token-file.",
            ),
        };
        let mut response = (status, Json(json!({ "error": error, "message": message }))).into_response();
        match self {
            Self::Unauthenticated | Self::WrongToken => {
                response.headers_mut().insert(WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"));
            }
            Self::Blocked(retry_after) => {
                insert_retry_after(response.headers_mut(), retry_after);
            }
            Self::ReadOnly | Self::NoToken => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tidegate::ManualClock;

    use super::*;

    const CHANGE: &str = "change-0123456789";
    const READ: &str = "read-0123456789ab";
    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        tokens: AdminTokenArgs,
    }

    fn access(address: &str, tokens: &[&str]) -> Result<AdminAccess, Failure> {
        let flags = Flags::try_parse_from([&["serve"][..], tokens].concat()).unwrap();
        AdminAccess::new(address.parse().unwrap(), flags.tokens)
    }

    fn authorization(value: &str) -> HeaderMap {
        [(AUTHORIZATION, value.parse().unwrap())].into_iter().collect()
    }

    /// The results of reading and changing, by somebody without a token, with that for reading, and with that for changes.
    fn results(access: &AdminAccess) -> [[Result<(), AccessError>; 3]; 2] {
        let headers =
            [HeaderMap::new(), authorization(&format!("Bearer {READ}")), authorization(&format!("bearer {CHANGE}"))];
        [Permission::Read, Permission::Change]
            .map(|permission| headers.each_ref().map(|headers| access.check(permission, headers, CLIENT)))
    }

    #[test]
    fn the_table_of_the_module_holds() {
        use AccessError::{NoToken, ReadOnly, Unauthenticated, WrongToken};
        let (change, read) = (["--admin-token", CHANGE], ["--admin-read-token", READ]);
        let both = [change, read].concat();
        let (none, ok) = ([Err(NoToken); 3], [Ok(()); 3]);
        let with_both = [[Err(Unauthenticated), Ok(()), Ok(())], [Err(Unauthenticated), Err(ReadOnly), Ok(())]];
        let only_change = [Err(Unauthenticated), Err(WrongToken), Ok(())];
        let only_read = [[Err(Unauthenticated), Ok(()), Err(WrongToken)], none];
        for (address, tokens, expected) in [
            ("127.0.0.1:1", &[][..], [ok, none]),
            ("[::1]:1", &change[..], [ok, only_change]),
            ("127.0.0.1:1", &read[..], only_read),
            ("127.0.0.1:1", &both[..], with_both),
            ("0.0.0.0:1", &change[..], [only_change; 2]),
            ("[::]:1", &read[..], only_read),
            ("10.0.0.1:1", &both[..], with_both),
        ] {
            assert_eq!(results(&access(address, tokens).unwrap()), expected, "{address} {tokens:?}");
        }
    }

    #[test]
    fn a_public_address_without_a_token_is_refused_with_the_way_out() {
        for address in ["0.0.0.0:8082", "[::]:8082", "10.0.0.1:8082", "192.0.2.1:8082"] {
            let Err(Failure::Usage(message)) = access(address, &[]) else { panic!("{address} is accepted") };
            for text in [address, "--admin-token-file", "TIDEGATE_ADMIN_TOKEN", "127.0.0.1:8082"] {
                assert!(message.contains(text), "{text}: {message}");
            }
        }
    }

    #[test]
    fn only_one_bearer_token_is_read() {
        let access = access("0.0.0.0:1", &["--admin-token", CHANGE]).unwrap();
        let check = |headers: &HeaderMap| access.check(Permission::Change, headers, CLIENT);
        assert_eq!(check(&authorization(&format!("BEARER  {CHANGE} "))), Ok(()));
        assert_eq!(check(&authorization("Bearer ")), Err(AccessError::WrongToken));
        // The answer says how a token is sent.
        for value in [CHANGE.to_owned(), format!("Basic {CHANGE}"), format!("Bearer{CHANGE}"), "x".into()] {
            assert_eq!(check(&authorization(&value)), Err(AccessError::Unauthenticated), "{value}");
        }
        let mut two = authorization(&format!("Bearer {CHANGE}"));
        two.append(AUTHORIZATION, "Bearer other".parse().unwrap());
        assert_eq!(check(&two), Err(AccessError::Unauthenticated));
    }

    #[test]
    fn an_address_that_guesses_is_blocked_and_others_are_not() {
        let mut access = access("0.0.0.0:1", &["--admin-token", CHANGE]).unwrap();
        access.guesses = GuessLimiter::new(MemoryStore::new().with_clock(ManualClock::default())).unwrap();
        let check = |token: &str, client: &str| {
            access.check(Permission::Read, &authorization(&format!("Bearer {token}")), client.parse().unwrap())
        };
        let mut guesses = 0;
        while check("wrong", "192.0.2.1") == Err(AccessError::WrongToken) {
            guesses += 1;
        }
        assert_eq!(guesses, 10);
        assert!(matches!(check(CHANGE, "192.0.2.1"), Err(AccessError::Blocked(_))), "even with the right token");
        assert!(matches!(check(CHANGE, "::ffff:192.0.2.1"), Err(AccessError::Blocked(_))), "the same address");
        for _ in 0..100 {
            assert_eq!(check(CHANGE, "192.0.2.2"), Ok(()), "the right token is no guess");
        }
        while check("wrong", "2001:db8::1") == Err(AccessError::WrongToken) {}
        assert!(matches!(check(CHANGE, "2001:db8::2"), Err(AccessError::Blocked(_))), "the same network");
        assert_eq!(check(CHANGE, "2001:db8:0:1::1"), Ok(()), "another network");
    }
}
