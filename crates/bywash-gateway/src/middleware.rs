//! Middleware around the operations: request ids, signatures, body framing, completion of error responses, access
//! records. Most reads of a warm cache end at the fast path before it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash::Engine;
use bywash::traffic::Traffic;
use futures::{Stream, StreamExt};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body as _, Frame};
use http_body_util::StreamBody;
use hyper::body::Incoming;
use hyper::service::Service;
use s3s::config::StaticConfigProvider;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, S3Error};

use crate::access_log::{AccessLog, ClientTexts, Peer};
use crate::admission::Admission;
use crate::auth::{Keys, OperationName, strip_signature};
use crate::body::{BodyError, ClientBody, RequestContext, RequestRecorder, ServedBody};
use crate::bucket_rules::AllRules;
use crate::chunked::{ChunkFraming, ChunkedBody};
use crate::config::S3Config;
use crate::cors;
use crate::documents::{Documents, RequestDocuments};
use crate::errors::not_implemented;
use crate::fast::FastPath;
use crate::gateway::Gateway;
use crate::host::Hosts;
use crate::http_server::ClientRequest;
use crate::limits::MAX_XML_BYTES;
use crate::other_sites::is_write_of_a_page;
use crate::range::{NormalizedHeaders, forget_text, normalize_range, normalize_text};
use crate::record::{ObjectName, RequestIds, ResponseMeter};
use crate::request_xml::{Gather, SignedChunks, gathered};
use crate::resident::Serving;
use crate::response::{complete, is_representable, unquote_e_tag, unrepresentable};

const PAYLOAD: &str = "x-amz-content-sha256";

