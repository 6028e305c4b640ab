//! The endpoint: each request gets its route, its record and its response.

use std::convert::Infallible;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash::origin::odd_keys::is_odd;
use bywash::traffic::Traffic;
use bywash::{Bucket, Engine};
use futures::StreamExt;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use hyper::body::{Body as _, Incoming};
use hyper::service::Service;
use object_store::path::Path;
use s3s::Body;

use super::access::{Access, Caller, exchange, is_exchange};
use super::admit::{Admission, admit};
use super::body::BodyStream;
use super::error::{GcsError, GcsResult};
use super::fast::FastPath;
use super::fields::Fields;
use super::query::Query;
use super::route::{Operation, Route};
use super::serve::GcsConfig;
use super::sessions::Sessions;
use super::{batch, buckets, compose, copy, gunzip, insert, list, moves, patch, read, xml};
use crate::access_log::{AccessLog, ClientTexts, Peer};
use crate::body::{BodySilence, ClientBody, RequestContext, RequestRecorder, ServedBody};
use crate::config::ETagStyle;
use crate::documents::{Documents, RequestDocuments};
use crate::errors::{OperationContext, no_such_bucket};
use crate::http_server::ClientRequest;
use crate::keys::{path_of, stored_path};
use crate::meta::{refuse_unreadable, text};
use crate::other_sites::is_write_of_a_page;
use crate::record::{ObjectName, RequestIds, ResponseMeter};
use crate::resident::Serving;
use crate::shared_state::SharedState;
use crate::uploads::{ClusterUploads, Uploads};

/// In a response the name of the session that was started, as of Google's, and else the id of the
/// request.
pub(crate) const UPLOAD_ID: HeaderName = HeaderName::from_static("x-guploader-uploadid");

/// Parameters that let their reader repeat or continue a request; they are in no log.
const SECRET_PARAMETERS: [&str; 4] = [
    "upload_id",
    "access_token",
    "x-goog-signature",
    "x-amz-signature",
];

/// Serves requests from any number of connections.
pub(crate) struct Endpoint {
    pub(crate) engine: Engine,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) shared: SharedState,
    documents: Arc<Documents>,
    /// Memory that requests hold while their writes wait for more.
    held: Arc<Documents>,
    /// Memory of decompressions for clients.
    pub(crate) gunzips: Documents,
    traffic: Arc<Traffic>,
    access: Access,
    anonymous: bool,
    etag: ETagStyle,
    tls: bool,
    silent_body: Duration,
    silence: BodySilence,
    /// Folder of open uploads in parts, and how many there may be.
    uploads: Option<PathBuf>,
    cluster_uploads: Option<ClusterUploads>,
    open_uploads: usize,
    access_log: Option<AccessLog>,
    ids: RequestIds,
    fast: FastPath,
}

/// A request, and the context for serving it.
pub(crate) struct GcsRequest {
    pub(crate) parts: Parts,
    pub(crate) query: Query,
    pub(crate) route: Route,
    pub(crate) caller: Caller,
    pub(crate) body: BodyStream,
    pub(crate) context: Arc<RequestContext>,
    pub(crate) documents: RequestDocuments,
    pub(crate) admission: Admission,
}

impl GcsRequest {
    /// The operation and its object, for messages.
    pub(crate) fn doing(&self, operation: &'static str) -> OperationContext<'_> {
        OperationContext::new(operation, &self.route.bucket, &self.route.object)
    }
}

impl Endpoint {
    pub(crate) fn new(
        engine: Engine,
        sessions: Arc<Sessions>,
        access: Access,
        config: &GcsConfig,
    ) -> Self {
        Self {
            silence: BodySilence::new(&config.limits, &engine),
            fast: FastPath::new(&engine, config.access_log.clone()),
            documents: config.shared.documents(&engine),
            held: Arc::new(Documents::held_by_writes(engine.clone())),
            gunzips: Documents::gunzips(engine.clone()),
            shared: config.shared.clone(),
            traffic: Arc::clone(engine.traffic()),
            engine,
            sessions,
            access,
            anonymous: config.anonymous,
            etag: config.etag,
            tls: config.tls.is_some(),
            silent_body: config.limits.silent_body,
            uploads: config.uploads.clone(),
            cluster_uploads: config.cluster_uploads.clone(),
            open_uploads: config.limits.open_uploads,
            access_log: config.access_log.clone(),
            ids: RequestIds::new(),
        }
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.anonymous
    }

