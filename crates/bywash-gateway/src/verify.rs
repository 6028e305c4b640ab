//! Verification of request bodies against the digests in headers and trailers, while streaming.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::Stream;
use http::HeaderMap;
use s3s::dto::StreamingBlob;
use s3s::{S3Error, S3ErrorCode, S3Result, StdError, TrailingHeaders};

use crate::body::{BodyError, RequestContext};
use crate::digest::{Algorithm, Checksum, Hasher, hex};
use crate::errors::fault;

/// The expected value of a digest.
enum ExpectedDigest {
    Md5(Vec<u8>),
    Payload(String),
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
pub(crate) struct Checks {
    checks: Vec<Check>,
    trailers: Option<TrailingHeaders>,
}

impl Checks {
    /// Parses the announced digests. `trailers` are those whose signature `s3s` verifies.
    pub(crate) fn announced(
        headers: &HeaderMap,
        trailers: Option<TrailingHeaders>,
        context: &RequestContext,
    ) -> S3Result<Self> {
        let mut checks = Vec::new();
        if let Some(value) = headers.get("content-md5") {
            let digest = BASE64_STANDARD
                .decode(value.as_bytes())
                .ok()
                .filter(|digest| digest.len() == 16);
            let Some(digest) = digest else {
                let message = "Content-MD5 is not the base64 of an MD5 digest.";
                return Err(fault(S3ErrorCode::InvalidDigest, message));
            };
            checks.push(Check {
                hasher: Hasher::md5(),
                expected: ExpectedDigest::Md5(digest),
            });
        }
        if let Some(hex) = &context.payload_sha256 {
            checks.push(Check {
                hasher: Algorithm::Sha256.hasher(),
                expected: ExpectedDigest::Payload(hex.clone()),
            });
        }
        let mut checksums = header_checksums(headers)?
            .into_iter()
            .map(|(algorithm, digest)| (algorithm, ExpectedDigest::Header(algorithm, digest)))
            .collect::<Vec<_>>();
        let named = headers
            .get_all("x-amz-trailer")
            .iter()
            .filter_map(|value| value.to_str().ok());
        for name in named.flat_map(|value| value.split(',')) {
            let name = name.trim();
            let found = Algorithm::ALL
                .into_iter()
                .find(|known| known.header().eq_ignore_ascii_case(name));
            checksums
                .extend(found.map(|algorithm| (algorithm, ExpectedDigest::Trailer(algorithm))));
        }
        if checksums.len() > 1 {
            let message = "Expecting a single x-amz-checksum- header or trailer; send one.";
            return Err(fault(S3ErrorCode::InvalidRequest, message));
        }
        checks.extend(checksums.into_iter().map(|(algorithm, expected)| Check {
            hasher: algorithm.hasher(),
            expected,
        }));
        Ok(Self { checks, trailers })
    }

    /// Computes the MD5 of the body too, if `wanted`.
    pub(crate) fn with_md5(mut self, wanted: bool) -> Self {
        let is_md5 = |check: &Check| matches!(check.expected, ExpectedDigest::Md5(_));
        if wanted && !self.checks.iter().any(is_md5) {
            self.checks.push(Check {
                hasher: Hasher::md5(),
                expected: ExpectedDigest::ComputedMd5,
            });
        }
        self
    }

    /// Computes the checksum of `algorithm` too, unless one is announced.
    pub(crate) fn with_checksum(mut self, algorithm: Option<Algorithm>) -> Self {
        let is_checksum = |check: &Check| {
            matches!(
                check.expected,
                ExpectedDigest::Header(..) | ExpectedDigest::Trailer(_)
            )
        };
        if let Some(algorithm) = algorithm
            && !self.checks.iter().any(is_checksum)
        {
            self.checks.push(Check {
                hasher: algorithm.hasher(),
                expected: ExpectedDigest::Computed(algorithm),
            });
        }
        self
    }

    /// Returns the object's checksum if a header announces it.
    pub(crate) fn known(&self) -> Option<Checksum> {
        self.checks.iter().find_map(|check| match &check.expected {
            ExpectedDigest::Header(algorithm, digest) => Some(Checksum {
                algorithm: *algorithm,
                value: BASE64_STANDARD.encode(digest),
            }),
            _ => None,
        })
    }

