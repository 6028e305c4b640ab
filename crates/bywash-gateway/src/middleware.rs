//! Middleware around the operations: request ids, signatures, body framing, completion of error responses, access
//! records. Most reads of a warm cache end at the fast path before it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;
use bywash::Engine;
use bywash::traffic::Traffic;
use futures::{Stream, StreamExt};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::{Body as _, Frame};
use http_body_util::StreamBody;
use hyper::body::Incoming;
use hyper::service::Service;
use s3s::config::StaticConfigProvider;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, S3Error, S3ErrorCode, S3Result};

use crate::access_log::{AccessLog, ClientTexts, Peer};
use crate::admission::{Admission, Admitted};
use crate::auth::{OperationName, Rights};
use crate::body::{
    BodyError, BodySilence, ClientBody, RequestContext, RequestRecorder, ServedBody,
    announces_no_body,
};
use crate::bucket_rules::AllRules;
use crate::chunked::{ChunkedBody, SignedChunks};
use crate::config::S3Config;
use crate::cors;
use crate::documents::{Documents, RequestDocuments};
use crate::encryption;
use crate::errors::{fault, not_implemented};
use crate::fast::FastPath;
use crate::gateway::Gateway;
use crate::health_paths::health;
use crate::host::Hosts;
use crate::http_server::ClientRequest;
use crate::limits::MAX_XML_BYTES;
use crate::meta::{refuse_unheeded, refuse_unreadable};
use crate::other_sites::is_write_of_a_page;
use crate::record::{ObjectName, RequestIds, ResponseMeter};
use crate::request_xml::{Gather, gathered};
use crate::resident::Serving;
use crate::response::{complete, is_representable, unquote_e_tag, unrepresentable};
use crate::sent::SentHead;
use crate::signature::Framing;
use crate::sigv4::chunks::ChunkVerifier;
use crate::sigv4::keys::{Secrets, SigningKeys};
use crate::verify::Checks;

/// Serves requests from any number of connections.
pub(crate) struct Middleware {
    service: S3Service,
    engine: Engine,
    hosts: Hosts,
    documents: Arc<Documents>,
    traffic: Arc<Traffic>,
    /// `None` on an anonymous endpoint.
    keys: Option<Arc<SigningKeys>>,
    rules: Arc<AllRules>,
    silence: BodySilence,
    access_log: Option<AccessLog>,
    ids: RequestIds,
    /// `None` on an anonymous endpoint.
    fast: Option<FastPath>,
}

/// The service of an endpoint's connections.
pub(crate) struct S3Handler(Arc<Middleware>);

impl S3Handler {
    pub(crate) fn new(middleware: Middleware) -> Self {
        Self(Arc::new(middleware))
    }
}

impl Service<ClientRequest> for S3Handler {
    type Response = Response<ServedBody>;
    type Error = HttpError;
    type Future = Serving<HttpError>;

    fn call(&self, client: ClientRequest) -> Serving<HttpError> {
        let ClientRequest { peer, mut request } = client;
        let fast = self.0.fast.as_ref();
        if let Some(response) = fast.and_then(|fast| fast.serve(&mut request, peer, &self.0.ids)) {
            return Serving::Ready(Some(response));
        }
        let middleware = Arc::clone(&self.0);
        Serving::Routed(Box::pin(
            async move { middleware.serve(request, peer).await },
        ))
    }
}

impl Middleware {
    pub(crate) fn new(gateway: Gateway, config: &S3Config, hosts: Hosts) -> Self {
        let engine = gateway.engine.clone();
        let rules = Arc::clone(&gateway.rules);
        let traffic = Arc::clone(engine.traffic());
        let secrets = || Secrets::new(&config.credentials);
        let keys = (!config.anonymous).then(|| Arc::new(SigningKeys::new(secrets())));
        let fast = keys.clone().map(|keys| {
            let log = config.access_log.clone();
            FastPath::new(&engine, hosts.clone(), keys, Arc::clone(&rules), log)
        });
        let documents = config.shared.documents(&engine);
        let silence = BodySilence::new(&config.limits, &engine);
        let mut builder = S3ServiceBuilder::new(gateway);
        builder.set_config(bodies());
        Self {
            service: builder.build(),
            engine,
            hosts,
            documents,
            traffic,
            keys,
            rules,
            silence,
            access_log: config.access_log.clone(),
            ids: RequestIds::new(),
            fast,
        }
    }