    pub(crate) fn bucket(&self, name: &str) -> GcsResult<Bucket> {
        let found = self.engine.bucket(name);
        found.ok_or_else(|| no_such_bucket(name).into())
    }

    /// Resolves bucket and path of an object.
    pub(crate) fn object(&self, bucket: &str, object: &str) -> GcsResult<(Bucket, Path)> {
        Ok((self.bucket(bucket)?, path_of(object)?))
    }

    /// Resolves bucket and path of an object that is read or deleted.
    pub(crate) fn stored_object(&self, bucket: &str, object: &str) -> GcsResult<(Bucket, Path)> {
        let bucket = self.bucket(bucket)?;
        let path = stored_path(&bucket, object)?;
        Ok((bucket, path))
    }

    /// Resolves bucket and path of an object that must exist.
    pub(crate) fn existing_object(&self, bucket: &str, object: &str) -> GcsResult<(Bucket, Path)> {
        let (bucket, path) = self.stored_object(bucket, object)?;
        if is_odd(&path) {
            // The clients of origins read and delete such objects, and no more.
            return Ok((bucket, path_of(object)?));
        }
        Ok((bucket, path))
    }

    /// Whether responses to inserts have the MD5 of the object: `gcloud` compares no other digest.
    pub(crate) fn computes_md5(&self) -> bool {
        self.etag == ETagStyle::Md5
    }

    /// Whether the MD5 of an object written to a bucket becomes its ETag; other origins have ETags
    /// of their own.
    pub(crate) fn wants_md5(&self, bucket: &Bucket) -> bool {
        self.computes_md5() && bucket.takes_late_attributes()
    }

    /// Returns the uploads in parts, which the S3 endpoint has too.
    pub(crate) async fn uploads(&self) -> GcsResult<Arc<Uploads>> {
        let cluster = self.cluster_uploads.clone();
        let folder = self.uploads.as_ref();
        let opened = self
            .shared
            .uploads(&self.engine, cluster, folder, self.open_uploads);
        opened.await.map_err(|error| {
            tracing::error!("the folder of open uploads cannot be used: {error}");
            GcsError::unavailable("The folder of open uploads cannot be used now; try again.")
        })
    }

    /// The URL of this endpoint, as a client addressed it.
    pub(crate) fn url(&self, parts: &Parts) -> String {
        let host = text(&parts.headers, HOST.as_str()).unwrap_or_default();
        if self.tls {
            format!("https://{host}")
        } else {
            format!("http://{host}")
        }
    }

