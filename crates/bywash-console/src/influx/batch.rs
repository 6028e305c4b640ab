//! Lines of a request: each is parsed, or refused by its number.

use crate::limits::{MAX_LINE_BYTES, MAX_REFUSALS_NAMED, MAX_STRING_LINES};
use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::line::{self, Line, Refusal};

/// Unit of a request's timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Precision(i64);

impl Precision {
    /// Parses the names of both versions of the protocol; the default is nanoseconds.
    pub(super) fn named(name: Option<&str>) -> Option<Self> {
        Some(Self(match name.unwrap_or("ns") {
            "n" | "ns" | "" => 1,
            "u" | "us" | "µ" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60 * 1_000_000_000,
            "h" => 3600 * 1_000_000_000,
            _ => return None,
        }))
    }
}

/// A refused line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedLine {
    /// Its number, from 1.
    pub line: usize,
    /// The reason.
    pub reason: Cow<'static, str>,
}

/// Refused lines: the fields of the response of `POST /write`; `Display` is for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedLines {
    /// Number of lines stored.
    pub kept_lines: u64,
    /// Number of lines refused.
    pub refused_lines: u64,
    /// The first refused ones.
    pub refused: Vec<RefusedLine>,
}

impl fmt::Display for RefusedLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kept, refused) = (self.kept_lines, self.refused_lines);
        write!(
            f,
            "{refused} of {} lines are refused, {kept} are kept; correct them and write them again:",
            kept + refused
        )?;
        for RefusedLine { line, reason } in &self.refused {
            write!(f, "\n  line {line}: {reason}")?;
        }
        match refused.saturating_sub(self.refused.len() as u64) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// Result of a request's lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Lines that are neither empty nor a comment.
    pub(super) lines: u64,
    /// Values stored.
    pub(super) values: u64,
    /// Fields left out because they are strings.
    pub(super) strings: u64,
    pub(super) refused: u64,
    /// The first refusals.
    pub(super) refusals: Vec<RefusedLine>,
}

impl Outcome {
    /// `None` if none was.
    pub(super) fn refused_lines(self) -> Option<RefusedLines> {
        (self.refused > 0).then_some(RefusedLines {
            kept_lines: self.lines - self.refused,
            refused_lines: self.refused,
            refused: self.refusals,
        })
    }
}

/// Parses all lines of `body` and passes each valid one with a number to `take`, with its time in nanoseconds since 1970; for
/// those without a timestamp it is `now`.
///
/// # Errors
/// The first error of `take`, at once.
pub(super) fn read<'a, E>(
    body: &'a [u8],
    precision: Precision,
    now: i64,
    mut take: impl FnMut(Line<'a>, i64) -> Result<(), E>,
) -> Result<Outcome, E> {
    let mut outcome = Outcome::default();
    let (mut at, mut number) = (0, 0);
    while at < body.len() {
        number += 1;
        let start = at;
        let mut end = line_end(body, start);
        at = end + 1;
        let text = body[start..end].trim_ascii_start();
        if text.is_empty() || text[0] == b'#' {
            continue;
        }
        outcome.lines += 1;
        let mut found = timed(&body[start..end], precision, now);
        let first = number;
        for _ in 0..MAX_STRING_LINES {
            if !found.as_ref().is_err_and(|refusal| refusal.open_string) || end >= body.len() {
                break;
            }
            end = line_end(body, end + 1);
            number += 1;
            let longer = timed(&body[start..end], precision, now);
            if longer.is_ok() {
                at = end + 1;
                found = longer;
            } else if !longer.as_ref().is_err_and(|refusal| refusal.open_string) {
                break;
            }
        }
        match found {
            Ok((line, timestamp)) => {
                outcome.values += line.fields.len() as u64;
                outcome.strings += line.strings as u64;
                // Collectors send lines of strings alone, and repeat a refused request forever.
                if !line.fields.is_empty() {
                    take(line, timestamp)?;
                }
            }
            Err(refusal) => {
                // Lines that might belong to its open string are parsed on their own.
                number = first;
                outcome.refused += 1;
                if outcome.refusals.len() < MAX_REFUSALS_NAMED {
                    outcome.refusals.push(RefusedLine {
                        line: first,
                        reason: refusal.reason,
                    });
                }
            }
        }
    }
    Ok(outcome)
}

fn line_end(body: &[u8], from: usize) -> usize {
    let rest = &body[from.min(body.len())..];
    rest.iter()
        .position(|byte| *byte == b'\n')
        .map_or(body.len(), |length| from + length)
}

