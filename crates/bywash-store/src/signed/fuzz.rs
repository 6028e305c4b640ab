//! Requirements on parsed signed addresses, for fuzzers.

use http::Method;
use url::Url;

use super::{PartUrls, SignedUrl, split};
use crate::session::SessionToken;

/// Parses a session's token, the address it begins with, and addresses of parts.
pub(crate) fn signed(text: &str) {
    if let Some((kind, detail, inner)) = split(&SessionToken(text.to_owned())) {
        let detail_of = text.strip_prefix(kind).expect("it begins with its kind");
        assert!(
            detail_of
                .trim_start_matches(' ')
                .starts_with(detail.trim_start_matches(' '))
        );
        assert!(text.ends_with(inner) && !detail.contains('\n'));
        address(detail);
        parts(detail);
    }
    address(text);
    parts(text);
}

/// Parses a signed address. It is displayed as an address without a query.
fn address(text: &str) {
    let Some(url) = Url::parse(text).ok().and_then(SignedUrl::new) else {
        return;
    };
    let shown: Url = url.to_string().parse().expect("an address as it is shown");
    assert_eq!((shown.query(), shown.password()), (None, None), "{shown}");
    assert!(shown.username().is_empty(), "{shown}");
    // None panics.
    let _ = (url.object(), url.expires(), url.kind());
    assert!(
        SignedUrl::new(url.url().clone()).is_some(),
        "it stays signed"
    );
}

/// Parses addresses of parts. A parsed value is written and read again alike, and each of its parts has an address.
fn parts(text: &str) {
    let urls = match PartUrls::from_json(text) {
        Ok(urls) => urls,
        Err(mistake) => {
            assert!(mistake.len() < 150, "it quotes the text: {mistake}");
            return;
        }
    };
    let again = PartUrls::from_json(&urls.to_json()).expect("addresses just written");
    assert!(again == urls);
    let count = urls.parts.len();
    for part in 0..=count + 1 {
        let query = part.to_string();
        let url = urls.url(&Method::PUT, &[("partNumber", &query)]);
        assert_eq!(url.is_ok(), (1..=count).contains(&part), "part {part}");
    }
    let rule = urls.rule();
    assert!(1 <= rule.min && rule.min <= rule.max && rule.max_chunks == Some(count as u64));
    let mut marker = Some("0".to_owned());
    let mut pages = 0;
    while let Some(from) = marker {
        let url = urls.url(&Method::GET, &[("part-number-marker", &from)]);
        assert_eq!(url.is_ok(), !urls.list.is_empty());
        pages += 1;
        marker = urls.marker_after(&from);
    }
    assert_eq!(pages, urls.list.len().max(1));
}
