//! One line of the Influx line protocol.
//!
//! ```text
//! measurement[,tag=value...] field=value[,field=value...] [timestamp]
//! ```
//!
//! Format: <https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/>. In names a backslash escapes a comma, a
//! space and, but for measurements, an equals sign; any other backslash stands for itself. In string values it escapes a quote
//! and itself.

use crate::limits::{MAX_FIELD_BYTES, MAX_FIELDS, MAX_SOURCE_BYTES, MAX_TAGS};
use std::borrow::Cow;

/// Measurement of the server's own history; requests cannot write it.
pub(crate) const OWN_MEASUREMENT: &str = "bywash";

/// A parsed line.
#[derive(Debug, PartialEq)]
pub(crate) struct Line<'a> {
    /// Measurement and tags in canonical form, see [`source`].
    pub(crate) source: String,
    /// Fields that are numbers, in the order written; empty if all fields are strings.
    pub(crate) fields: Vec<(Cow<'a, str>, f64)>,
    /// Number of fields that are strings, which are left out.
    pub(crate) strings: usize,
    /// Time in the unit of the request; `None`: now.
    pub(crate) timestamp: Option<i64>,
}

/// Reason for which a line is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: Cow<'static, str>,
    /// A string does not end in the line; it may end in a later one.
    pub(super) open_string: bool,
}

impl<T: Into<Cow<'static, str>>> From<T> for Refusal {
    fn from(reason: T) -> Self {
        Self {
            reason: reason.into(),
            open_string: false,
        }
    }
}

/// Parses a line that is neither empty nor a comment.
pub(crate) fn parse(line: &str) -> Result<Line<'_>, Refusal> {
    let (measurement, rest) = token(line, b", ");
    if measurement.is_empty() {
        return Err("the measurement is missing".into());
    }
    let measurement = unescape(measurement, b", ");
    if measurement == OWN_MEASUREMENT {
        return Err(
            "the measurement bywash is the server's own history; choose another name".into(),
        );
    }
    let (tags, rest) = tags(rest)?;
    let source = source(&measurement, tags)?;
    let rest = rest.trim_start_matches(' ');
    if rest.is_empty() {
        return Err("there is no field".into());
    }
    let (fields, strings, rest) = fields(rest)?;
    let rest = rest.trim_matches(' ');
    let timestamp = match rest {
        "" => None,
        digits => Some(digits.parse().map_err(|_| {
            Refusal::from(format!(
                "the timestamp {} is not a whole number",
                shown(digits)
            ))
        })?),
    };
    Ok(Line {
        source,
        fields,
        strings,
        timestamp,
    })
}

/// Returns the name of a source: the measurement, then its tags by their keys, escaped as in a line.
fn source(
    measurement: &str,
    mut tags: Vec<(Cow<'_, str>, Cow<'_, str>)>,
) -> Result<String, Refusal> {
    tags.sort();
    if let Some(twice) = tags.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(format!("the tag {} is given twice", shown(&twice[0].0)).into());
    }
    let mut name = String::with_capacity(measurement.len() + 32 * tags.len());
    escape_into(&mut name, measurement, b", ");
    for (key, value) in &tags {
        name.push(',');
        escape_into(&mut name, key, NAME_ENDS);
        name.push('=');
        escape_into(&mut name, value, NAME_ENDS);
    }
    if name.len() > MAX_SOURCE_BYTES {
        return Err(format!(
            "measurement and tags take {} bytes; at most {MAX_SOURCE_BYTES} may be",
            name.len()
        )
        .into());
    }
    Ok(name)
}

/// Ends of a tag's key or value, or of a field's name.
const NAME_ENDS: &[u8] = b",= ";

type Tags<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// Parses the tags at the start of `rest`; returns the remainder as well.
fn tags(mut rest: &str) -> Result<(Tags<'_>, &str), Refusal> {
    let mut tags = Vec::new();
    while let Some(tag) = rest.strip_prefix(',') {
        let (key, after) = token(tag, NAME_ENDS);
        let Some(after) = after.strip_prefix('=') else {
            return Err(format!("the tag {} has no value", shown(key)).into());
        };
        let (value, after) = token(after, NAME_ENDS);
        if key.is_empty() || value.is_empty() {
            return Err("a tag has an empty key or value".into());
        }
        if after.starts_with('=') {
            return Err(format!(
                "the value of the tag {} has an equals sign; write \\= for it",
                shown(key)
            )
            .into());
        }
        if tags.len() == MAX_TAGS {
            return Err(format!("there are more than {MAX_TAGS} tags").into());
        }
        tags.push((unescape(key, NAME_ENDS), unescape(value, NAME_ENDS)));
        rest = after;
    }
    Ok((tags, rest))
}

