//! Values of headers and parameters, read as S3 reads them: see `docs/headers.md`.

use http::HeaderMap;
use s3s::{S3ErrorCode, S3Result};

use crate::errors::{fault, invalid_argument};
use crate::limits::MAX_PART_NUMBER;
use crate::meta::{joined, text};
use crate::routes::Query;

/// Parses a whole number of decimal digits with an optional minus, of any length.
fn integer(value: &str) -> Option<i64> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let significant = digits.trim_start_matches('0');
    // Only digits, so a failure is an overflow.
    let number = match significant {
        "" => 0,
        digits => digits.parse().unwrap_or(i64::MAX),
    };
    Some(if value.starts_with('-') {
        -number
    } else {
        number
    })
}

/// Parses a count of 0 or more; `None` without a value.
pub(crate) fn count(name: &str, value: Option<&str>) -> S3Result<Option<i32>> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let Some(number) = integer(value).and_then(|number| i32::try_from(number).ok()) else {
        let message = format!("Provided {name} not an integer or within integer range");
        return Err(invalid_argument(name, value, message));
    };
    if number < 0 {
        let message = format!("Argument {name} must be an integer between 0 and 2147483647");
        return Err(invalid_argument(name, &number.to_string(), message));
    }
    Ok(Some(number))
}

/// Parses a number of bytes; `None` without a value.
pub(crate) fn size(headers: &HeaderMap, name: &str) -> S3Result<Option<u64>> {
    let Some(value) = joined(headers, name).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let number = integer(&value).and_then(|number| u64::try_from(number).ok());
    number.map(Some).ok_or_else(|| {
        let message = format!("{name} is a number of bytes, not {value}.");
        invalid_argument(name, &value, message)
    })
}

/// Parses the parameter `partNumber` of a request, if it has one.
pub(crate) fn part_number(query: &Query<'_>) -> S3Result<Option<u16>> {
    let Some(value) = query.first("partNumber") else {
        return Ok(None);
    };
    let number = integer(value).and_then(|number| u16::try_from(number).ok());
    let number = number.filter(|number| (1..=MAX_PART_NUMBER).contains(number));
    number.map(Some).ok_or_else(|| {
        let message =
            format!("Part number must be an integer between 1 and {MAX_PART_NUMBER}, inclusive.");
        invalid_argument("partNumber", value, message)
    })
}

/// Whether a parameter is `true`; any other value is not.
pub(crate) fn is_true(value: Option<&str>) -> bool {
    value.is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Whether a read asks for the object's checksum.
pub(crate) fn wants_checksum(headers: &HeaderMap) -> S3Result<bool> {
    match text(headers, "x-amz-checksum-mode") {
        None => Ok(false),
        Some(mode) if mode.eq_ignore_ascii_case("ENABLED") => Ok(true),
        Some(_) => {
            let message =
                "Value for x-amz-checksum-mode header is invalid: it is ENABLED, or absent.";
            Err(fault(S3ErrorCode::InvalidRequest, message))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_s3() {
        let parsed = |value: &str| {
            let parsed = count("max-keys", Some(value));
            parsed.map_err(|error| error.code().as_str().to_owned())
        };
        let zeros = "0".repeat(5000);
        for (value, expected) in [
            ("", None),
            ("0", Some(0)),
            ("-0", Some(0)),
            ("05", Some(5)),
            (&format!("{zeros}5"), Some(5)),
            (&zeros, Some(0)),
            ("00002147483647", Some(i32::MAX)),
        ] {
            assert_eq!(parsed(value), Ok(expected), "{value}");
        }
        for value in [
            "abc",
            " 5",
            "+5",
            "5 ",
            "1.0",
            "-",
            "--1",
            "-1",
            "-2147483649",
            "2147483648",
            &"9".repeat(5000),
        ] {
            assert_eq!(parsed(value), Err("InvalidArgument".to_owned()), "{value}");
        }
    }
}
