//! A signer independent of the code under test: SigV4 headers, chunks, trailers and presigned
//! URLs, and SigV2 presigned URLs. Source: "Authenticating requests", Amazon S3 API reference.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::Utc;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Access key of the servers that tests start.
pub const KEY: &str = "the-access-key";
/// Secret key of [`KEY`].
pub const SECRET: &str = "the-secret-key";

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hmac(key: &[u8], message: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(message.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Credentials, date and scope of signatures.
pub struct Signer {
    pub access_key: String,
    pub secret_key: String,
    pub date: String,
    /// Host header to sign; none if empty.
    pub host: String,
    pub region: String,
    pub service: String,
}

impl Default for Signer {
    fn default() -> Self {
        let date = Utc::now().format("%Y%m%dT%H%M%SZ").to_string();
        Self {
            access_key: KEY.to_owned(),
            secret_key: SECRET.to_owned(),
            date,
            host: "127.0.0.1".to_owned(),
            region: "us-east-1".to_owned(),
            service: "s3".to_owned(),
        }
    }
}

impl Signer {
    pub fn scope(&self) -> String {
        format!(
            "{}/{}/{}/aws4_request",
            &self.date[..8],
            self.region,
            self.service
        )
    }

    pub fn sign(&self, text: &str) -> String {
        let mut key = format!("AWS4{}", self.secret_key).into_bytes();
        for part in [&self.date[..8], &self.region, &self.service, "aws4_request"] {
            key = hmac(&key, part);
        }
        hex(&hmac(&key, text))
    }

    /// Returns the signature of a canonical request.
    pub fn sign_request(&self, canonical: &str) -> String {
        let digest = sha256_hex(canonical.as_bytes());
        self.sign(&format!(
            "AWS4-HMAC-SHA256\n{}\n{}\n{digest}",
            self.date,
            self.scope()
        ))
    }

    /// Returns the headers of a signed request, and its signature. `query` is canonical: sorted, with `=`.
    pub fn headers(
        &self,
        method: &str,
        path: &str,
        query: &str,
        payload: &str,
        extra: &[(&str, &str)],
    ) -> (Vec<(String, String)>, String) {
        let mut signed: Vec<(String, String)> = extra
            .iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), (*value).to_owned()))
            .collect();
        if !self.host.is_empty() {
            signed.push(("host".to_owned(), self.host.clone()));
        }
        signed.push(("x-amz-content-sha256".to_owned(), payload.to_owned()));
        signed.push(("x-amz-date".to_owned(), self.date.clone()));
        signed.sort();
        let names = signed
            .iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>()
            .join(";");
        let lines: String = signed
            .iter()
            .map(|(name, value)| format!("{name}:{value}\n"))
            .collect();
        let signature = self.sign_request(&format!(
            "{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}"
        ));
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={names}, Signature={signature}",
            self.access_key,
            self.scope()
        );
        signed.retain(|(name, _)| name != "host");
        signed.push(("authorization".to_owned(), authorization));
        (signed, signature)
    }

    /// Returns the target of a presigned request.
    pub fn presign(&self, method: &str, path: &str, expires_s: impl std::fmt::Display) -> String {
        let credential = format!("{}/{}", self.access_key, self.scope()).replace('/', "%2F");
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={}&X-Amz-Expires={expires_s}\
             &X-Amz-SignedHeaders={}",
            self.date,
            if self.host.is_empty() {
                "range"
            } else {
                "host"
            }
        );
        let (name, line) = match &*self.host {
            "" => ("range", String::new()),
            host => ("host", format!("host:{host}\n")),
        };
        let canonical = format!("{method}\n{path}\n{query}\n{line}\n{name}\nUNSIGNED-PAYLOAD");
        format!(
            "{path}?{query}&X-Amz-Signature={}",
            self.sign_request(&canonical)
        )
    }

    /// Signs one chunk. Returns it with its signature, which the next chunk needs.
    pub fn chunk(&self, previous: &str, data: &[u8]) -> (Vec<u8>, String) {
        let text = format!(
            "AWS4-HMAC-SHA256-PAYLOAD\n{}\n{}\n{previous}\n{}\n{}",
            self.date,
            self.scope(),
            sha256_hex(b""),
            sha256_hex(data)
        );
        let signature = self.sign(&text);
        let mut chunk = format!("{:x};chunk-signature={signature}\r\n", data.len()).into_bytes();
        chunk.extend_from_slice(data);
        if !data.is_empty() {
            chunk.extend_from_slice(b"\r\n");
        }
        (chunk, signature)
    }

    /// Returns the signature of trailers, each `name:value\n`.
    pub fn trailers(&self, previous: &str, trailers: &str) -> String {
        let digest = sha256_hex(trailers.as_bytes());
        self.sign(&format!(
            "AWS4-HMAC-SHA256-TRAILER\n{}\n{}\n{previous}\n{digest}",
            self.date,
            self.scope()
        ))
    }
}

fn sign_v2(secret_key: &str, text: &str) -> String {
    let mut mac = Hmac::<sha1::Sha1>::new_from_slice(secret_key.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    BASE64_STANDARD.encode(mac.finalize().into_bytes())
}

/// Returns a SigV2 presigned target, the default of boto3.
pub fn presign_v2(secret_key: &str, method: &str, path: &str) -> String {
    presign_v2_until(secret_key, method, path, 600)
}

/// Returns a SigV2 presigned target that expires after `seconds`.
pub fn presign_v2_until(secret_key: &str, method: &str, path: &str, seconds: i64) -> String {
    let expires = Utc::now().timestamp() + seconds;
    let signature = sign_v2(secret_key, &format!("{method}\n\n\n{expires}\n{path}"));
    let signature = signature
        .replace('+', "%2B")
        .replace('/', "%2F")
        .replace('=', "%3D");
    format!("{path}?AWSAccessKeyId={KEY}&Signature={signature}&Expires={expires}")
}

/// Returns the Authorization header of a SigV2 request without a body.
pub fn authorize_v2(secret_key: &str, method: &str, path: &str, date: &str) -> String {
    let signature = sign_v2(secret_key, &format!("{method}\n\n\n{date}\n{path}"));
    format!("AWS {KEY}:{signature}")
}

/// Borrows headers in the form that [`crate::http`] takes.
pub fn borrow(headers: &[(String, String)]) -> Vec<(&str, &str)> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

/// Formats seconds since 1970 as a SigV4 date.
pub fn date(seconds: i64) -> String {
    let date = chrono::DateTime::from_timestamp(seconds, 0).unwrap();
    date.format("%Y%m%dT%H%M%SZ").to_string()
}