    async fn serve(
        &self,
        request: Request<Incoming>,
        peer: Peer,
    ) -> Result<Response<ServedBody>, HttpError> {
        let begun = Instant::now();
        let (parts, incoming) = request.into_parts();
        let context =
            RequestContext::new(self.ids.next(), condition(&parts.method, &parts.headers))
                .repeating(&parts.headers)
                .logged(self.access_log.is_some());
        let context = Arc::new(context);
        let has_body = !incoming.is_end_stream();
        let mut admission = Admission::new(&parts, &self.hosts, self.keys.as_deref(), has_body);
        let name = ObjectName::new(&admission.target.bucket, &admission.target.key);
        let mut meter = ResponseMeter::new(&self.traffic, parts.method.clone(), name, begun);
        meter.operation = admission.named;
        let texts = || ClientTexts::new(peer, parts.version, &parts.uri, &parts.headers);
        meter.log = self.access_log.clone().map(|log| (log, texts()));
        let mut recorder = RequestRecorder {
            context: Arc::clone(&context),
            meter,
        };
        let expects = parts.headers.contains_key(EXPECT) && !has_body;
        let cross = self.cross_origin(&parts, recorder.meter.name.bucket());
        // A signature is something that such a page does not have.
        if self.keys.is_none() && cross.is_empty() && is_write_of_a_page(&parts) {
            admission.admitted = Err(cors::refused_write());
        }
        let mut response = self.respond(parts, incoming, &context, admission).await?;
        response.headers_mut().extend(cross);
        if expects {
            // hyper sends no `100 Continue` for an empty body. Clients that wait for it would take this response's
            // status for the next one on the connection, so close the connection.
            context.body_open.store(true, Relaxed);
        }
        let response = complete(response, &recorder).map_err(http_error)?;
        let announced = response.headers().get(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
        let meter = &mut recorder.meter;
        meter.announced = announced.filter(|_| meter.method != Method::HEAD);
        meter.record_status(response.status());
        Ok(response.map(|body| ServedBody::Routed(body, recorder)))
    }

    /// The headers for a page of another site.
    fn cross_origin(&self, parts: &Parts, bucket: &str) -> HeaderMap {
        if parts.headers.contains_key(ORIGIN) && !cors::is_preflight(parts) {
            cors::response_headers(&self.rules.of(bucket).cors, &parts.method, &parts.headers)
        } else {
            HeaderMap::new()
        }
    }

    /// Responds to a browser that asks whether it may send a request.
    fn preflight(
        &self,
        parts: &Parts,
        bucket: &str,
        context: &RequestContext,
    ) -> Result<Response<Body>, HttpError> {
        match cors::preflight(&self.rules.of(bucket).cors, parts) {
            Ok(headers) => {
                let mut response = Response::new(Body::empty());
                *response.headers_mut() = headers;
                Ok(response)
            }
            Err(refusal) => refused(context, refusal),
        }
    }

    /// Serves an admitted request, or returns the error of a rejected one.
    async fn respond(
        &self,
        mut parts: Parts,
        incoming: Incoming,
        context: &Arc<RequestContext>,
        admission: Admission,
    ) -> Result<Response<Body>, HttpError> {
        let unread = !incoming.is_end_stream();
        if cors::is_preflight(&parts) {
            context.body_open.store(unread, Relaxed);
            return self.preflight(&parts, &admission.target.bucket, context);
        }
        if let Some(status) = health(&self.engine, &parts) {
            context.body_open.store(unread, Relaxed);
            let mut response = Response::new(Body::empty());
            *response.status_mut() = status;
            return Ok(response);
        }
        parts.extensions.insert(Arc::clone(context));
        let target = Arc::clone(&admission.target);
        let admitted = self.admit(&mut parts, admission, context);
        let (admitted, mut checks) = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => {
                context.body_open.store(unread, Relaxed);
                return refused(context, refusal);
            }
        };
        let Admitted {
            operation,
            verified,
            framing,
        } = admitted;
        // Nothing reads an empty body.
        if !unread
            && checks.finish(context).is_err()
            && let Some(fault) = context.fault()
        {
            return refused(context, fault);
        }
        let documents = Arc::new(RequestDocuments::new(Arc::clone(&self.documents)));
        parts.extensions.insert(Arc::clone(&documents));
        let gather = Gather::new(context, &documents, &target, checks);
        let chunks = verified.and_then(|verified| verified.chunks);
        let body = self.body(framing, chunks, incoming, gather);
        let mut response = self.service.call(Request::from_parts(parts, body)).await?;
        if operation == "GetObjectAttributes" {
            unquote_e_tag(&mut response);
        }
        if response.status().is_success() && self.rules.has_encrypted(&self.engine, &target.bucket)
        {
            encryption::state(operation, response.headers_mut());
        }
        // All other buffered bodies are XML.
        if operation != "GetObject" && !is_representable(&response) {
            return refused(context, unrepresentable());
        }
        Ok(response.map(|body| documents.settle(body)))
    }

