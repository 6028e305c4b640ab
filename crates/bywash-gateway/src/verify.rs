//! Verification of request bodies against the digests in headers and trailers, while streaming.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::Stream;
use http::{HeaderMap, HeaderName, Method};
use s3s::dto::StreamingBlob;
use s3s::{S3Error, S3ErrorCode, S3Result, StdError};

use crate::body::{BodyError, RequestContext};
use crate::digest::{Algorithm, Checksum, Hasher, hex};
use crate::errors::{WithElements, fault, not_implemented};
use crate::meta::joined;

const CONTENT_MD5: &str = "content-md5";

/// The expected value of a digest.
enum ExpectedDigest {
    Md5(Vec<u8>),
    /// In the payload header.
    Payload,
    Header(Algorithm, Vec<u8>),
    Trailer(Algorithm),
    /// None: the checksum is computed.
    Computed(Algorithm),
    /// None: the MD5 is computed.
    ComputedMd5,
}

struct Check {
    hasher: Hasher,
    expected: ExpectedDigest,
}

/// The digests that a request announces for its body.
#[derive(Default)]
pub(crate) struct Checks(Vec<Check>);

impl Checks {
    /// Parses the announced digests.
    pub(crate) fn announced(headers: &HeaderMap, context: &RequestContext) -> S3Result<Self> {
        let mut checks = Vec::new();
        if let Some(value) = headers.get(CONTENT_MD5) {
            let digest = BASE64_STANDARD.decode(value.as_bytes()).ok();
            let Some(digest) = digest.filter(|digest| digest.len() == 16) else {
                let message = "Content-MD5 is not the base64 of an MD5 digest.";
                let value = String::from_utf8_lossy(value.as_bytes());
                let error = fault(S3ErrorCode::InvalidDigest, message);
                return Err(error.with([("Content-MD5", value)]));
            };
            checks.push(Check {
                hasher: Hasher::md5(),
                expected: ExpectedDigest::Md5(digest),
            });
        }
        if context.payload_sha256.get().is_some() {
            checks.push(Check {
                hasher: Algorithm::Sha256.hasher(),
                expected: ExpectedDigest::Payload,
            });
        }
        let mut checksums = header_checksums(headers)?
            .into_iter()
            .map(|(algorithm, digest)| (algorithm, ExpectedDigest::Header(algorithm, digest)))
            .collect::<Vec<_>>();
        let trailers = joined(headers, "x-amz-trailer").unwrap_or_default();
        let trailers = trailers.split(',').map(str::trim);
        for name in trailers.filter(|name| !name.is_empty()) {
            let mut known = Algorithm::ALL.into_iter();
            let algorithm = known
                .find(|known| known.header().eq_ignore_ascii_case(name))
                .ok_or_else(|| unknown_checksum(name))?;
            checksums.push((algorithm, ExpectedDigest::Trailer(algorithm)));
        }
        if checksums.len() > 1 {
            let message = "Expecting a single x-amz-checksum- header or trailer; send one.";
            return Err(fault(S3ErrorCode::InvalidRequest, message));
        }
        checks.extend(checksums.into_iter().map(|(algorithm, expected)| Check {
            hasher: algorithm.hasher(),
            expected,
        }));
        Ok(Self(checks))
    }

    /// Parses the digests that a request announces for a body that is buffered whole. Operations that stream their bodies parse them
    /// themselves, and a copy has no body.
    pub(crate) fn of_document(
        operation: &str,
        method: &Method,
        headers: &HeaderMap,
        context: &RequestContext,
    ) -> S3Result<Self> {
        match operation {
            _ if *method != Method::PUT && *method != Method::POST => Ok(Self::default()),
            "PutObject"
            | "UploadPart"
            | "CopyObject"
            | "UploadPartCopy"
            | "CreateMultipartUpload" => Ok(Self::default()),
            "CompleteMultipartUpload" => {
                // Its checksum headers state the object's checksums.
                let md5 = headers.get(CONTENT_MD5).cloned();
                let md5 = md5.map(|value| (HeaderName::from_static(CONTENT_MD5), value));
                Self::announced(&md5.into_iter().collect(), context)
            }
            _ => Self::announced(headers, context),
        }
    }

    /// Computes the MD5 of the body too, if `wanted`.
    pub(crate) fn with_md5(mut self, wanted: bool) -> Self {
        let is_md5 = |check: &Check| matches!(check.expected, ExpectedDigest::Md5(_));
        if wanted && !self.0.iter().any(is_md5) {
            self.0.push(Check {
                hasher: Hasher::md5(),
                expected: ExpectedDigest::ComputedMd5,
            });
        }
        self
    }

