//! Patterns of object names (`matchGlob`): `*` and `?` match within a `/`, `**` across it, `[a-c]` and `[!a]` one character,
//! `{a,b}` one of several texts; `\` takes the next character as it is.
//!
//! A pattern is a small automaton: the time of a match is the length of the name times the length
//! of the pattern.

use super::error::{GcsError, GcsResult};
use crate::limits::MAX_GLOB_BYTES;

/// One step of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// One character in one of these ranges, or outside all ranges.
    One {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    /// Continues at both.
    Split(usize, usize),
    Jump(usize),
}

/// A pattern of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    steps: Vec<Step>,
    /// Text that each name begins with.
    literal: String,
}

/// A group of alternatives in progress.
struct Group {
    /// Place of the split before the alternative in progress.
    split: usize,
    /// Ends of the alternatives before it.
    ends: Vec<usize>,
}

fn invalid(pattern: &str, reason: &str) -> GcsError {
    GcsError::parameter("matchGlob", format!("matchGlob {pattern:?}: {reason}."))
}

fn one(character: char) -> Step {
    Step::One {
        ranges: vec![(character, character)],
        negated: false,
    }
}

/// Any character, or any but `/`.
fn any(across: bool) -> Step {
    let ranges = if across { Vec::new() } else { vec![('/', '/')] };
    Step::One {
        ranges,
        negated: true,
    }
}

impl Glob {
    pub(crate) fn parse(pattern: &str) -> GcsResult<Self> {
        if pattern.len() > MAX_GLOB_BYTES {
            let message = format!(
                "matchGlob has {} bytes, more than {MAX_GLOB_BYTES}.",
                pattern.len()
            );
            return Err(GcsError::parameter("matchGlob", message));
        }
        let mut steps = Vec::new();
        let mut group: Option<Group> = None;
        let mut characters = pattern.chars().peekable();
        while let Some(character) = characters.next() {
            match (character, &mut group) {
                ('*', _) => {
                    let mut across = false;
                    while characters.next_if_eq(&'*').is_some() {
                        across = true;
                    }
                    let begin = steps.len();
                    steps.extend([Step::Split(begin + 1, begin + 3), any(across)]);
                    steps.push(Step::Jump(begin));
                }
                ('?', _) => steps.push(any(false)),
                ('[', _) => steps.push(class(pattern, &mut characters)?),
                ('{', None) => {
                    group = Some(Group {
                        split: steps.len(),
                        ends: Vec::new(),
                    });
                    steps.push(Step::Jump(0));
                }
                ('{', Some(_)) => return Err(invalid(pattern, "braces within braces")),
                (',', Some(group)) => group.next(&mut steps),
                ('}', Some(last)) => {
                    last.end(&mut steps);
                    group = None;
                }
                ('\\', _) => {
                    let taken = characters.next();
                    let taken =
                        taken.ok_or_else(|| invalid(pattern, "nothing follows the last \\"))?;
                    steps.push(one(taken));
                }
                (character, _) => steps.push(one(character)),
            }
        }
        match group {
            Some(_) => Err(invalid(pattern, "a brace is not closed")),
            None => Ok(Self {
                literal: literal(&steps),
                steps,
            }),
        }
    }

    /// The text that each name which matches begins with.
    pub(crate) fn literal(&self) -> &str {
        &self.literal
    }

    /// Whether a name matches as a whole.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let mut current = Places::new(self.steps.len());
        let mut next = Places::new(self.steps.len());
        current.add(&self.steps, 0);
        for character in name.chars() {
            next.clear();
            for at in &current.list {
                if let Some(Step::One { ranges, negated }) = self.steps.get(*at) {
                    let is_in = ranges
                        .iter()
                        .any(|(first, last)| (*first..=*last).contains(&character));
                    if is_in != *negated {
                        next.add(&self.steps, at + 1);
                    }
                }
            }
            std::mem::swap(&mut current, &mut next);
            if current.list.is_empty() {
                return false;
            }
        }
        current.is_marked[self.steps.len()]
    }
}

impl Group {
    /// Ends an alternative, and begins the next one.
    fn next(&mut self, steps: &mut Vec<Step>) {
        self.ends.push(steps.len());
        steps.push(Step::Jump(0));
        steps[self.split] = Step::Split(self.split + 1, steps.len());
        self.split = steps.len();
        // The last alternative has no split: its place jumps on.
        steps.push(Step::Jump(0));
    }

    fn end(&mut self, steps: &mut [Step]) {
        steps[self.split] = Step::Jump(self.split + 1);
        let end = steps.len();
        for at in self.ends.drain(..) {
            steps[at] = Step::Jump(end);
        }
    }
}

