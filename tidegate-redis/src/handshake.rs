//! The first commands on a new connection: credentials, protocol, database and the name of the client.

use redis::{Cmd, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind, Value};

use crate::server_link::ServerLink;

/// The name that the server lists for connections of this crate.
const CLIENT_NAME: &str = "tidegate-redis";

/// Authenticates, chooses protocol and database, and names the client. The name is optional: an error reply to it is ignored.
pub(crate) async fn shake_hands(link: &mut ServerLink, settings: &RedisConnectionInfo) -> RedisResult<()> {
    let mut commands: Vec<(HandshakeStep, Cmd)> = Vec::new();
    if settings.protocol().supports_resp3() {
        commands.push((HandshakeStep::Hello, hello(settings)));
    } else if let Some(password) = settings.password() {
        let mut auth = redis::cmd("AUTH");
        if let Some(user) = settings.username() {
            auth.arg(user);
        }
        auth.arg(password);
        commands.push((HandshakeStep::Auth, auth));
    }
    if settings.db() != 0 {
        let mut select = redis::cmd("SELECT");
        select.arg(settings.db());
        commands.push((HandshakeStep::Select, select));
    }
    for (name, value) in [("LIB-NAME", CLIENT_NAME), ("LIB-VER", env!("CARGO_PKG_VERSION"))] {
        let mut set_info = redis::cmd("CLIENT");
        set_info.arg("SETINFO").arg(name).arg(value);
        commands.push((HandshakeStep::SetInfo, set_info));
    }
    let (steps, commands): (Vec<_>, Vec<_>) = commands.into_iter().unzip();
    let replies = link.query(&commands).await?;
    for (step, reply) in steps.into_iter().zip(replies) {
        step.check(reply)?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HandshakeStep {
    Hello,
    Auth,
    Select,
    SetInfo,
}

impl HandshakeStep {
    fn check(self, reply: Value) -> RedisResult<()> {
        let Err(error) = reply.extract_error() else { return Ok(()) };
        match self {
            Self::Hello => Err(error),
            // A server that is loading, or that has too many clients, does not say anything about the password.
            Self::Auth if matches!(error.code(), Some("LOADING" | "BUSY" | "MASTERDOWN")) => Err(error),
            Self::Auth => Err((ErrorKind::AuthenticationFailed, "the server rejects the user or the password").into()),
            Self::Select => {
                let detail = error.detail().unwrap_or_default().to_owned();
                let kind = ErrorKind::Server(ServerErrorKind::ResponseError);
                Err(RedisError::from((kind, "the server refuses the database", detail)))
            }
            Self::SetInfo => Ok(()),
        }
    }
}

fn hello(settings: &RedisConnectionInfo) -> Cmd {
    let mut hello = redis::cmd("HELLO");
    hello.arg(3);
    if let Some(password) = settings.password() {
        hello.arg("AUTH").arg(settings.username().unwrap_or("default")).arg(password);
    }
    hello
}