    /// Computes the checksum of `algorithm` too, unless one is announced. Rejects one of another algorithm.
    pub(crate) fn with_checksum(mut self, algorithm: Option<Algorithm>) -> S3Result<Self> {
        let Some(algorithm) = algorithm else {
            return Ok(self);
        };
        let announced = self.0.iter().find_map(|check| match &check.expected {
            ExpectedDigest::Header(announced, _) | ExpectedDigest::Trailer(announced) => {
                Some(*announced)
            }
            _ => None,
        });
        match announced {
            None => self.0.push(Check {
                hasher: algorithm.hasher(),
                expected: ExpectedDigest::Computed(algorithm),
            }),
            Some(announced) if announced != algorithm => {
                let [expected, actual] =
                    [algorithm, announced].map(|one| one.name().to_ascii_lowercase());
                let message = format!(
                    "Checksum Type mismatch occurred, expected checksum Type: {expected}, actual checksum Type: {actual}"
                );
                return Err(fault(S3ErrorCode::InvalidRequest, message));
            }
            Some(_) => {}
        }
        Ok(self)
    }

    /// The object's checksum if a header announces it.
    pub(crate) fn known(&self) -> Option<Checksum> {
        self.0.iter().find_map(|check| match &check.expected {
            ExpectedDigest::Header(algorithm, digest) => Some(Checksum {
                algorithm: *algorithm,
                value: BASE64_STANDARD.encode(digest),
            }),
            _ => None,
        })
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        for check in &mut self.0 {
            check.hasher.update(data);
        }
    }

    /// Compares all digests at the end of the body.
    pub(crate) fn finish(&mut self, context: &RequestContext) -> Result<(), BodyError> {
        self.check_trailers(context)?;
        for check in std::mem::take(&mut self.0) {
            let digest = check.hasher.finish();
            match check.expected {
                ExpectedDigest::Md5(expected) => {
                    if expected != digest {
                        return Err(md5_mismatch(context, &expected, &digest));
                    }
                    // Set once: a request has one body.
                    let _ = context.md5.set(hex(&digest));
                }
                ExpectedDigest::ComputedMd5 => {
                    let _ = context.md5.set(hex(&digest));
                }
                ExpectedDigest::Computed(algorithm) => remember(context, algorithm, &digest),
                ExpectedDigest::Payload => check_payload(context, &digest)?,
                ExpectedDigest::Header(algorithm, expected) => {
                    expect_digest(context, algorithm.header(), expected == digest)?;
                    remember(context, algorithm, &digest);
                }
                ExpectedDigest::Trailer(algorithm) => {
                    let expected = trailer(context, algorithm)?;
                    expect_digest(context, algorithm.header(), expected == digest)?;
                    remember(context, algorithm, &digest);
                }
            }
        }
        Ok(())
    }
}

impl Checks {
    /// Rejects checksums among the trailers that nothing compares: without an announcement, or a second value.
    fn check_trailers(&self, context: &RequestContext) -> Result<(), BodyError> {
        let Some(trailers) = context.trailers.get() else {
            return Ok(());
        };
        let is_compared = |name: &HeaderName| {
            let is_it = |check: &Check| match check.expected {
                ExpectedDigest::Trailer(algorithm) => algorithm.header() == name.as_str(),
                _ => false,
            };
            self.0.iter().any(is_it) && trailers.get_all(name).iter().count() == 1
        };
        let mut checksums = trailers
            .keys()
            .filter(|name| name.as_str().starts_with("x-amz-checksum-"));
        match checksums.find(|name| !is_compared(name)) {
            None => Ok(()),
            Some(name) => {
                let message = format!(
                    "The trailer {name} was not announced in x-amz-trailer, or came twice."
                );
                Err(malformed_trailer(context, message))
            }
        }
    }
}

fn malformed_trailer(context: &RequestContext, message: String) -> BodyError {
    let code = S3ErrorCode::Custom("MalformedTrailerError".into());
    context.note(code, message)
}

/// Returns the digest in an announced trailer.
fn trailer(context: &RequestContext, algorithm: Algorithm) -> Result<Vec<u8>, BodyError> {
    let trailers = context.trailers.get();
    let value = trailers.and_then(|trailers| trailers.get(algorithm.header()));
    let digest = value.and_then(|value| algorithm.decode(value.to_str().ok()?));
    digest.ok_or_else(|| {
        let message = format!(
            "The announced trailer {} is missing or not a digest.",
            algorithm.header()
        );
        malformed_trailer(context, message)
    })
}

/// Headers with the prefix of checksums that are none.
const OTHER_CHECKSUM_HEADERS: [&str; 3] = [
    "x-amz-checksum-algorithm",
    "x-amz-checksum-mode",
    "x-amz-checksum-type",
];

/// Decodes the checksums in `headers`. One of an unknown algorithm is refused: nothing would compare it.
pub(crate) fn header_checksums(headers: &HeaderMap) -> S3Result<Vec<(Algorithm, Vec<u8>)>> {
    let names = headers.keys().map(HeaderName::as_str);
    let mut checksums = names.filter(|name| name.starts_with("x-amz-checksum-"));
    let is_known = |name: &str| {
        let mut known = Algorithm::ALL.into_iter();
        OTHER_CHECKSUM_HEADERS.contains(&name) || known.any(|known| known.header() == name)
    };
    if let Some(name) = checksums.find(|name| !is_known(name)) {
        return Err(unknown_checksum(name));
    }
    let mut found = Vec::new();
    for algorithm in Algorithm::ALL {
        let Some(value) = headers.get(algorithm.header()) else {
            continue;
        };
        let digest = value
            .to_str()
            .ok()
            .and_then(|value| algorithm.decode(value));
        let Some(digest) = digest else {
            return Err(invalid_checksum(algorithm));
        };
        found.push((algorithm, digest));
    }
    Ok(found)
}

