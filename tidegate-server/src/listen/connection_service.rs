//! `ConnectionService`: the service of one connection. It rejects ambiguous requests and those that a bound refuses, adds the
//! client's address, calls the service of the listener, and reads a bounded rest of a body that the service left unread.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::Service;
use pin_project_lite::pin_project;

use super::client_body::{ClientBody, Drain, UnreadBody, announce_close};
use super::clients::RequestClient;
use super::connection::{ClientConnection, ClientInfo, ConnectionConfig, OverTls};
use super::guarded_stream::AmbiguousRequest;
use super::request_bounds::{HeldPermit, RequestScope, refusal};
use super::tracked_body::{ResponseMonitor, TrackedBody};

/// The service of one connection.
pub(super) struct ConnectionService<S> {
    config: Arc<ConnectionConfig<S>>,
    client: ClientInfo,
    passes_client_info: bool,
    ambiguous: AmbiguousRequest,
    state: Arc<ClientConnection>,
}

pin_project! {
    /// The response to one request.
    pub(super) struct ResponseFuture<F, B> {
        #[pin]
        stage: Stage<F, B>,
    }
}

pin_project! {
    #[project = StageProjection]
    #[project_replace = StageReplacement]
    enum Stage<F, B> {
        Service { #[pin] response: F, request: RequestInProgress },
        /// The response is known, and the rest of the request is read.
        Drain { response: Response<TrackedBody<B>>, drain: Drain },
        Respond { response: Response<TrackedBody<B>> },
        Done,
    }
}

/// What is kept of a request until its response.
struct RequestInProgress {
    unread: Option<UnreadBody>,
    permit: Option<HeldPermit>,
    /// Whether the request is under way until its response ends.
    is_until_end: bool,
    /// Set if the response is watched.
    watch: Option<(Arc<ClientConnection>, Arc<ResponseMonitor>)>,
}

impl<S> ConnectionService<S> {
    pub(super) fn new(
        config: &Arc<ConnectionConfig<S>>,
        client: ClientInfo,
        passes_client_info: bool,
        ambiguous: AmbiguousRequest,
        state: &Arc<ClientConnection>,
    ) -> Self {
        Self { config: Arc::clone(config), client, passes_client_info, ambiguous, state: Arc::clone(state) }
    }
}

impl<S, B> Service<Request<Incoming>> for ConnectionService<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>, Error = Infallible>,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    type Response = Response<TrackedBody<B>>;
    type Error = Infallible;
    type Future = ResponseFuture<S::Future, B>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let number = self.state.count_request();
        let (mut request, unread) = ClientBody::split(request, &self.state.lingering);
        if self.ambiguous.is_number(number) {
            return ResponseFuture::respond(ambiguous_response());
        }
        let bounds = self.config.requests.as_ref();
        let permit = bounds
            .map(|bounds| bounds.acquire(self.client.peer.ip(), self.client.calls.as_ref(), &mut request))
            .transpose();
        let permit = match permit {
            Ok(permit) => permit,
            Err(bound) => {
                drop(request);
                return ResponseFuture::finish(refusal(bound).map(TrackedBody::Local), unread);
            }
        };
        let is_until_end = bounds.is_some_and(|bounds| bounds.scope == RequestScope::Response);
        let is_watched = self.config.watches_responses && request.version() == Version::HTTP_2;
        let watch = is_watched.then(|| (Arc::clone(&self.state), Arc::clone(&self.config.monitor)));
        if self.passes_client_info {
            request.extensions_mut().insert(self.client.peer);
            request.extensions_mut().insert(self.client.permit.clone());
            if self.client.is_tls {
                request.extensions_mut().insert(OverTls);
            }
            if let Some(client) = permit.as_ref().and_then(HeldPermit::client)
                && !request.body().is_end_stream()
            {
                request.extensions_mut().insert(RequestClient(client));
            }
        }
        let response = self.config.service.call(request);
        let request = RequestInProgress { unread, permit, is_until_end, watch };
        ResponseFuture { stage: Stage::Service { response, request } }
    }
}

impl<F, B> ResponseFuture<F, B> {
    const fn respond(response: Response<TrackedBody<B>>) -> Self {
        Self { stage: Stage::Respond { response } }
    }

    /// Responds once the rest of the request is read, as far as there is one.
    fn finish(response: Response<TrackedBody<B>>, unread: Option<UnreadBody>) -> Self {
        Self { stage: Stage::finish(response, unread) }
    }
}

impl<F, B> Stage<F, B> {
    fn finish(mut response: Response<TrackedBody<B>>, unread: Option<UnreadBody>) -> Self {
        match unread.and_then(|unread| unread.drain(&mut response)) {
            Some(drain) => Self::Drain { response, drain },
            None => Self::Respond { response },
        }
    }
}

impl RequestInProgress {
    /// The response is known. Adds the permit to its body, if the request is under way until that ends.
    fn track<B>(&mut self, response: Response<B>) -> Response<TrackedBody<B>>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let permit = self.permit.take().filter(|_| self.is_until_end);
        let watch = self.watch.take();
        response.map(|body| match watch {
            Some((connection, monitor)) if !body.is_end_stream() => {
                TrackedBody::watched(body, permit, connection, &monitor)
            }
            _ => TrackedBody::plain(body, permit),
        })
    }
}

impl<F, B> Future for ResponseFuture<F, B>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    type Output = Result<Response<TrackedBody<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            let next = match stage.as_mut().project() {
                StageProjection::Service { response, request } => {
                    let response = ready!(response.poll(context))?;
                    Stage::finish(request.track(response), request.unread.take())
                }
                StageProjection::Drain { drain, .. } => {
                    let reached_end = ready!(drain.poll(context));
                    match stage.as_mut().project_replace(Stage::Done) {
                        StageReplacement::Drain { mut response, .. } => {
                            if !reached_end {
                                announce_close(&mut response);
                            }
                            return Poll::Ready(Ok(response));
                        }
                        _ => return Poll::Pending,
                    }
                }
                StageProjection::Respond { .. } => {
                    return match stage.as_mut().project_replace(Stage::Done) {
                        StageReplacement::Respond { response } => Poll::Ready(Ok(response)),
                        _ => Poll::Pending,
                    };
                }
                // A future that has returned its response is not polled again.
                StageProjection::Done => return Poll::Pending,
            };
            stage.set(next);
        }
    }
}

/// The response to a request with two body lengths.
fn ambiguous_response<B>() -> Response<TrackedBody<B>> {
    const BODY: &[u8] =
        br#"{"error":"bad_request","message":"The request has a Content-Length beside a Transfer-Encoding, or one with a zero in front."}"#;
    let mut response = Response::new(TrackedBody::Local(Full::from(BODY)));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    announce_close(&mut response);
    response
}