/// A line with the time of its values.
fn timed(bytes: &[u8], precision: Precision, now: i64) -> Result<(Line<'_>, i64), Refusal> {
    if bytes.len() > MAX_LINE_BYTES {
        return Err(format!(
            "the line takes {} bytes; at most {MAX_LINE_BYTES} may be",
            bytes.len()
        )
        .into());
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Refusal::from("the line is not UTF-8"))?;
    let line = line::parse(text.trim_start().trim_end_matches('\r'))?;
    let timestamp = match line.timestamp {
        None => now,
        Some(count) => count.checked_mul(precision.0).ok_or(
            "the timestamp is outside the range of nanoseconds since 1970; is its precision right?",
        )?,
    };
    Ok((line, timestamp))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::convert::Infallible;

    use super::*;

    type Rows = Vec<(String, String, i64, f64)>;

    fn read_all(body: &str, precision: &str) -> (Rows, Outcome) {
        let mut rows = Vec::new();
        let precision = Precision::named(Some(precision)).unwrap();
        let outcome = read(body.as_bytes(), precision, 7, |line, timestamp| {
            for (metric, value) in line.fields {
                rows.push((line.source.clone(), metric.into_owned(), timestamp, value));
            }
            Ok::<_, Infallible>(())
        });
        (rows, outcome.unwrap())
    }

    fn refused(outcome: &Outcome) -> Vec<usize> {
        outcome
            .refusals
            .iter()
            .map(|refusal| refusal.line)
            .collect()
    }

    #[test]
    fn good_lines_are_kept_and_bad_ones_refused_by_their_number() {
        let body = "# a comment\n\nm a=1,b=2 1\r\nm a=x 2\n  m a=3 3\nno field\nm,t=v a=4";
        let (rows, outcome) = read_all(body, "s");
        let s = 1_000_000_000;
        let expected = [
            ("m", "a", s, 1.0),
            ("m", "b", s, 2.0),
            ("m", "a", 3 * s, 3.0),
            ("m,t=v", "a", 7, 4.0),
        ];
        assert_eq!(
            rows,
            expected.map(|(source, metric, at, value)| (
                source.to_owned(),
                metric.to_owned(),
                at,
                value
            ))
        );
        assert_eq!((outcome.lines, outcome.values, outcome.refused), (5, 4, 2));
        assert_eq!(refused(&outcome), [4, 6]);
    }

    #[test]
    fn line_of_strings_alone_is_counted_and_neither_stored_nor_refused() {
        let (rows, outcome) = read_all(
            "m a=1 1\nsystem up=\"3 days\" 1\nm b=\"x\ny\",c=\"z\"",
            "ns",
        );
        assert_eq!(rows.len(), 1);
        let counted = (
            outcome.lines,
            outcome.values,
            outcome.strings,
            outcome.refused,
        );
        assert_eq!(counted, (3, 1, 3, 0));
        let (rows, outcome) = read_all("m a=\"x\" 9223372036854775807", "us");
        assert_eq!(
            (rows.len(), refused(&outcome)),
            (0, vec![1]),
            "other faults are refused"
        );
    }

    #[test]
    fn string_may_continue_in_the_next_lines() {
        let (rows, outcome) = read_all("m note=\"a\nb=c \\\" d\n\",a=1 5\nm a=2 6", "ns");
        assert_eq!(
            rows.iter().map(|row| (row.2, row.3)).collect::<Vec<_>>(),
            [(5, 1.0), (6, 2.0)]
        );
        assert_eq!((outcome.refused, outcome.strings), (0, 1));
    }

    #[test]
    fn unterminated_string_refuses_only_its_own_line() {
        let body = "m a=1 1\nm note=\"open,a=9 2\nm a=3 3\nm note=\"x\",a=4 4\nm a=5 5";
        let (rows, outcome) = read_all(body, "ns");
        assert_eq!(
            rows.iter().map(|row| row.2).collect::<Vec<_>>(),
            [1, 3, 4, 5]
        );
        assert_eq!(refused(&outcome), [2]);
    }

    #[test]
    fn precisions_scale_and_overflow_is_refused() {
        for (name, scale) in [
            ("n", 1),
            ("ns", 1),
            ("u", 1_000),
            ("us", 1_000),
            ("ms", 1_000_000),
            ("s", 1_000_000_000),
            ("m", 60_000_000_000),
            ("h", 3_600_000_000_000),
        ] {
            assert_eq!(read_all("m a=1 -2", name).0[0].2, -2 * scale, "{name}");
        }
        assert_eq!(Precision::named(Some("d")), None);
        let (rows, outcome) = read_all("m a=1 9223372036854775807", "us");
        assert!(
            rows.is_empty() && outcome.refusals[0].reason.contains("precision"),
            "{outcome:?}"
        );
        assert_eq!(read_all("m a=1 9223372036854775807", "ns").0[0].2, i64::MAX);
    }

    #[test]
    fn long_lines_and_other_encodings_are_refused() {
        let body = format!("m a=1,b=\"{}\"\nm a=2", "x".repeat(MAX_LINE_BYTES));
        let (rows, outcome) = read_all(&body, "ns");
        assert_eq!((rows.len(), refused(&outcome)), (1, vec![1]));
        let outcome = read(
            b"m a=1\nm,t=\xff a=1\nm a=1",
            Precision::named(None).unwrap(),
            0,
            |_, _| Ok::<_, Infallible>(()),
        );
        let outcome = outcome.unwrap();
        assert_eq!((outcome.values, refused(&outcome)), (2, vec![2]));
    }

    #[test]
    fn string_above_the_limit_of_lines_is_refused() {
        let body = |lines: usize| format!("m a=1,b=\"{}\"\nm a=2", "x\n".repeat(lines));
        let (rows, outcome) = read_all(&body(MAX_STRING_LINES), "ns");
        assert_eq!((rows.len(), refused(&outcome)), (2, vec![]));
        let (rows, outcome) = read_all(&body(MAX_STRING_LINES + 1), "ns");
        assert_eq!(rows.len(), 1, "the line behind the string is kept");
        assert_eq!(refused(&outcome)[0], 1);
    }

    #[test]
    fn refusals_above_the_limit_are_only_counted() {
        let (_, outcome) = read_all(&"bad\nm a=1\n".repeat(MAX_REFUSALS_NAMED + 5), "ns");
        let refused = outcome.refused_lines().unwrap();
        let all = MAX_REFUSALS_NAMED as u64 + 5;
        assert_eq!((refused.kept_lines, refused.refused_lines), (all, all));
        let text = refused.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + MAX_REFUSALS_NAMED + 1);
        assert!(
            lines[0].starts_with("105 of 210 lines are refused, 105 are kept"),
            "{}",
            lines[0]
        );
        assert!(lines[2].starts_with("  line 3: "), "{}", lines[2]);
        assert_eq!(lines.last(), Some(&"  and 5 more"));
    }
}