/// Parses a class after its `[`.
fn class(
    pattern: &str,
    characters: &mut std::iter::Peekable<std::str::Chars<'_>>,
) -> GcsResult<Step> {
    let negated = characters
        .next_if(|character| matches!(character, '!' | '^'))
        .is_some();
    let mut ranges = Vec::new();
    let unclosed = || invalid(pattern, "a [ is not closed");
    loop {
        let first = match characters.next().ok_or_else(unclosed)? {
            ']' if !ranges.is_empty() => break,
            '\\' => characters.next().ok_or_else(unclosed)?,
            first => first,
        };
        let mut last = first;
        let mut ahead = characters.clone();
        if ahead.next() == Some('-') && ahead.next().is_some_and(|end| end != ']') {
            characters.next();
            last = characters.next().ok_or_else(unclosed)?;
        }
        if last < first {
            return Err(invalid(pattern, "a range ends before it begins"));
        }
        ranges.push((first, last));
    }
    if negated {
        ranges.push(('/', '/'));
    }
    Ok(Step::One { ranges, negated })
}

fn literal(steps: &[Step]) -> String {
    let character = |step: &Step| match step {
        Step::One {
            ranges,
            negated: false,
        } => match ranges[..] {
            [(first, last)] if first == last => Some(first),
            _ => None,
        },
        _ => None,
    };
    steps.iter().map_while(character).collect()
}

/// The places of a pattern that a name may have reached.
struct Places {
    list: Vec<usize>,
    is_marked: Vec<bool>,
}

impl Places {
    fn new(steps: usize) -> Self {
        Self {
            list: Vec::new(),
            is_marked: vec![false; steps + 1],
        }
    }

    fn clear(&mut self) {
        self.list.clear();
        self.is_marked.fill(false);
    }

    /// Adds a place, and the places that are reached from it without a character.
    fn add(&mut self, steps: &[Step], place: usize) {
        let mut left = vec![place];
        while let Some(place) = left.pop() {
            if std::mem::replace(&mut self.is_marked[place], true) {
                continue;
            }
            match steps.get(place) {
                Some(Step::Split(one, other)) => left.extend([*one, *other]),
                Some(Step::Jump(to)) => left.push(*to),
                Some(Step::One { .. }) | None => self.list.push(place),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn names_match_by_the_pattern() {
        for (pattern, matching, others) in [
            ("a*c", &["ac", "abc", "a.c"][..], &["a/c", "abcd", "a"][..]),
            ("a**c", &["ac", "a/b/c"], &["a/b"]),
            ("**", &["", "a", "a/b"], &[]),
            ("**/x", &["a/x", "a/b/x"], &["x", "a/y"]),
            ("a?c", &["abc", "a\u{fc}c"], &["ac", "a/c"]),
            ("[a-c]1", &["a1", "c1"], &["d1", "1"]),
            ("[!a-c]1", &["d1"], &["a1", "/1"]),
            ("[]x]", &["]", "x"], &["y"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("x{a,bc,}y*", &["xay", "xbcyz", "xy"], &["xby", "xa"]),
            ("{a*,b}{c,d}", &["azzc", "bd", "ac"], &["b", "c"]),
            (r"a\*b", &["a*b"], &["axb"]),
            ("a,}", &["a,}"], &["a"]),
            ("", &[""], &["a"]),
        ] {
            let glob = Glob::parse(pattern).unwrap();
            for name in matching {
                assert!(glob.matches(name), "{pattern} {name}");
                assert!(name.starts_with(glob.literal()), "{pattern} {name}");
            }
            for name in others {
                assert!(!glob.matches(name), "{pattern} {name}");
            }
        }
        assert_eq!(
            Glob::parse("data/2020-*.csv").unwrap().literal(),
            "data/2020-"
        );
    }

    #[test]
    fn patterns_that_are_none_or_too_long_are_refused() {
        for pattern in ["[a", "{a", "{a{b}}", "a\\", "[b-a]", "["] {
            assert!(Glob::parse(pattern).is_err(), "{pattern}");
        }
        assert!(Glob::parse(&"x".repeat(MAX_GLOB_BYTES)).is_ok());
        assert!(Glob::parse(&"x".repeat(MAX_GLOB_BYTES + 1)).is_err());
    }

    #[test]
    fn pattern_with_many_stars_takes_no_exponential_time() {
        let glob = Glob::parse(&"a*".repeat(MAX_GLOB_BYTES / 2)).unwrap();
        assert!(!glob.matches(&format!("{}b/", "a".repeat(1022))));
    }
}
