//! Recognition of signed URLs: which store signed them, for which request, and until when.

use std::fmt;

use chrono::{DateTime, NaiveDate, NaiveDateTime, TimeDelta, Utc};
use http::HeaderMap;
use object_store::path::Path;
use url::Url;

/// Request that a URL was signed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignedKind {
    /// One PUT of the whole object, at S3 or Google.
    Put,
    /// The start of one resumable upload, at Google.
    ResumableStart,
    /// Requests on one blob of Azure (a shared access signature): blocks, or all of it.
    Blob,
}

/// A URL that is signed for writing one object. Whoever has it can write, so its query is never displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedUrl {
    url: Url,
    kind: SignedKind,
    /// Headers that were signed with it and their values.
    headers: HeaderMap,
}

impl fmt::Debug for SignedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignedUrl({self}, {:?})", self.kind)
    }
}

/// Displays the URL without its query and user info.
impl fmt::Display for SignedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.url.clone();
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_query(None);
        f.write_str(url.as_str())
    }
}

impl SignedUrl {
    /// Recognises a signed URL; `None` if it has no signature of S3, Google or Azure.
    #[must_use]
    pub fn new(mut url: Url) -> Option<Self> {
        if !matches!(url.scheme(), "http" | "https") {
            return None;
        }
        url.set_fragment(None);
        let has = |name: &str| value(&url, name).is_some();
        let kind = if has("x-goog-signature") {
            let start = signed_headers(&url)
                .iter()
                .any(|name| name == "x-goog-resumable");
            if start {
                SignedKind::ResumableStart
            } else {
                SignedKind::Put
            }
        } else if has("x-amz-signature") || is_version_2(&url) {
            SignedKind::Put
        } else if has("sig") && has("sv") {
            SignedKind::Blob
        } else {
            return None;
        };
        Some(Self {
            url,
            kind,
            headers: HeaderMap::new(),
        })
    }

    /// Adds the values of headers that were signed with the URL, as `Content-Type`. They are sent as they are.
    #[must_use]
    pub fn with_headers(self, headers: HeaderMap) -> Self {
        Self { headers, ..self }
    }

    /// The request that it was signed for.
    #[must_use]
    pub fn kind(&self) -> SignedKind {
        self.kind
    }

    /// The object's path at the server, for messages.
    #[must_use]
    pub fn object(&self) -> Path {
        Path::from_url_path(self.url.path()).unwrap_or_else(|_| Path::from(self.url.path()))
    }

    /// The time until which it is valid, if it states one.
    #[must_use]
    pub fn expires(&self) -> Option<DateTime<Utc>> {
        let of = |name: &str| value(&self.url, name);
        for (date, seconds) in [
            ("x-amz-date", "x-amz-expires"),
            ("x-goog-date", "x-goog-expires"),
        ] {
            if let (Some(date), Some(seconds)) = (of(date), of(seconds)) {
                let date = NaiveDateTime::parse_from_str(&date, "%Y%m%dT%H%M%SZ").ok()?;
                let seconds = TimeDelta::try_seconds(seconds.parse().ok()?)?;
                return date.and_utc().checked_add_signed(seconds);
            }
        }
        if self.kind == SignedKind::Blob {
            let end = of("se")?;
            let day = || end.parse::<NaiveDate>().ok()?.and_hms_opt(0, 0, 0);
            let time = DateTime::parse_from_rfc3339(&end).ok();
            return time
                .map(|time| time.to_utc())
                .or_else(|| Some(day()?.and_utc()));
        }
        DateTime::from_timestamp(of("expires")?.parse().ok()?, 0)
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Whether Google signed it.
    pub(super) fn is_google(&self) -> bool {
        value(&self.url, "x-goog-signature").is_some()
            || value(&self.url, "googleaccessid").is_some()
    }

    /// Whether it has a signature of the old kind, which covers a body's type and MD5 even if neither is sent.
    pub(super) fn is_version_2(&self) -> bool {
        is_version_2(&self.url)
    }

    /// The lower-case names of the headers that were signed.
    pub(super) fn signed_headers(&self) -> Vec<String> {
        signed_headers(&self.url)
    }
}

fn is_version_2(url: &Url) -> bool {
    let has = |name: &str| value(url, name).is_some();
    has("signature") && (has("awsaccesskeyid") || has("googleaccessid"))
}

fn signed_headers(url: &Url) -> Vec<String> {
    let names = value(url, "x-amz-signedheaders").or_else(|| value(url, "x-goog-signedheaders"));
    let names = names.unwrap_or_default().to_lowercase();
    let names = names.split(';').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// Returns a value of the query, with its name in any case.
fn value(url: &Url, name: &str) -> Option<String> {
    let found = url
        .query_pairs()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))?;
    Some(found.1.into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const S3: &str = "https://b.s3.amazonaws.com/dir/a%20b?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=SECRET&X-Amz-Date=20260102T030405Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=SECRET";
    const START: &str = "https://storage.googleapis.com/b/k?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Date=20260102T030405Z&X-Goog-Expires=60&X-Goog-SignedHeaders=host%3Bx-goog-resumable&X-Goog-Signature=SECRET";
    const SAS: &str = "https://acct.blob.core.windows.net/c/k?sv=2023-11-03&se=2026-01-02T03%3A05%3A05Z&sr=b&sp=cw&sig=SECRET%2B";

    fn signed(text: &str) -> Option<SignedUrl> {
        SignedUrl::new(text.parse().unwrap())
    }

    #[test]
    fn signed_urls_of_each_store_are_recognised() {
        let put = START.replace("%3Bx-goog-resumable", "");
        let v2 = "https://h/b/k?AWSAccessKeyId=key&Signature=SECRET&Expires=1767323105";
        for (text, kind) in [
            (S3, SignedKind::Put),
            (&*S3.replace("X-Amz", "x-amz"), SignedKind::Put),
            (START, SignedKind::ResumableStart),
            (&*put, SignedKind::Put),
            (v2, SignedKind::Put),
            (SAS, SignedKind::Blob),
        ] {
            let url = signed(text).unwrap();
            assert_eq!(url.kind(), kind, "{text}");
            let expires = url.expires().unwrap().to_rfc3339();
            assert_eq!(expires, "2026-01-02T03:05:05+00:00", "{text}");
            assert!(!format!("{url} {url:?}").contains("SECRET"));
        }
        let day = SAS.replace("T03%3A05%3A05Z", "");
        let day = signed(&day).unwrap().expires().unwrap();
        assert_eq!(day.to_rfc3339(), "2026-01-02T00:00:00+00:00");
        assert_eq!(signed(S3).unwrap().object(), Path::from("dir/a b"));
        assert_eq!(
            signed(S3).unwrap().to_string(),
            "https://b.s3.amazonaws.com/dir/a%20b"
        );
        for other in [
            "https://h/k",
            "https://h/k?token=x",
            "https://h/k?sig=x",
            "s3://b/k?X-Amz-Signature=x",
        ] {
            assert_eq!(signed(other), None, "{other}");
        }
    }

    #[test]
    fn time_that_cannot_be_read_is_none() {
        for odd in [
            S3.replace("20260102T030405Z", "yesterday"),
            S3.replace("Expires=60", "Expires=99999999999999999999"),
            SAS.replace("2026-01-02T", "soon"),
        ] {
            assert_eq!(signed(&odd).unwrap().expires(), None, "{odd}");
        }
    }
}
