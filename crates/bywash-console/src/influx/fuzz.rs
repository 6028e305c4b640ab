//! Properties of line protocol that fuzzers check.

use std::convert::Infallible;

use super::batch::{Precision, read};
use super::line::parse;

/// Any bytes as a request's body: each line is stored, left out for its strings or refused, once; and the name of a source, written
/// as a line, parses to the same source.
pub(crate) fn body(bytes: &[u8]) {
    let precision = Precision::named(None).expect("nanoseconds are known");
    let (mut values, mut sources) = (0, Vec::new());
    let read = read(bytes, precision, 7, |line, _| {
        values += line.fields.len() as u64;
        sources.push(line.source);
        Ok::<_, Infallible>(())
    });
    let outcome = match read {
        Ok(outcome) => outcome,
        Err(never) => match never {},
    };
    assert_eq!(values, outcome.values);
    let valid = outcome.lines - outcome.refused;
    let left_out = valid.checked_sub(sources.len() as u64);
    assert!(left_out.is_some_and(|lines| lines <= outcome.strings));
    for source in sources {
        let line = format!("{source} a=1");
        let again = parse(&line).expect("a name that was written");
        assert_eq!(again.source, source);
    }
}
