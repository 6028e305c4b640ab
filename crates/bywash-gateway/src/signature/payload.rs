//! The payload header, and the framing and length of a body by its headers.
//!
//! A body that names the coding `aws-chunked` is decoded or refused, never stored with its frames.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use s3s::{S3ErrorCode, S3Result};

use super::PAYLOAD;
use crate::errors::{fault, invalid_argument, not_implemented};
use crate::meta::{joined, text};
use crate::sigv4::UNSIGNED;

const TRAILER: &str = "x-amz-trailer";
const DECODED_LENGTH: &str = "x-amz-decoded-content-length";
/// The coding of a request's body in chunks, in Content-Encoding.
pub(crate) const AWS_CHUNKED: &str = "aws-chunked";

/// Value of the payload header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Payload<'a> {
    Unsigned,
    /// SHA-256 in hexadecimal digits.
    Digest(&'a str),
    /// Framed as `aws-chunked`.
    Chunks {
        signed: bool,
        trailer: bool,
    },
}

impl<'a> Payload<'a> {
    pub(crate) fn parse(value: &'a str) -> S3Result<Self> {
        let chunks = |signed, trailer| Ok(Self::Chunks { signed, trailer });
        match value {
            UNSIGNED => Ok(Self::Unsigned),
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => chunks(false, true),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => chunks(true, false),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => chunks(true, true),
            "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"
            | "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER" => Err(not_implemented(format!(
                "{value}: chunks that are signed with ECDSA are not supported here; sign with HMAC."
            ))),
            digest if digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                Ok(Self::Digest(digest))
            }
            other => {
                let message = format!(
                    "{PAYLOAD} must be {UNSIGNED}, STREAMING-UNSIGNED-PAYLOAD-TRAILER, STREAMING-AWS4-HMAC-SHA256-PAYLOAD, \
                     STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or the SHA-256 of the body in 64 hexadecimal digits."
                );
                Err(invalid_argument(PAYLOAD, other, message))
            }
        }
    }

    pub(super) fn is_signed_in_chunks(&self) -> bool {
        matches!(self, Self::Chunks { signed: true, .. })
    }
}

/// How the body of a request is framed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Framing {
    /// Whether it is in chunks, and whether their trailers are signed.
    pub(crate) chunks: Option<bool>,
    /// Bytes without the frames, if they are announced.
    pub(crate) length: Option<u64>,
    /// SHA-256 to compare it with, in hexadecimal digits.
    pub(crate) sha256: Option<String>,
}

impl Framing {
    /// Determines the framing of a body. `has_body`: whether there are bytes.
    pub(crate) fn of(headers: &HeaderMap, has_body: bool) -> S3Result<Self> {
        let codings = joined(headers, CONTENT_ENCODING.as_str()).unwrap_or_default();
        let named = codings.split(',').any(is_aws_chunked);
        let trailers = headers.contains_key(TRAILER);
        let decoded = decoded_length(headers)?;
        let sent = text(headers, CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok());
        let payload = text(headers, PAYLOAD).map(Payload::parse).transpose()?;
        let signed_trailer = match payload {
            Some(Payload::Chunks { trailer: true, .. }) if !trailers => {
                let message =
                    format!("The payload has trailers, but there is no header {TRAILER}.");
                return Err(fault(S3ErrorCode::InvalidRequest, message));
            }
            Some(Payload::Chunks { signed, trailer }) => signed && trailer,
            // Clients without keys announce trailers alone.
            None if named && trailers && decoded.is_some() => false,
            _ if named && has_body => {
                let message = format!(
                    "A body in the coding {AWS_CHUNKED} needs {PAYLOAD} of a STREAMING kind; send that, or the body without frames."
                );
                return Err(invalid_argument("Content-Encoding", &codings, message));
            }
            payload => {
                let sha256 = match payload {
                    Some(Payload::Digest(digest)) => Some(digest.to_owned()),
                    _ => None,
                };
                return Ok(Self {
                    chunks: None,
                    length: plain_length(sent, decoded)?,
                    sha256,
                });
            }
        };
        if decoded.is_none() && has_body {
            let message = format!("A body in chunks needs {DECODED_LENGTH}.");
            return Err(fault(S3ErrorCode::MissingContentLength, message));
        }
        Ok(Self {
            chunks: Some(signed_trailer),
            length: decoded,
            sha256: None,
        })
    }
}

