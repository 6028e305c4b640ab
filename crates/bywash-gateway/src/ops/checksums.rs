//! Checksums that a request names: the algorithm, and whether it covers the object or the checksums of its parts.
//!
//! Source: "Checking object integrity in Amazon S3", Amazon S3 user guide, the table of algorithms and types.

use http::HeaderMap;
use s3s::dto::{ChecksumAlgorithm, ChecksumType};
use s3s::{S3ErrorCode, S3Result};

use crate::digest::{Algorithm, ChecksumKind};
use crate::errors::fault;
use crate::meta::text;

const ALGORITHM: &str = "x-amz-checksum-algorithm";
const TYPE: &str = "x-amz-checksum-type";

pub(super) fn checksum_type(kind: ChecksumKind) -> ChecksumType {
    ChecksumType::from_static(kind.name())
}

pub(super) fn checksum_algorithm(algorithm: Algorithm) -> ChecksumAlgorithm {
    ChecksumAlgorithm::from_static(algorithm.name())
}

fn invalid<T>(message: impl Into<String>) -> S3Result<T> {
    Err(fault(S3ErrorCode::InvalidRequest, message))
}

/// Returns the checksum algorithm that a request names.
pub(super) fn requested_algorithm(headers: &HeaderMap) -> S3Result<Option<Algorithm>> {
    let Some(named) = text(headers, ALGORITHM) else {
        return Ok(None);
    };
    match Algorithm::by_name(named) {
        Some(algorithm) => Ok(Some(algorithm)),
        None => invalid(
            "Checksum algorithm provided is unsupported. Please try again with any of the valid types: [CRC32, CRC32C, \
             CRC64NVME, SHA1, SHA256]",
        ),
    }
}

/// Returns the type of a checksum that a request names.
fn requested_kind(headers: &HeaderMap) -> S3Result<Option<ChecksumKind>> {
    let Some(named) = text(headers, TYPE) else {
        return Ok(None);
    };
    match ChecksumKind::by_name(named) {
        Some(kind) => Ok(Some(kind)),
        None => invalid(format!(
            "Value for {TYPE} header is invalid: it is FULL_OBJECT or COMPOSITE."
        )),
    }
}

/// Returns the type, by default the algorithm's. Rejects a pair that S3 does not have.
fn kind_of(algorithm: Algorithm, named: Option<ChecksumKind>) -> S3Result<ChecksumKind> {
    match named {
        Some(kind) if !algorithm.supports(kind) => invalid(format!(
            "The {} checksum type cannot be used with the {} checksum algorithm.",
            kind.name(),
            algorithm.name().to_ascii_lowercase()
        )),
        named => Ok(named.unwrap_or_else(|| algorithm.default_kind())),
    }
}

/// Returns the checksum of an upload that begins.
pub(super) fn of_upload(headers: &HeaderMap) -> S3Result<Option<(Algorithm, ChecksumKind)>> {
    match (requested_algorithm(headers)?, requested_kind(headers)?) {
        (None, None) => Ok(None),
        (None, Some(_)) => invalid(format!(
            "The {TYPE} header can only be used with the {ALGORITHM} header."
        )),
        (Some(algorithm), kind) => Ok(Some((algorithm, kind_of(algorithm, kind)?))),
    }
}

/// Returns the type of the checksum of an upload that is completed. `begun`: as it was begun. `of_parts`: the algorithm of its
/// parts.
pub(super) fn of_completion(
    headers: &HeaderMap,
    begun: Option<ChecksumKind>,
    of_parts: Option<Algorithm>,
) -> S3Result<ChecksumKind> {
    match (requested_kind(headers)?, begun, of_parts) {
        (Some(named), Some(begun), _) if named != begun => invalid(format!(
            "The upload was created using the {} checksum mode. The complete request must use the same checksum mode.",
            begun.name()
        )),
        (_, Some(begun), _) => Ok(begun),
        (named, None, Some(algorithm)) => kind_of(algorithm, named),
        // No checksum is computed.
        (named, None, None) => Ok(named.unwrap_or(ChecksumKind::Composite)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let named = pairs.iter().filter(|(_, value)| !value.is_empty());
        named
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    /// Type of each algorithm and named type, empty if S3 has no such pair.
    const TABLE: [(&str, [&str; 3]); 5] = [
        ("CRC32", ["COMPOSITE", "FULL_OBJECT", "COMPOSITE"]),
        ("CRC32C", ["COMPOSITE", "FULL_OBJECT", "COMPOSITE"]),
        ("CRC64NVME", ["FULL_OBJECT", "FULL_OBJECT", ""]),
        ("SHA1", ["COMPOSITE", "", "COMPOSITE"]),
        ("SHA256", ["COMPOSITE", "", "COMPOSITE"]),
    ];
    const NAMED: [&str; 3] = ["", "FULL_OBJECT", "COMPOSITE"];

    #[test]
    fn each_pair_of_algorithm_and_type_is_that_of_s3() {
        for (algorithm, kinds) in TABLE {
            for (named, expected) in NAMED.into_iter().zip(kinds) {
                for [algorithm, named] in [
                    [algorithm.to_owned(), named.to_owned()],
                    [algorithm.to_ascii_lowercase(), named.to_ascii_lowercase()],
                ] {
                    let found = of_upload(&headers(&[(ALGORITHM, &algorithm), (TYPE, &named)]));
                    match expected {
                        "" => assert_eq!(*found.unwrap_err().code(), S3ErrorCode::InvalidRequest),
                        expected => assert_eq!(found.unwrap().unwrap().1.name(), expected),
                    }
                    // Of parts whose upload named none.
                    let of_parts = Algorithm::by_name(&algorithm);
                    let found = of_completion(&headers(&[(TYPE, &named)]), None, of_parts);
                    assert_eq!(found.is_ok(), !expected.is_empty(), "{algorithm} {named}");
                }
            }
        }
        for wrong in [
            [(ALGORITHM, ""), (TYPE, "COMPOSITE")],
            [(ALGORITHM, "MD5"), (TYPE, "")],
            [(ALGORITHM, "CRC32"), (TYPE, "BOTH")],
        ] {
            assert!(of_upload(&headers(&wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn completion_of_another_type_names_that_of_the_upload() {
        for begun in [ChecksumKind::FullObject, ChecksumKind::Composite] {
            for named in NAMED {
                let found = of_completion(&headers(&[(TYPE, named)]), Some(begun), None);
                if named.is_empty() || named == begun.name() {
                    assert_eq!(found.unwrap(), begun);
                } else {
                    let error = found.unwrap_err();
                    assert!(error.message().unwrap().contains(begun.name()));
                }
            }
        }
    }
}