    async fn serve(&self, request: Request<Incoming>, peer: Peer) -> Response<ServedBody> {
        let begun = Instant::now();
        let (parts, incoming) = request.into_parts();
        let query = Query::new(&parts.uri);
        let route = Route::find(&parts, &query);
        let context = RequestContext::new(self.ids.next(), None);
        let context = Arc::new(context.logged(self.access_log.is_some()));
        let name = match &route {
            Ok(route) => ObjectName::new(&route.bucket, &route.object),
            Err(_) => ObjectName::new("", ""),
        };
        let mut meter = ResponseMeter::new(&self.traffic, parts.method.clone(), name, begun);
        if is_exchange(&parts) {
            context.note_operation("oauth2.token");
        } else if let Ok(route) = &route {
            meter.operation = Some(route.operation.name());
            context.note_operation(route.operation.name());
        }
        let logged = || {
            let uri = without_secrets(&parts.uri);
            ClientTexts::new(peer, parts.version, &uri, &parts.headers)
        };
        meter.log = self.access_log.clone().map(|log| (log, logged()));
        let mut recorder = RequestRecorder {
            context: Arc::clone(&context),
            meter,
        };
        let unread = !incoming.is_end_stream();
        // hyper sends no `100 Continue` for an empty body; a client that waits for it would take this response's status
        // for the next one on the connection.
        let expects = parts.headers.contains_key(EXPECT) && !unread;
        context.body_open.store(unread, Relaxed);
        let body: BodyStream = if unread {
            ClientBody::new(incoming, self.silence.clone(), Arc::clone(&context)).boxed()
        } else {
            futures::stream::empty().boxed()
        };
        let operation = route.as_ref().ok().map(|route| route.operation);
        let served = match route {
            _ if is_exchange(&parts) => {
                exchange(&self.access, &self.documents, body, self.silent_body).await
            }
            Ok(route) => {
                let request = self.request(parts, query, route, body, &context);
                self.admit(request).await
            }
            Err(error) => Err(error),
        };
        let mut response = served.unwrap_or_else(|error| {
            let error = context.fault().map(GcsError::from).unwrap_or(error);
            match operation {
                Some(Operation::Xml(_)) => xml::error(error),
                Some(Operation::ReadObject) => error.into_plain_text().response(),
                _ => error.response(),
            }
        });
        let headers = response.headers_mut();
        if context.body_open.load(Relaxed) || expects {
            // The rest of the body is indistinguishable from the next request.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Ok(id) = HeaderValue::from_str(context.id.as_str()) {
            headers.entry(UPLOAD_ID).or_insert(id);
        }
        let announced = response.headers().get(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
        let meter = &mut recorder.meter;
        meter.announced = announced.filter(|_| meter.method != Method::HEAD);
        meter.record_status(response.status());
        response.map(|body| ServedBody::Routed(body, recorder))
    }

    /// Serves a request that may be sent.
    async fn admit(&self, mut request: GcsRequest) -> GcsResult<Response<Body>> {
        let parts = &request.parts;
        refuse_unreadable(&parts.headers)?;
        if self.anonymous && is_write_of_a_page(parts) {
            return Err(GcsError::other_site());
        }
        match request.route.operation {
            // The name of a session is the right to write to it.
            Operation::Session => request.admission = Admission::All,
            _ if self.access.is_claimed(parts) => {
                request.caller = self.access.admit(parts).await?;
                request.admission = Admission::All;
            }
            _ => request.admission = admit(self, parts, &request.route).await?,
        }
        if let Some(name) = &request.caller.name {
            request.context.note_requester(name);
        }
        if let Some(payload) = request.caller.payload.take() {
            let body = std::mem::replace(&mut request.body, futures::stream::empty().boxed());
            request.body = payload.check(body, &request.context);
        }
        if request.route.operation == Operation::Batch {
            batch::charge(&mut request).await?;
        }
        gunzip::open_request(&mut request).await?;
        self.route(request).await
    }

    fn request(
        &self,
        parts: Parts,
        query: Query,
        route: Route,
        body: BodyStream,
        context: &Arc<RequestContext>,
    ) -> GcsRequest {
        let documents = match route.operation {
            // Their calls and bodies are written, which may wait for memory.
            Operation::Batch | Operation::Insert => &self.held,
            _ => &self.documents,
        };
        GcsRequest {
            parts,
            query,
            route,
            caller: Caller::anyone(),
            body,
            context: Arc::clone(context),
            documents: RequestDocuments::new(Arc::clone(documents)),
            admission: Admission::Public { by_object: true },
        }
    }

    /// Serves a call of a batch, for the caller of the batch. A call with a token of its own is of that token.
    pub(crate) fn call<'a>(
        &'a self,
        (parts, query, route): (Parts, Query, Route),
        body: Bytes,
        (caller, admission): (Caller, Admission),
        context: &Arc<RequestContext>,
    ) -> Pin<Box<dyn Future<Output = GcsResult<Response<Body>>> + Send + 'a>> {
        let body = futures::stream::iter([Ok(body)]).boxed();
        let has_token = parts.headers.contains_key(AUTHORIZATION);
        let request = GcsRequest {
            documents: RequestDocuments::prepaid(Arc::clone(&self.documents)),
            caller,
            admission,
            ..self.request(parts, query, route, body, context)
        };
        if has_token {
            Box::pin(self.admit(request))
        } else {
            Box::pin(self.route(request))
        }
    }

