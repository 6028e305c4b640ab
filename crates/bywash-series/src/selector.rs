//! Which series are meant.

/// A name, or a pattern of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// This name.
    Exact(String),
    /// Names like this: `*` stands for any characters, also none, and `?` for one. There is no way to mean these two themselves;
    /// [`Self::Exact`] does.
    Glob(String),
}

impl Pattern {
    /// A pattern if there is a `*` or `?`, else a name.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text.contains(['*', '?']) {
            Self::Glob(text.to_owned())
        } else {
            Self::Exact(text.to_owned())
        }
    }

    /// Whether this name is meant.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Glob(glob) => glob == "*" || matches(glob, name),
        }
    }
}

/// Series by source and metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// Which sources.
    pub source: Pattern,
    /// Which metrics of these.
    pub metric: Pattern,
}

impl Selector {
    /// One series.
    #[must_use]
    pub fn series(source: &str, metric: &str) -> Self {
        Self {
            source: Pattern::Exact(source.to_owned()),
            metric: Pattern::Exact(metric.to_owned()),
        }
    }

    /// As [`Pattern::parse`] reads both.
    #[must_use]
    pub fn parse(source: &str, metric: &str) -> Self {
        Self {
            source: Pattern::parse(source),
            metric: Pattern::parse(metric),
        }
    }

    /// Every series.
    #[must_use]
    pub fn all() -> Self {
        Self::parse("*", "*")
    }

    /// The names, if one series is meant.
    pub(crate) fn exact(&self) -> Option<(&str, &str)> {
        match (&self.source, &self.metric) {
            (Pattern::Exact(source), Pattern::Exact(metric)) => Some((source, metric)),
            _ => None,
        }
    }

    /// Whether this series is meant.
    #[must_use]
    pub fn matches(&self, source: &str, metric: &str) -> bool {
        self.source.matches(source) && self.metric.matches(metric)
    }
}

/// Returns to the last star only, so it takes at most pattern times name steps.
///
/// Not `globset`, which the command line's filters use: there `?` is one byte, and `[`, `{` and the backslash have meanings.
fn matches(glob: &str, name: &str) -> bool {
    let (mut glob, mut name) = (glob, name);
    let mut star: Option<(&str, &str)> = None;
    loop {
        let mut rest = name.chars();
        match (glob.chars().next(), rest.next()) {
            (Some('*'), _) => {
                glob = &glob[1..];
                star = Some((glob, name));
                continue;
            }
            (Some(one), Some(other)) if one == '?' || one == other => {
                glob = &glob[one.len_utf8()..];
                name = rest.as_str();
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        let Some((after, at)) = star else {
            return false;
        };
        let mut rest = at.chars();
        if rest.next().is_none() {
            return false;
        }
        (glob, name) = (after, rest.as_str());
        star = Some((after, name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_match_what_they_say() {
        for (pattern, name, meant) in [
            ("*", "", true),
            ("*", "a/b", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*b", "aab", true),
            ("*ab*c", "xaabyyabc", true),
            ("*ab*c", "xaabyyabd", false),
            ("?", "ä", true),
            ("?", "", false),
            ("a?c*", "abcd", true),
            ("**", "x", true),
        ] {
            assert_eq!(
                Pattern::parse(pattern).matches(name),
                meant,
                "{pattern} {name}"
            );
        }
    }
}