/// The error of a checksum that would not be verified.
fn unknown_checksum(name: &str) -> S3Error {
    let known = Algorithm::ALL.map(Algorithm::header).join(", ");
    let message = format!("The checksum {name} is not supported here; send one of {known}.");
    not_implemented(message).with([("Header", name)])
}

pub(crate) fn invalid_checksum(algorithm: Algorithm) -> S3Error {
    let message = format!(
        "Value for {} header is invalid: it is not the base64 of a digest.",
        algorithm.header()
    );
    fault(S3ErrorCode::InvalidRequest, message)
}

fn expect_digest(context: &RequestContext, what: &str, equal: bool) -> Result<(), BodyError> {
    if equal || planted!("gateway-digest-not-compared") {
        return Ok(());
    }
    let message =
        format!("The {what} you specified did not match what we received; nothing was stored.");
    Err(context.note(S3ErrorCode::BadDigest, message))
}

fn md5_mismatch(context: &RequestContext, expected: &[u8], computed: &[u8]) -> BodyError {
    let message =
        "The Content-MD5 you specified did not match what we received; nothing was stored.";
    context.note_fault(&fault(S3ErrorCode::BadDigest, message).with([
        // The one in hexadecimal digits, the other in base64, as in S3.
        ("ExpectedDigest", hex(expected)),
        ("CalculatedDigest", BASE64_STANDARD.encode(computed)),
    ]))
}

/// Compares the digest of a body with the one in the payload header, if there is one.
pub(crate) fn check_payload(context: &RequestContext, digest: &[u8]) -> Result<(), BodyError> {
    let computed = hex(digest);
    let Some(expected) = context.payload_sha256.get() else {
        return Ok(());
    };
    if computed.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    let code = S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into());
    let message = "The provided x-amz-content-sha256 header does not match what was received; nothing was stored.";
    Err(context.note_fault(&fault(code, message).with([
        ("ClientComputedContentSHA256", expected),
        ("S3ComputedContentSHA256", &computed),
    ])))
}

fn remember(context: &RequestContext, algorithm: Algorithm, digest: &[u8]) {
    let checksum = Checksum {
        algorithm,
        value: BASE64_STANDARD.encode(digest),
    };
    // Set once: a request has one checksum.
    let _ = context.verified.set(checksum);
}

/// A request body that fails at its end unless length and digests are as announced.
///
/// Its last piece is returned only after verification: a consumer that stops at the announced length must not have
/// all bytes before.
pub(crate) struct VerifiedBody {
    body: StreamingBlob,
    checks: Checks,
    length: Option<u64>,
    got: u64,
    held: Option<Bytes>,
    over: bool,
    context: Arc<RequestContext>,
}

impl VerifiedBody {
    pub(crate) fn new(
        body: StreamingBlob,
        checks: Checks,
        length: Option<u64>,
        context: Arc<RequestContext>,
    ) -> Self {
        context.stream_body();
        Self {
            body,
            checks,
            length,
            got: 0,
            held: None,
            over: false,
            context,
        }
    }

    fn take(&mut self, data: Bytes) -> Result<Option<Bytes>, BodyError> {
        self.got += data.len() as u64;
        if self.length.is_some_and(|length| self.got > length) {
            let message = "The body is longer than announced; nothing was stored.";
            return Err(self.context.note(S3ErrorCode::IncompleteBody, message));
        }
        self.checks.update(&data);
        Ok(self.held.replace(data))
    }

    fn end(&mut self) -> Result<Option<Bytes>, BodyError> {
        if let Some(length) = self.length.filter(|length| self.got < *length) {
            let message = format!(
                "The body has {} bytes, {length} were announced; nothing was stored.",
                self.got
            );
            return Err(self.context.note(S3ErrorCode::IncompleteBody, message));
        }
        self.checks.finish(&self.context)?;
        Ok(self.held.take())
    }
}

impl Stream for VerifiedBody {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        while !this.over {
            let next = ready!(Pin::new(&mut this.body).poll_next(cx));
            let piece = match next {
                Some(Ok(data)) if data.is_empty() => continue,
                Some(Ok(data)) => this.take(data),
                Some(Err(error)) => Err(body_fault(&this.context, &error)),
                None => {
                    this.over = true;
                    this.end()
                }
            };
            match piece {
                Ok(Some(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(None) => {}
                Err(error) => {
                    this.over = true;
                    this.held = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        Poll::Ready(None)
    }
}

/// Returns the error of a body. Its fault was recorded where it was found.
fn body_fault(context: &RequestContext, error: &StdError) -> BodyError {
    let message = format!("The body is not as announced ({error}); nothing was stored.");
    context.note(S3ErrorCode::IncompleteBody, message)
}

#[cfg(test)]
mod tests;
