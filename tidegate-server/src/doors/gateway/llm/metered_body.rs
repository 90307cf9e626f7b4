//! `MeteredBody`: passes the body of a response on, counts its tokens, and commits them before its end.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tidegate_tower::{TokenUsage, UsageCommit, UsageReport};

use super::json_usage::UsageScanner;
use super::sse::EventStream;
use super::token_count::TokenCount;
use crate::doors::gateway::upstream_body::UpstreamBody;

/// The body of a response whose tokens are counted.
///
/// Its end, and the event that announces it, wait until the tokens are committed, so that the next request of the client is decided by
/// them. A body that is dropped before commits what it has seen.
pub(in crate::doors::gateway) struct MeteredBody {
    body: UpstreamBody,
    /// None after the commit.
    meter: Option<Meter>,
    commit: Option<UsageCommit>,
    /// What is passed on after the commit.
    next: Option<Frame<Bytes>>,
    /// What is passed on after that.
    trailers: Option<Frame<Bytes>>,
    failure: Option<hyper::Error>,
    has_ended: bool,
    withholds: bool,
}

/// Counts the tokens of one response.
pub(super) struct Meter {
    report: UsageReport,
    prompt_tokens: u64,
    count: TokenCount,
    form: Form,
}

/// The form of a response.
enum Form {
    /// Known when its first bytes are there.
    Undeclared {
        withholds_usage: bool,
    },
    Stream(EventStream),
    Json(UsageScanner),
    /// Compressed, although that was not offered.
    Unreadable,
}

impl Meter {
    pub(super) fn stream(report: UsageReport, prompt_tokens: u64, withholds_usage: bool) -> Self {
        Self::new(report, prompt_tokens, Form::Stream(EventStream::new(withholds_usage)))
    }

    /// Of a response that is not declared as a stream, and may be one all the same.
    pub(super) fn undeclared(report: UsageReport, prompt_tokens: u64, withholds_usage: bool) -> Self {
        Self::new(report, prompt_tokens, Form::Undeclared { withholds_usage })
    }

    pub(super) fn unreadable(report: UsageReport) -> Self {
        Self::new(report, 0, Form::Unreadable)
    }

    fn new(report: UsageReport, prompt_tokens: u64, form: Form) -> Self {
        Self { report, prompt_tokens, count: TokenCount::default(), form }
    }

    /// Counts further bytes, and returns those that are passed on.
    fn push(&mut self, bytes: Bytes) -> Bytes {
        if let Form::Undeclared { withholds_usage } = self.form
            && let Some(form) = Form::from_beginning(&bytes, withholds_usage)
        {
            self.form = form;
        }
        let passed = match &mut self.form {
            Form::Undeclared { .. } | Form::Unreadable => return bytes,
            Form::Stream(events) => events.push(bytes, &mut self.count),
            Form::Json(scanner) => {
                scanner.push(&bytes, &mut self.count);
                bytes
            }
        };
        // It is committed if the reservation is about to run out.
        if let Some(tokens) = self.tokens() {
            self.report.set_progress(tokens);
        }
        passed
    }

    /// The bytes that are passed on at the end.
    fn finish(&mut self) -> Bytes {
        match &mut self.form {
            Form::Stream(events) => events.finish(&mut self.count),
            Form::Undeclared { .. } | Form::Json(_) | Form::Unreadable => Bytes::new(),
        }
    }

    /// Whether the response has said that it is complete.
    fn is_complete(&self) -> bool {
        match &self.form {
            Form::Stream(_) => self.count.is_complete(),
            Form::Json(scanner) => scanner.is_complete(),
            Form::Undeclared { .. } | Form::Unreadable => false,
        }
    }

