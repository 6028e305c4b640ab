//! Addresses of the parts of one upload, signed ahead for a process without credentials.

use std::fmt;

use http::Method;
use serde::{Deserialize, Serialize};
use url::Url;

use super::multipart::RULE;
use crate::limits::MAX_PARTS;
use crate::session::ChunkRule;

/// Signed addresses of one multipart upload, as `bywash presign --parts` prints them. Whoever has them can write the
/// object, so they are never displayed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartUrls {
    /// The object, for messages: `s3://bucket/key`.
    pub object: String,
    /// The upload's id at the store.
    #[serde(default)]
    pub upload_id: String,
    /// Addresses of `UploadPart` (PUT), of part 1 and the following ones. At most as many parts are sent.
    pub parts: Vec<String>,
    /// Address of `CompleteMultipartUpload` (POST).
    pub complete: String,
    /// Address of `AbortMultipartUpload` (DELETE).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort: Option<String>,
    /// Addresses of `ListParts` (GET), one for each [`Self::PAGE`] parts, with `part-number-marker`. Without them only the
    /// process that sent parts knows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<String>,
    /// Address of the object (HEAD), which proves a completion whose response was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// Time until which they are valid, as RFC 3339 has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// Minimum bytes of a part, except the last.
    #[serde(default = "min_part_bytes")]
    pub min_part_bytes: u64,
}

fn min_part_bytes() -> u64 {
    RULE.min
}

impl fmt::Debug for PartUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartUrls")
            .field("object", &self.object)
            .field("parts", &self.parts.len())
            .finish_non_exhaustive()
    }
}

impl PartUrls {
    /// Parts of a page of a list of parts.
    pub const PAGE: usize = 1000;

    /// Parses the addresses.
    ///
    /// # Errors
    /// A sentence that names the mistake, without an address.
    pub fn from_json(text: &str) -> Result<Self, String> {
        // Serde's message of a wrong type may quote a text, which may be an address.
        let urls: Self = serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            format!("they cannot be read at line {line}, column {column}: `parts` and `complete` are needed")
        })?;
        let count = urls.parts.len();
        if !(1..=usize::from(MAX_PARTS)).contains(&count) {
            return Err(format!(
                "they are of {count} parts, and an upload has 1 to {MAX_PARTS}"
            ));
        }
        let named = [
            ("complete", Some(&urls.complete)),
            ("abort", urls.abort.as_ref()),
            ("head", urls.head.as_ref()),
        ];
        let named = named
            .into_iter()
            .filter_map(|(name, url)| Some((name, url?)));
        let parts = urls.parts.iter().map(|url| ("parts", url));
        let lists = urls.list.iter().map(|url| ("list", url));
        for (name, url) in named.chain(parts).chain(lists) {
            if parsed(url).is_none() {
                return Err(format!("an address in `{name}` has neither http nor https"));
            }
        }
        Ok(urls)
    }

    /// The addresses as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts are JSON")
    }

    /// The rule for the parts that they allow.
    pub(crate) fn rule(&self) -> ChunkRule {
        ChunkRule {
            min: self.min_part_bytes.clamp(1, RULE.max),
            max_chunks: Some(self.parts.len() as u64),
            ..RULE
        }
    }

    /// Returns the address of a request; `Err` names the one that is missing.
    pub(crate) fn url(&self, method: &Method, query: &[(&str, &str)]) -> Result<Url, String> {
        let number = |name: &str| -> Option<usize> {
            let (_, value) = query.iter().find(|(known, _)| *known == name)?;
            value.parse().ok()
        };
        let url = match *method {
            Method::PUT => {
                let part = number("partNumber").unwrap_or_default();
                let url = part.checked_sub(1).and_then(|index| self.parts.get(index));
                return url.and_then(|url| parsed(url)).ok_or_else(|| {
                    let signed = self.parts.len();
                    format!("part {part} has no address, {signed} were signed; have more signed")
                });
            }
            Method::GET => {
                number("part-number-marker").and_then(|marker| self.list.get(marker / Self::PAGE))
            }
            Method::POST => Some(&self.complete),
            Method::DELETE => self.abort.as_ref(),
            _ => self.head.as_ref(),
        };
        url.and_then(|url| parsed(url))
            .ok_or_else(|| format!("no address was signed for {method}"))
    }

    /// Returns the marker of the page of parts after this one.
    pub(crate) fn marker_after(&self, marker: &str) -> Option<String> {
        let page = marker.parse::<usize>().ok()? / Self::PAGE + 1;
        (page < self.list.len()).then(|| (page * Self::PAGE).to_string())
    }
}