    fn update(&mut self, data: &[u8]) {
        for check in &mut self.checks {
            check.hasher.update(data);
        }
    }

    /// Compares all digests at the end of the body.
    fn finish(&mut self, context: &RequestContext) -> Result<(), BodyError> {
        for check in std::mem::take(&mut self.checks) {
            let digest = check.hasher.finish();
            match check.expected {
                ExpectedDigest::Md5(expected) => {
                    expect_digest(context, "Content-MD5", expected == digest)?;
                    // Set once: a request has one body.
                    let _ = context.md5.set(hex(&digest));
                }
                ExpectedDigest::ComputedMd5 => {
                    let _ = context.md5.set(hex(&digest));
                }
                ExpectedDigest::Computed(algorithm) => remember(context, algorithm, &digest),
                ExpectedDigest::Payload(expected) => {
                    if !hex(&digest).eq_ignore_ascii_case(&expected) {
                        return Err(payload_mismatch(context));
                    }
                }
                ExpectedDigest::Header(algorithm, expected) => {
                    expect_digest(context, algorithm.header(), expected == digest)?;
                    remember(context, algorithm, &digest);
                }
                ExpectedDigest::Trailer(algorithm) => {
                    let expected = self.trailer(context, algorithm)?;
                    expect_digest(context, algorithm.header(), expected == digest)?;
                    remember(context, algorithm, &digest);
                }
            }
        }
        Ok(())
    }

    fn trailer(
        &self,
        context: &RequestContext,
        algorithm: Algorithm,
    ) -> Result<Vec<u8>, BodyError> {
        let read = |trailers: &HeaderMap| trailers.get(algorithm.header()).cloned();
        let signed = self
            .trailers
            .as_ref()
            .and_then(|trailers| trailers.read(read))
            .flatten();
        let value = signed.or_else(|| context.trailers.get().and_then(read));
        let digest = value
            .as_ref()
            .and_then(|value| algorithm.decode(value.to_str().ok()?));
        digest.ok_or_else(|| {
            let code = S3ErrorCode::Custom("MalformedTrailerError".into());
            let message = format!(
                "The announced trailer {} is missing or not a digest.",
                algorithm.header()
            );
            context.note(code, message)
        })
    }
}

/// Decodes the checksums in `headers`.
pub(crate) fn header_checksums(headers: &HeaderMap) -> S3Result<Vec<(Algorithm, Vec<u8>)>> {
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

pub(crate) fn invalid_checksum(algorithm: Algorithm) -> S3Error {
    let message = format!(
        "Value for {} header is invalid: it is not the base64 of a digest.",
        algorithm.header()
    );
    fault(S3ErrorCode::InvalidRequest, message)
}

fn expect_digest(context: &RequestContext, what: &str, equal: bool) -> Result<(), BodyError> {
    if equal {
        return Ok(());
    }
    let message =
        format!("The {what} you specified did not match what we received; nothing was stored.");
    Err(context.note(S3ErrorCode::BadDigest, message))
}

fn payload_mismatch(context: &RequestContext) -> BodyError {
    let code = S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into());
    context.note(code, "The provided x-amz-content-sha256 header does not match what was received; nothing was stored.")
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
                Some(Err(error)) => Err(signature_fault(&this.context, &error)),
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

/// Records an error that `s3s` reports for the body.
///
/// Its error types are private, so the text decides (the version is pinned, and tests cover each case). Faults of our
/// own layers were recorded before and stay.
fn signature_fault(context: &RequestContext, error: &StdError) -> BodyError {
    let text = error.to_string();
    if text.contains("Sha256Mismatch") {
        payload_mismatch(context)
    } else if text.contains("SignatureMismatch") {
        let message =
            "The signature of a chunk or of the trailers does not match; nothing was stored.";
        context.note(S3ErrorCode::SignatureDoesNotMatch, message)
    } else if text.contains("FormatError") || text.contains("TooLarge") || text.contains("TooMany")
    {
        context.note(
            S3ErrorCode::InvalidRequest,
            format!("The aws-chunked body is malformed: {text}."),
        )
    } else {
        context.note(
            S3ErrorCode::IncompleteBody,
            format!("The body is not as announced ({text}); nothing was stored."),
        )
    }
}

#[cfg(test)]
mod tests;