    /// The tokens of the request so far. `None` if the response does not tell: the cost stays as it was reserved.
    fn tokens(&self) -> Option<TokenUsage> {
        let is_known = match &self.form {
            // Before that, a model may reason for long and show nothing of it.
            Form::Stream(_) => self.count.has_output(),
            Form::Json(_) => self.count.has_usage(),
            Form::Undeclared { .. } | Form::Unreadable => false,
        };
        is_known.then(|| self.count.tokens(self.prompt_tokens))
    }

    fn commit(self) -> UsageCommit {
        self.report.commit(self.tokens())
    }
}

impl Form {
    /// The form of a response that begins with these bytes: a stream, if the first one after space and a byte order mark begins a field or a
    /// comment of an event. No JSON object begins with it.
    fn from_beginning(bytes: &[u8], withholds_usage: bool) -> Option<Self> {
        let is_skipped = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, 0xef | 0xbb | 0xbf);
        Some(match bytes.iter().find(|byte| !is_skipped(byte))? {
            b'd' | b'e' | b'i' | b'r' | b':' => Self::Stream(EventStream::new(withholds_usage)),
            _ => Self::Json(UsageScanner::default()),
        })
    }
}

impl MeteredBody {
    pub(super) fn new(body: UpstreamBody, meter: Meter) -> Self {
        let withholds = matches!(&meter.form, Form::Stream(_) | Form::Undeclared { withholds_usage: true });
        Self {
            body,
            meter: Some(meter),
            commit: None,
            next: None,
            trailers: None,
            failure: None,
            has_ended: false,
            withholds,
        }
    }

    /// A body that is passed on as it is.
    pub(super) const fn uncounted(body: UpstreamBody) -> Self {
        Self {
            body,
            meter: None,
            commit: None,
            next: None,
            trailers: None,
            failure: None,
            has_ended: false,
            withholds: false,
        }
    }

    /// Takes a frame of the upstream.
    fn take(&mut self, frame: Frame<Bytes>) {
        let Some(meter) = &mut self.meter else {
            self.next = Some(frame);
            return;
        };
        match frame.into_data() {
            Ok(bytes) => {
                let mut passed = meter.push(bytes);
                let is_over = meter.is_complete() || self.body.is_end_stream();
                if is_over {
                    let rest = meter.finish();
                    if !rest.is_empty() {
                        passed = [passed, rest].concat().into();
                    }
                }
                self.next = (!passed.is_empty()).then(|| Frame::data(passed));
                if is_over {
                    self.commit();
                }
            }
            Err(trailers) => {
                let rest = meter.finish();
                self.next = (!rest.is_empty()).then(|| Frame::data(rest));
                self.trailers = Some(trailers);
                self.commit();
            }
        }
    }

    /// The upstream has nothing more to send.
    fn end(&mut self) {
        self.has_ended = true;
        let rest = self.meter.as_mut().map(Meter::finish).unwrap_or_default();
        self.next = (!rest.is_empty()).then(|| Frame::data(rest));
        self.commit();
    }

    fn commit(&mut self) {
        if let Some(meter) = self.meter.take() {
            self.commit = Some(meter.commit());
        }
    }
}

impl Body for MeteredBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            if let Some(commit) = &mut self.commit {
                ready!(Pin::new(commit).poll(context));
                self.commit = None;
            }
            if let Some(frame) = self.next.take().or_else(|| self.trailers.take()) {
                return Poll::Ready(Some(Ok(frame)));
            }
            if let Some(failure) = self.failure.take() {
                return Poll::Ready(Some(Err(failure)));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => self.take(frame),
                Some(Err(failure)) => {
                    self.failure = Some(failure);
                    self.end();
                }
                None => self.end(),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let has_more = self.meter.is_some() || self.commit.is_some() || self.next.is_some();
        let has_more = has_more || self.trailers.is_some() || self.failure.is_some();
        !has_more && (self.has_ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        if self.withholds || self.next.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}

impl Drop for MeteredBody {
    fn drop(&mut self) {
        if let Some(meter) = self.meter.take() {
            meter.report.spawn_commit(meter.tokens());
        }
    }
}