/// Serves requests from any number of connections.
pub(crate) struct Middleware {
    service: S3Service,
    engine: Engine,
    hosts: Hosts,
    documents: Arc<Documents>,
    chunks: Arc<Documents>,
    traffic: Arc<Traffic>,
    anonymous: bool,
    region: Arc<str>,
    rules: Arc<AllRules>,
    silent_body: Duration,
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
        let keys = Keys::new(&config.credentials, engine.clone(), Arc::clone(&rules));
        let fast = (!config.anonymous).then(|| {
            FastPath::new(
                &engine,
                hosts.clone(),
                keys.clone(),
                config.access_log.clone(),
            )
        });
        let documents = config.shared.documents(&engine);
        let chunks = Arc::new(Documents::signed_chunks(engine.clone()));
        let mut open = S3ServiceBuilder::new(gateway.clone());
        open.set_config(bodies());
        open.set_host(hosts.clone());
        let open = open.build();
        let service = if config.anonymous {
            open
        } else {
            let mut builder = S3ServiceBuilder::new(gateway);
            builder.set_config(bodies());
            builder.set_host(hosts.clone());
            builder.set_auth(keys.clone());
            builder.set_access(keys.clone());
            builder.set_route(NormalizedHeaders { open, keys });
            builder.build()
        };
        Self {
            service,
            engine,
            hosts,
            documents,
            chunks,
            traffic,
            anonymous: config.anonymous,
            region: config.region.as_str().into(),
            rules,
            silent_body: config.limits.silent_body,
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
        let context = RequestContext::new(
            self.ids.next(),
            condition(&parts.method, &parts.headers),
            self.unchecked_payload(&parts.headers),
        );
        let context = Arc::new(context.logged(self.access_log.is_some()));
        let mut admission = Admission::new(&parts, &self.hosts, self.anonymous, &self.region);
        let name = ObjectName::new(&admission.target.bucket, &admission.target.key);
        let mut meter = ResponseMeter::new(&self.traffic, parts.method.clone(), name, begun);
        meter.operation = admission.operation.as_ref().ok().copied();
        let texts = || ClientTexts::new(peer, parts.version, &parts.uri, &parts.headers);
        meter.log = self.access_log.clone().map(|log| (log, texts()));
        let mut recorder = RequestRecorder {
            context: Arc::clone(&context),
            meter,
        };
        let expects = parts.headers.contains_key(EXPECT) && incoming.is_end_stream();
        let cross = self.cross_origin(&parts, recorder.meter.name.bucket());
        // A signature is something that such a page does not have.
        if self.anonymous && cross.is_empty() && is_write_of_a_page(&parts) {
            admission.operation = Err(cors::refused_write());
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

    /// Returns the headers for a page of another site.
    fn cross_origin(&self, parts: &Parts, bucket: &str) -> HeaderMap {
        match parts.headers.contains_key(ORIGIN) && !cors::is_preflight(parts) {
            true => {
                cors::response_headers(&self.rules.of(bucket).cors, &parts.method, &parts.headers)
            }
            false => HeaderMap::new(),
        }
    }

    /// Responds to a browser that asks whether it may send a request.
    fn preflight(&self, parts: &Parts, bucket: &str) -> Result<Response<Body>, HttpError> {
        match cors::preflight(&self.rules.of(bucket).cors, parts) {
            Ok(headers) => {
                let mut response = Response::new(Body::empty());
                *response.headers_mut() = headers;
                Ok(response)
            }
            Err(refusal) => refusal.to_http_response().map_err(http_error),
        }
    }

    /// Serves an admitted request, or returns the error of a rejected one.
    async fn respond(
        &self,
        mut parts: Parts,
        incoming: Incoming,
        context: &Arc<RequestContext>,
        Admission { target, operation }: Admission,
    ) -> Result<Response<Body>, HttpError> {
        if cors::is_preflight(&parts) {
            context.body_open.store(!incoming.is_end_stream(), Relaxed);
            return self.preflight(&parts, &target.bucket);
        }
        let admitted = match operation {
            // s3s would buffer the whole form before it verifies the signature.
            _ if is_form(&parts) => Err(not_implemented(
                "Uploads by HTML form are not supported here; use PUT.",
            )),
            Ok(_) if self.anonymous => target
                .check_host(|bucket| self.engine.bucket(bucket).is_some())
                .and(operation),
            checked => checked,
        };
        let operation = match admitted {
            Ok(operation) => operation,
            Err(refusal) => {
                context.body_open.store(!incoming.is_end_stream(), Relaxed);
                return refusal.to_http_response().map_err(http_error);
            }
        };
        let documents = Arc::new(RequestDocuments::new(Arc::clone(&self.documents)));
        let gather = Gather {
            context: Arc::clone(context),
            documents: Arc::clone(&documents),
            chunks: SignedChunks::new(Arc::clone(&self.chunks)),
            framed: false,
            bucket: target.bucket.clone(),
            key: target.key.clone(),
        };
        let body = self.body(&mut parts, incoming, gather);
        forget_text(&mut parts.headers);
        if self.anonymous {
            strip_signature(&mut parts);
            normalize_range(&mut parts.headers);
            normalize_text(&mut parts.headers);
        }
        parts.extensions.insert(Arc::clone(context));
        parts.extensions.insert(OperationName(operation));
        parts.extensions.insert(Arc::new(target));
        parts.extensions.insert(Arc::clone(&documents));
        let mut response = self.service.call(Request::from_parts(parts, body)).await?;
        if operation == "GetObjectAttributes" {
            unquote_e_tag(&mut response);
        }
        // All other buffered bodies are XML.
        if operation != "GetObject" && !is_representable(&response) {
            return unrepresentable().to_http_response().map_err(http_error);
        }
        Ok(response.map(|body| documents.settle(body)))
    }

    /// The payload digest to verify here, if `s3s` does not.
    fn unchecked_payload(&self, headers: &HeaderMap) -> Option<String> {
        let value = headers
            .get(PAYLOAD)
            .filter(|_| self.anonymous)?
            .to_str()
            .ok()?;
        let is_digest = value.len() == 64 && value.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| value.to_owned())
    }

    fn body(&self, parts: &mut Parts, incoming: Incoming, mut gather: Gather) -> Body {
        let chunked = parts
            .headers
            .get(PAYLOAD)
            .and_then(|value| value.to_str().ok());
        let mode = match chunked.filter(|payload| payload.starts_with("STREAMING-")) {
            None => None,
            Some(_) if self.anonymous => Some(ChunkFraming::Decode),
            Some(payload) if payload.starts_with("STREAMING-UNSIGNED-") => {
                Some(ChunkFraming::Reframe)
            }
            Some(_) => Some(ChunkFraming::Guard),
        };
        if mode == Some(ChunkFraming::Decode) {
            // From here on the body has its decoded length.
            parts.headers.remove(CONTENT_LENGTH);
            if let Some(length) = parts.headers.get("x-amz-decoded-content-length").cloned() {
                parts.headers.insert(CONTENT_LENGTH, length);
            }
        }
        if incoming.is_end_stream() {
            return Body::empty();
        }
        let context = Arc::clone(&gather.context);
        context.body_open.store(true, Relaxed);
        let body = ClientBody::new(incoming, self.silent_body, Arc::clone(&context));
        gather.framed = matches!(mode, Some(ChunkFraming::Reframe | ChunkFraming::Guard));
        match mode {
            Some(mode) => stream_body(gathered(ChunkedBody::new(body, mode, context), gather)),
            None => stream_body(gathered(body, gather)),
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

/// Returns the header that a failed precondition refers to, in S3's spelling.
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
