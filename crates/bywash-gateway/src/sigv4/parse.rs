//! Fields of a signature: the Authorization header, the credential, the names of signed headers, the date.

use std::borrow::Cow;
use std::fmt;

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};

use super::Algorithm;

/// `IDENTITY/DAY/LOCATION` of a credential. The algorithm implies the service and the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CredentialScope<'a> {
    pub(crate) algorithm: Algorithm,
    /// An access key, or an email address.
    pub(crate) identity: &'a str,
    pub(crate) day: &'a str,
    /// A region, of any name.
    pub(crate) location: &'a str,
}

/// A credential that is not one of its algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScopeError {
    Malformed,
    OtherService,
}

impl<'a> CredentialScope<'a> {
    /// Parses `IDENTITY/DAY/LOCATION/SERVICE/VERSION`. An identity may have slashes.
    pub(crate) fn parse(algorithm: Algorithm, credential: &'a str) -> Result<Self, ScopeError> {
        let mut fields = credential.rsplitn(5, '/');
        let mut next = || fields.next().ok_or(ScopeError::Malformed);
        let [version, service, location, day, identity] =
            [next()?, next()?, next()?, next()?, next()?];
        let [known_service, known_version] = algorithm.service();
        let is_of_version = version == known_version;
        if is_of_version && service != known_service {
            return Err(ScopeError::OtherService);
        }
        let scope = Self {
            algorithm,
            identity,
            day,
            location,
        };
        let is_good = is_of_version && day.len() == "YYYYMMDD".len();
        is_good.then_some(scope).ok_or(ScopeError::Malformed)
    }
}

/// The scope as it is signed.
impl fmt::Display for CredentialScope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [service, version] = self.algorithm.service();
        write!(f, "{}/{}/{service}/{version}", self.day, self.location)
    }
}

/// A field of the Authorization header, after the algorithm: the fields are in any order, divided by commas.
pub(crate) fn field<'a>(fields: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = fields.split(',').map(str::trim);
    fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// Whether a header is one of the signed ones. `signed`: their names in any case, divided by semicolons.
pub(crate) fn is_covered(signed: &str, name: &str) -> bool {
    let mut names = signed.split(';');
    names.any(|signed| signed.eq_ignore_ascii_case(name))
}

/// Names of signed headers in lower case and in order.
pub(crate) fn in_order(signed: &str) -> Cow<'_, str> {
    let is_lower = !signed.bytes().any(|byte| byte.is_ascii_uppercase());
    if is_lower && signed.split(';').is_sorted() {
        return Cow::Borrowed(signed);
    }
    let signed = signed.to_ascii_lowercase();
    let mut names: Vec<_> = signed.split(';').collect();
    names.sort_unstable();
    Cow::Owned(names.join(";"))
}

/// Form of the dates of signatures.
pub(crate) const DATE_FORMAT: &str = "%Y%m%dT%H%M%SZ";

/// The time of a date in [`DATE_FORMAT`]. As for `chrono`, a zero at the start of a number may be missing.
pub(crate) fn time_of(date: &str) -> Option<DateTime<Utc>> {
    let lenient = || {
        let date = NaiveDateTime::parse_from_str(date, DATE_FORMAT).ok()?;
        Some(date.and_utc())
    };
    plain_time(date).or_else(lenient)
}

/// The time of `YYYYMMDDTHHMMSSZ`, of digits alone: the form of all clients, in a tenth of the time.
pub(crate) fn plain_time(date: &str) -> Option<DateTime<Utc>> {
    let bytes: &[u8; 16] = date.as_bytes().try_into().ok()?;
    if bytes[8] != b'T' || bytes[15] != b'Z' {
        return None;
    }
    let number = |range: std::ops::Range<usize>| {
        bytes[range].iter().try_fold(0_u32, |number, byte| {
            let digit = byte.is_ascii_digit().then(|| u32::from(byte - b'0'))?;
            Some(10 * number + digit)
        })
    };
    let year = i32::try_from(number(0..4)?).ok()?;
    let day = NaiveDate::from_ymd_opt(year, number(4..6)?, number(6..8)?)?;
    let time = day.and_hms_opt(number(9..11)?, number(11..13)?, number(13..15)?)?;
    Some(time.and_utc())
}

/// Decodes hexadecimal digits of any case to `bytes`. False if they are not exactly as many.
pub(crate) fn decode_hex(digits: &str, bytes: &mut [u8]) -> bool {
    let pairs = digits.as_bytes().chunks_exact(2);
    let digit = |byte: u8| char::from(byte).to_digit(16);
    digits.len() == 2 * bytes.len()
        && pairs.zip(bytes).all(|(pair, byte)| {
            let value = digit(pair[0]).zip(digit(pair[1]));
            // Two digits are a byte.
            value.is_some_and(|(high, low)| {
                *byte = (high << 4 | low) as u8;
                true
            })
        })
}

/// Decodes hexadecimal digits of any case.
pub(crate) fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let mut bytes = vec![0; digits.len() / 2];
    decode_hex(digits, &mut bytes).then_some(bytes)
}

/// Parameters of presigned requests to S3, of version 4 and 2.
const SIGNATURE_PARAMETERS: [&str; 10] = [
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signedheaders",
    "x-amz-signature",
    "x-amz-security-token",
    "awsaccesskeyid",
    "signature",
    "expires",
];

/// Whether a parameter belongs to a signature, by its name in any case.
pub(crate) fn is_signature_parameter(name: &str) -> bool {
    let mut names = SIGNATURE_PARAMETERS.iter();
    names.any(|known| name.eq_ignore_ascii_case(known))
}