type Fields<'a> = Vec<(Cow<'a, str>, f64)>;

/// Parses the fields at the start of `rest`; returns the number of strings and the remainder as well.
fn fields(mut rest: &str) -> Result<(Fields<'_>, usize, &str), Refusal> {
    let (mut fields, mut strings) = (Vec::new(), 0);
    loop {
        let (name, after) = token(rest, NAME_ENDS);
        if name.is_empty() {
            return Err("a field has no name".into());
        }
        if name.len() > MAX_FIELD_BYTES {
            return Err(format!(
                "a field's name takes {} bytes; at most {MAX_FIELD_BYTES} may be",
                name.len()
            )
            .into());
        }
        let Some(after) = after.strip_prefix('=') else {
            return Err(format!("the field {} has no value", shown(name)).into());
        };
        if fields.len() + strings == MAX_FIELDS {
            return Err(format!("there are more than {MAX_FIELDS} fields").into());
        }
        let after = if let Some(text) = after.strip_prefix('"') {
            strings += 1;
            let end = string_end(text).ok_or_else(|| Refusal {
                reason: format!("the string of the field {} has no end", shown(name)).into(),
                open_string: true,
            })?;
            &text[end + 1..]
        } else {
            let (value, after) = after.split_at(after.find([',', ' ']).unwrap_or(after.len()));
            let number = number(value).ok_or_else(|| {
                Refusal::from(format!(
                    "{} is no value for the field {}",
                    shown(value),
                    shown(name)
                ))
            })?;
            fields.push((unescape(name, NAME_ENDS), number));
            after
        };
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None if after.is_empty() || after.starts_with(' ') => {
                return Ok((fields, strings, after));
            }
            None => {
                return Err(
                    format!("the field {} is followed by {}", shown(name), shown(after)).into(),
                );
            }
        }
    }
}

/// The end of the string that starts here: its first quote that is not escaped.
fn string_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        match bytes.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(at),
            _ => at += 1,
        }
    }
}

/// Parses a float (`1`, `1.5e3`), an integer (`1i`, `1u`), or a boolean (`t`, `true`, ...: 1 or 0). Integers beyond 2^53 become the nearest
/// float.
fn number(text: &str) -> Option<f64> {
    match text {
        "t" | "T" | "true" | "True" | "TRUE" => return Some(1.0),
        "f" | "F" | "false" | "False" | "FALSE" => return Some(0.0),
        _ => {}
    }
    if let Some(digits) = text.strip_suffix('i') {
        return digits.parse::<i64>().ok().map(|value| value as f64);
    }
    if let Some(digits) = text.strip_suffix('u') {
        return digits.parse::<u64>().ok().map(|value| value as f64);
    }
    // Rust's parser also accepts `nan` and `inf`, which the protocol lacks.
    let is_numeric = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
    let value: f64 = text.bytes().all(is_numeric).then(|| text.parse().ok())??;
    value.is_finite().then_some(value)
}

/// Splits at the first unescaped one of `ends`.
fn token<'a>(text: &'a str, ends: &[u8]) -> (&'a str, &'a str) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() && !ends.contains(&bytes[at]) {
        let escapes =
            bytes[at] == b'\\' && bytes.get(at + 1).is_some_and(|next| ends.contains(next));
        at += 1 + usize::from(escapes);
    }
    text.split_at(at)
}

fn unescape<'a>(text: &'a str, ends: &[u8]) -> Cow<'a, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let escapes = |next: &char| u8::try_from(*next).is_ok_and(|next| ends.contains(&next));
        match characters.next_if(|next| character == '\\' && escapes(next)) {
            Some(escaped) => plain.push(escaped),
            None => plain.push(character),
        }
    }
    Cow::Owned(plain)
}

fn escape_into(name: &mut String, text: &str, ends: &[u8]) {
    for character in text.chars() {
        if u8::try_from(character).is_ok_and(|byte| ends.contains(&byte)) {
            name.push('\\');
        }
        name.push(character);
    }
}

/// The beginning of a line for a message, on one line.
fn shown(text: &str) -> String {
    let mut beginning: String = text.chars().take(40).collect();
    if beginning.len() < text.len() {
        beginning.push_str("...");
    }
    format!("{beginning:?}")
}

#[cfg(test)]
mod tests;
