//! Entry points of the fuzzers in `fuzz/`, one for each parser of bytes from a disk or a network. Each accepts any
//! bytes and panics if the result breaks a promise. The gate also runs them, with random bytes and with mutated valid
//! ones.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::OriginUrl;
use crate::digest::stated_digest;
use crate::http_client::Response;
use crate::response::fuzz::list_page;
use crate::{azure, folder, gcs, http as web, s3, signed};

/// Parses tokens of sessions at signed addresses, signed addresses, and addresses of parts.
pub fn signed(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        signed::fuzz::signed(text);
    }
}

/// Parses responses of stores. The first byte selects the parser and the next two the status; headers follow, a line
/// each, and after an empty line the body.
pub fn response(bytes: &[u8]) {
    let Some(([choice, high, low], rest)) = bytes.split_first_chunk() else {
        return;
    };
    let status = 100 + u16::from_be_bytes([*high, *low]) % 900;
    let status = StatusCode::from_u16(status).expect("three digits");
    let (headers, body) = headers(rest);
    match choice % 8 {
        0 => s3::fuzz::parts(body),
        1 => s3::fuzz::uploads(body),
        2 => azure::fuzz::blocks(body),
        3 => web::fuzz::head(status, &headers),
        6 => list_page(body),
        7 => {
            let stated = stated_digest("b.s3.us-west-2.amazonaws.com", status, &headers);
            assert!(stated.is_none() || matches!(status.as_u16(), 200 | 206));
        }
        choice => {
            let response = Response {
                status,
                headers,
                body: Bytes::copy_from_slice(body),
            };
            match choice {
                4 => s3::fuzz::completion(&response),
                _ => gcs::fuzz::response(&response),
            }
        }
    }
}

/// Splits `name:value` lines, up to an empty one, from the bytes that follow.
fn headers(mut bytes: &[u8]) -> (HeaderMap, &[u8]) {
    let mut headers = HeaderMap::new();
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
        bytes = rest;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':').unwrap_or(0));
        let value = value.get(1..).unwrap_or_default();
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            headers.append(name, value);
        }
    }
    (headers, bytes)
}

/// Parses names: keys in a folder, Azure upload ids, origin addresses. A displayed address must parse to the same
/// one, unless it hides secrets; a web folder's may lose its trailing slash.
pub fn names(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    folder::fuzz::names(text);
    azure::fuzz::id(text);
    if let Ok(url) = text.parse::<OriginUrl>()
        && !url.has_secrets()
    {
        let shown = url.to_string();
        let again: OriginUrl = shown.parse().expect("an address as it is shown");
        match url {
            OriginUrl::Http(_) => assert_eq!(again.to_string(), shown),
            _ => assert_eq!(again, url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_addresses() {
        bywash_support::fuzz_corpus::run_seeds("signed", signed);
    }

    #[test]
    fn responses() {
        bywash_support::fuzz_corpus::run_seeds("response", response);
    }

    #[test]
    fn names_of_things() {
        bywash_support::fuzz_corpus::run_seeds("names", names);
    }
}