    async fn route(&self, mut request: GcsRequest) -> GcsResult<Response<Body>> {
        // Each call of a batch is checked, and the batch itself does nothing.
        if request.route.operation != Operation::Batch {
            let target = request.route.target.as_ref().map(|(bucket, _)| bucket);
            for bucket in target.into_iter().chain([&request.route.bucket]) {
                request.caller.check(&request.parts.method, bucket)?;
            }
        }
        request.query.refuse_not_served()?;
        refuse_customer_keys(&request)?;
        let fields = Fields::of(&request.query)?;
        let operation = request.route.operation;
        let request = &mut request;
        let response = match operation {
            Operation::ListBuckets => buckets::list(self, request).await,
            Operation::InsertBucket => buckets::insert(self, request).await,
            Operation::GetBucket => buckets::get(self, request).await,
            Operation::DeleteBucket => buckets::delete(self, request).await,
            Operation::PatchBucket => buckets::patch(self, request).await,
            Operation::GetStorageLayout => buckets::layout(self, request),
            Operation::ListObjects => list::objects(self, request).await,
            Operation::GetObject => read::metadata(self, request).await,
            Operation::ReadObject => read::media(self, request).await,
            Operation::DeleteObject => read::delete(self, request).await,
            Operation::PatchObject => patch::patch(self, request).await,
            Operation::UpdateObject => patch::update(self, request).await,
            Operation::Compose => compose::compose(self, request).await,
            Operation::Copy => copy::copy(self, request).await,
            Operation::Rewrite => copy::rewrite(self, request).await,
            Operation::Move => moves::object(self, request).await,
            Operation::Insert => insert::object(self, request).await,
            Operation::StartSession => super::sessions::start(self, request).await,
            Operation::Session => super::sessions::serve(self, request).await,
            Operation::Batch => batch::serve(self, request).await,
            Operation::Xml(operation) => xml::serve(self, request, operation).await,
        }?;
        let has_document = !matches!(
            operation,
            Operation::ReadObject | Operation::Batch | Operation::Xml(_)
        );
        Ok(response.map(|body| {
            let fields = fields.as_ref().filter(|_| has_document);
            request.documents.settle(selected(body, fields))
        }))
    }
}

/// The part of a document that the client wants.
fn selected(body: Body, fields: Option<&Fields>) -> Body {
    let document = fields.and_then(|fields| Some((fields, body.bytes()?)));
    let document = document.filter(|(_, document)| !document.is_empty());
    match document.and_then(|(fields, document)| fields.select(&document)) {
        Some(selected) => Body::from(selected),
        None => body,
    }
}

/// Refuses keys of the client, which would be ignored.
fn refuse_customer_keys(request: &GcsRequest) -> GcsResult<()> {
    match text(&request.parts.headers, "x-goog-encryption-algorithm") {
        None => Ok(()),
        Some(_) => Err(GcsError::not_served(
            "Customer keys are not served here; leave them out.",
        )),
    }
}

/// A request's target without the parameters that let their reader repeat it.
fn without_secrets(uri: &Uri) -> Uri {
    let Some(query) = uri.query() else {
        return uri.clone();
    };
    let is_secret = |pair: &&str| {
        // Decoded, as the request's parameters are.
        let mut decoded = form_urlencoded::parse(pair.as_bytes());
        decoded.any(|(name, _)| {
            let is_named = |known: &&str| name.eq_ignore_ascii_case(known);
            SECRET_PARAMETERS.iter().any(is_named)
        })
    };
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_secret(pair)).collect();
    let target = format!("{}?{}", uri.path(), kept.join("&"));
    target.parse().unwrap_or_default()
}

/// The service of an endpoint's connections.
pub(crate) struct EndpointHandler(Arc<Endpoint>);

impl EndpointHandler {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self(Arc::new(endpoint))
    }
}

impl Service<ClientRequest> for EndpointHandler {
    type Response = Response<ServedBody>;
    type Error = Infallible;
    type Future = Serving<Infallible>;

    fn call(&self, client: ClientRequest) -> Serving<Infallible> {
        let ClientRequest { peer, mut request } = client;
        let Endpoint {
            access, fast, ids, ..
        } = &*self.0;
        if let Some(response) = fast.serve(access, &mut request, peer, ids) {
            return Serving::Ready(Some(response));
        }
        let endpoint = Arc::clone(&self.0);
        Serving::Routed(Box::pin(
            async move { Ok(endpoint.serve(request, peer).await) },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_targets_have_no_secrets() {
        for (uri, logged) in [
            ("/upload?name=a&upload_id=secret&x=1", "/upload?name=a&x=1"),
            ("/a?access_token=secret", "/a?"),
            ("/a?upload%5Fid=secret&%61ccess_token=secret", "/a?"),
            (
                "/b/o?X-Goog-Date=1&X-Goog-Signature=00",
                "/b/o?X-Goog-Date=1",
            ),
            ("/a%2Fb", "/a%2Fb"),
        ] {
            let uri: Uri = uri.parse().expect("it is a target");
            assert_eq!(without_secrets(&uri).to_string(), logged);
        }
    }
}