    /// Checks the rights of a request, and leaves of its head the parts for `s3s`. Returns also the
    /// digests of XML that it announces.
    fn admit(
        &self,
        parts: &mut Parts,
        admission: Admission,
        context: &RequestContext,
    ) -> S3Result<(Admitted, Checks)> {
        let Admission {
            target, admitted, ..
        } = admission;
        refuse_unreadable(&parts.headers)?;
        // s3s would buffer the whole form before it verifies the signature.
        if is_form(parts) {
            return Err(not_implemented(
                "Uploads by HTML form are not supported here; use PUT.",
            ));
        }
        let admitted = match &self.keys {
            None => {
                target.check_host(|bucket| self.engine.bucket(bucket).is_some())?;
                admitted?
            }
            Some(_) => {
                let admitted = admitted?;
                parts.extensions.insert(OperationName(admitted.operation));
                parts.extensions.insert(Arc::clone(&target));
                let signatory = admitted.verified.as_ref().map(|found| &found.signatory);
                let bucket = Some(&*target.bucket).filter(|bucket| !bucket.is_empty());
                let Parts {
                    method,
                    headers,
                    extensions,
                    ..
                } = parts;
                let rights = Rights {
                    engine: &self.engine,
                    rules: &self.rules,
                };
                rights.check(signatory, method, bucket, headers, extensions)?;
                admitted
            }
        };
        if ["PutObject", "UploadPart"].contains(&admitted.operation) && announces_no_body(parts) {
            let message = "The request needs a Content-Length, 0 of an empty body.";
            return Err(fault(S3ErrorCode::MissingContentLength, message));
        }
        let Parts {
            method, headers, ..
        } = &*parts;
        refuse_unheeded(method, headers)?;
        let checks = Checks::of_document(admitted.operation, method, headers, context)?;
        // From here on the body has its decoded length.
        match admitted.framing.length.map(HeaderValue::from) {
            Some(length) => parts.headers.insert(CONTENT_LENGTH, length),
            None => parts.headers.remove(CONTENT_LENGTH),
        };
        SentHead::keep(parts, &target, admitted.operation)?;
        Ok((admitted, checks))
    }

    fn body(
        &self,
        framing: Framing,
        verifier: Option<ChunkVerifier>,
        incoming: Incoming,
        gather: Gather,
    ) -> Body {
        let context = Arc::clone(&gather.context);
        if let Some(sha256) = framing.sha256 {
            // Set once: a request has one body.
            let _ = context.payload_sha256.set(sha256);
        }
        if incoming.is_end_stream() {
            return Body::empty();
        }
        context.body_open.store(true, Relaxed);
        let body = ClientBody::new(incoming, self.silence.clone(), Arc::clone(&context));
        match framing.chunks {
            None => stream_body(gathered(body, gather)),
            Some(with_trailer) => {
                let signed = verifier.map(|verifier| SignedChunks {
                    verifier,
                    with_trailer,
                });
                stream_body(gathered(ChunkedBody::new(body, signed, context), gather))
            }
        }
    }
}

fn bodies() -> Arc<StaticConfigProvider> {
    let mut config = s3s::config::S3Config::default();
    config.xml_max_body_size = MAX_XML_BYTES;
    Arc::new(StaticConfigProvider::new(Arc::new(config)))
}

fn stream_body(body: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static) -> Body {
    Body::http_body_unsync(StreamBody::new(body.map(|piece| piece.map(Frame::data))))
}

/// Returns the response of an error that no operation returns.
fn refused(context: &RequestContext, error: S3Error) -> Result<Response<Body>, HttpError> {
    context.note_elements(&error);
    error.to_http_response().map_err(http_error)
}

fn http_error(error: S3Error) -> HttpError {
    HttpError::new(Box::new(error))
}

fn is_form(parts: &Parts) -> bool {
    let kind = parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    parts.method == Method::POST
        && kind
            .trim_start()
            .to_ascii_lowercase()
            .starts_with("multipart/form-data")
}

/// The header that a failed precondition refers to, in S3's spelling.
fn condition(method: &Method, headers: &HeaderMap) -> Option<&'static str> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    [
        "If-Match",
        "If-Unmodified-Since",
        "If-None-Match",
        "x-amz-copy-source-if-match",
        "x-amz-copy-source-if-unmodified-since",
        "x-amz-copy-source-if-none-match",
        "x-amz-copy-source-if-modified-since",
    ]
    .into_iter()
    // A read with a failed If-None-Match returns 304 instead.
    .find(|name| headers.contains_key(*name) && !(reads && *name == "If-None-Match"))
}