fn parsed(url: &str) -> Option<Url> {
    let url = Url::parse(url).ok()?;
    matches!(url.scheme(), "http" | "https").then_some(url)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn urls() -> PartUrls {
        let url = |name: &str| format!("https://h/k?{name}&X-Amz-Signature=SECRET");
        PartUrls {
            object: "s3://b/k".to_owned(),
            upload_id: "id".to_owned(),
            parts: (1..=2500).map(|part| url(&format!("p={part}"))).collect(),
            complete: url("complete"),
            abort: Some(url("abort")),
            list: (0..3).map(|page| url(&format!("l={page}"))).collect(),
            head: None,
            expires: None,
            min_part_bytes: 5 << 20,
        }
    }

    #[test]
    fn each_request_has_its_address() {
        let urls = PartUrls::from_json(&urls().to_json()).unwrap();
        let query = |method: Method, query: &[(&str, &str)]| {
            let url = urls.url(&method, query)?;
            Ok::<_, String>(url.query().unwrap().split('&').next().unwrap().to_owned())
        };
        assert_eq!(query(Method::PUT, &[("partNumber", "7")]).unwrap(), "p=7");
        let list = |marker| query(Method::GET, &[("part-number-marker", marker)]).unwrap();
        assert_eq!((list("0"), list("1000")), ("l=0".into(), "l=1".into()));
        assert_eq!(urls.marker_after("0").as_deref(), Some("1000"));
        assert_eq!(urls.marker_after("1000").as_deref(), Some("2000"));
        assert_eq!(urls.marker_after("2000"), None);
        assert_eq!(query(Method::POST, &[]).unwrap(), "complete");
        assert_eq!(query(Method::DELETE, &[]).unwrap(), "abort");
        let beyond = query(Method::PUT, &[("partNumber", "2501")]).unwrap_err();
        assert!(
            beyond.contains("part 2501 has no address, 2500 were signed"),
            "{beyond}"
        );
        let head = query(Method::HEAD, &[]).unwrap_err();
        assert!(head.contains("HEAD"), "{head}");
        assert_eq!(urls.rule().max_chunks, Some(2500));
    }

    #[test]
    fn wrong_addresses_are_refused_without_being_displayed() {
        let with = |change: fn(&mut PartUrls)| {
            let mut urls = urls();
            change(&mut urls);
            PartUrls::from_json(&urls.to_json()).unwrap_err()
        };
        for (error, says) in [
            (with(|urls| urls.parts.clear()), "0 parts"),
            (
                with(|urls| urls.parts = vec!["https://h/SECRET".to_owned(); 10_001]),
                "10001 parts",
            ),
            (with(|urls| urls.parts[3] = "SECRET".to_owned()), "`parts`"),
            (
                with(|urls| urls.complete = "s3://SECRET".to_owned()),
                "`complete`",
            ),
            (PartUrls::from_json("{}").unwrap_err(), "are needed"),
            (PartUrls::from_json("SECRET").unwrap_err(), "cannot be read"),
            (
                PartUrls::from_json(r#"{"object": "o", "parts": "SECRET"}"#).unwrap_err(),
                "line 1",
            ),
        ] {
            assert!(error.contains(says) && !error.contains("SECRET"), "{error}");
        }
        assert!(!format!("{:?}", urls()).contains("SECRET"));
    }
}