/// Whether a coding of Content-Encoding is for bodies in chunks.
pub(crate) fn is_aws_chunked(coding: &str) -> bool {
    coding.trim().eq_ignore_ascii_case(AWS_CHUNKED)
}

fn decoded_length(headers: &HeaderMap) -> S3Result<Option<u64>> {
    let Some(value) = joined(headers, DECODED_LENGTH) else {
        return Ok(None);
    };
    let length = value.parse().ok();
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    length.filter(|_| is_number).map(Some).ok_or_else(|| {
        let message = format!("{DECODED_LENGTH} is a number of bytes, not {value}.");
        invalid_argument(DECODED_LENGTH, &value, message)
    })
}

/// Returns the length of a body without frames, which both headers state.
fn plain_length(sent: Option<u64>, decoded: Option<u64>) -> S3Result<Option<u64>> {
    match (sent, decoded) {
        (Some(sent), Some(decoded)) if sent != decoded => {
            let message = format!(
                "The body has no frames, so {DECODED_LENGTH} must be its {sent} bytes; leave it out."
            );
            Err(invalid_argument(
                DECODED_LENGTH,
                &decoded.to_string(),
                message,
            ))
        }
        (sent, decoded) => Ok(sent.or(decoded)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const STREAMING: [&str; 3] = [
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
    ];

    fn framing(headers: &[(&'static str, &str)], has_body: bool) -> Result<Framing, String> {
        let headers = headers
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        Framing::of(&headers, has_body).map_err(|error| error.code().as_str().to_owned())
    }

    /// Returns the result for each combination of a payload header, a coding, a decoded length and trailers.
    fn expected(
        payload: &str,
        coding: &str,
        decoded: &str,
        trailer: bool,
    ) -> Result<bool, &'static str> {
        let is_streaming = STREAMING.contains(&payload);
        let names = coding.contains("aws-chunked");
        match payload {
            _ if !["", "5", "7"].contains(&decoded) => Err("InvalidArgument"),
            "nonsense" => Err("InvalidArgument"),
            _ if payload.contains("ECDSA") => Err("NotImplemented"),
            _ if is_streaming && payload.ends_with("TRAILER") && !trailer => Err("InvalidRequest"),
            "" if names && trailer && !decoded.is_empty() => Ok(true),
            _ if !is_streaming && names => Err("InvalidArgument"),
            _ if is_streaming && decoded.is_empty() => Err("MissingContentLength"),
            _ if is_streaming => Ok(true),
            // The body has seven bytes.
            _ if decoded == "5" => Err("InvalidArgument"),
            _ => Ok(false),
        }
    }

    #[test]
    fn each_pair_of_payload_and_coding_is_decoded_or_refused() {
        let digest = "a".repeat(64);
        let payloads = STREAMING.into_iter().chain([
            "",
            UNSIGNED,
            &digest,
            "nonsense",
            "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
        ]);
        for payload in payloads {
            for coding in [
                "",
                "gzip",
                "aws-chunked",
                "gzip,aws-chunked",
                "AWS-CHUNKED , br",
            ] {
                for decoded in ["", "5", "7", "-5", "+5", "5a", "99999999999999999999"] {
                    for trailer in [false, true] {
                        let mut headers = vec![("content-length", "7")];
                        for (name, value) in [
                            ("x-amz-content-sha256", payload),
                            ("content-encoding", coding),
                            ("x-amz-decoded-content-length", decoded),
                        ] {
                            headers.extend((!value.is_empty()).then_some((name, value)));
                        }
                        headers
                            .extend(trailer.then_some(("x-amz-trailer", "x-amz-checksum-crc32")));
                        let found = framing(&headers, true).map(|found| found.chunks.is_some());
                        let coding = coding.to_ascii_lowercase();
                        let expected = expected(payload, &coding, decoded, trailer);
                        assert_eq!(found, expected.map_err(str::to_owned), "{headers:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn body_without_frames_has_the_length_of_either_header() {
        let decoded = [("x-amz-decoded-content-length", "5")];
        assert_eq!(framing(&decoded, true).unwrap().length, Some(5));
        // Without bytes there is nothing to decode.
        let coding = [("content-encoding", "aws-chunked")];
        assert_eq!(framing(&coding, false).unwrap(), Framing::default());
    }
}
