//! `ErrorFormat`: the format of the body of a refusal, and the body of a plain error in it.

use super::json_object::JsonObject;

/// The format of the body of a refusal. A client that asks for `application/problem+json` gets a problem document, whatever the format.
///
/// A response that names a rule has the format of that rule. One that names none, such as a 503 or a denial by
/// [security](crate::Rule::with_security) rules, has the last of the formats of all rules that apply, in the order below: so it tells
/// nobody which of them denies the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorFormat {
    /// `{"error":"rate_limit_exceeded","message":"…"}` with the rule and the time to retry.
    #[default]
    Json,
    /// A problem document (RFC 9457).
    Problem,
    /// `{"type":"error","error":{"message":"…","type":"…","param":null,"code":"…"}}`, which the client libraries of OpenAI and of
    /// Anthropic read. Rules that [count tokens](crate::Rule::with_usage) have it by default.
    OpenAi,
}

/// The name of the error if a quota is used up. Clients of OpenAI's API do not retry then.
pub(super) const QUOTA_USED: &str = "insufficient_quota";

impl ErrorFormat {
    /// The name in rule files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Problem => "problem",
            Self::OpenAi => "openai",
        }
    }

    /// The media type of a body.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Json | Self::OpenAi => "application/json",
            Self::Problem => "application/problem+json",
        }
    }

    /// The body of an error that is not about limits: `name` is for programs, `message` for people.
    ///
    /// ```
    /// use tidegate::http::ErrorFormat;
    ///
    /// let body = ErrorFormat::OpenAi.error_body(400, "bad_request", "The path is not valid.");
    /// let error = r#"{"message":"The path is not valid.","type":"invalid_request_error","param":null,"code":"bad_request"}"#;
    /// assert_eq!(body, format!(r#"{{"type":"error","error":{error}}}"#));
    /// ```
    pub fn error_body(self, status: u16, name: &str, message: &str) -> String {
        let members = match self {
            Self::Json => JsonObject::new().with("error", name).with("message", message),
            Self::Problem => JsonObject::new()
                .with("type", "about:blank")
                .with("title", title(name))
                .with("status", status)
                .with("detail", message),
            Self::OpenAi => JsonObject::openai(status, name, message),
        };
        members.finish()
    }
}

impl JsonObject {
    /// An error of OpenAI's API, whose clients branch on `code`, and of Anthropic's, whose clients branch on the `type` within `error`:
    /// each ignores what only the other reads.
    pub(super) fn openai(status: u16, name: &str, message: &str) -> Self {
        let kind = match (status, name) {
            (_, QUOTA_USED) => QUOTA_USED,
            (_, "overloaded") => "overloaded_error",
            (429, _) => "rate_limit_error",
            (500.., _) => "api_error",
            _ => "invalid_request_error",
        };
        let error = Self::new()
            .with("message", message)
            .with("type", kind)
            .with("param", serde_json::Value::Null)
            .with("code", name);
        Self::new().with("type", "error").with_object("error", error)
    }
}

/// The title of an error: its name as words.
fn title(name: &str) -> String {
    let words = name.replace('_', " ");
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The types are those of Anthropic's API, except for that of a quota, which is OpenAI's.
    #[test]
    fn the_type_of_an_error_is_one_that_client_libraries_know() {
        for (status, name, kind) in [
            (400, "bad_request", "invalid_request_error"),
            (413, "body_too_long", "invalid_request_error"),
            (429, "rate_limit_exceeded", "rate_limit_error"),
            (429, "insufficient_quota", "insufficient_quota"),
            (502, "upstream_unreachable", "api_error"),
            (503, "temporarily_unavailable", "api_error"),
            (503, "overloaded", "overloaded_error"),
        ] {
            let body: Value = serde_json::from_str(&ErrorFormat::OpenAi.error_body(status, name, "m")).unwrap();
            assert_eq!((&body["type"], &body["error"]["type"]), (&"error".into(), &kind.into()), "{name}");
            assert_eq!((&body["error"]["code"], &body["error"]["message"]), (&name.into(), &"m".into()));
            assert_eq!(body["error"].get("param"), Some(&Value::Null));
        }
    }

    #[test]
    fn a_problem_document_has_the_name_of_the_error_as_its_title() {
        assert_eq!(
            ErrorFormat::Problem.error_body(415, "body_encoded", "It is \"compressed\"."),
            r#"{"type":"about:blank","title":"Body encoded","status":415,"detail":"It is \"compressed\"."}"#
        );
    }
}
