//! Selection of series by name.

/// A name, or a pattern of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// Exactly this name.
    Exact(String),
    /// Names that match: `*` matches any characters, also none, and `?` matches one. Neither can be escaped; use
    /// [`Self::Exact`].
    Glob(String),
}

impl Pattern {
    /// Parses a pattern if there is a `*` or `?`, else a name.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text.contains(['*', '?']) {
            Self::Glob(text.to_owned())
        } else {
            Self::Exact(text.to_owned())
        }
    }

    /// Whether the name matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Glob(glob) => glob == "*" || matches(glob, name),
        }
    }
}

/// Selects series by source and metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// Selected sources.
    pub source: Pattern,
    /// Selected metrics of these sources.
    pub metric: Pattern,
}

impl Selector {
    /// Selects one series.
    #[must_use]
    pub fn series(source: &str, metric: &str) -> Self {
        Self {
            source: Pattern::Exact(source.to_owned()),
            metric: Pattern::Exact(metric.to_owned()),
        }
    }

    /// Parses both as [`Pattern::parse`] does.
    #[must_use]
    pub fn parse(source: &str, metric: &str) -> Self {
        Self {
            source: Pattern::parse(source),
            metric: Pattern::parse(metric),
        }
    }

    /// Selects all series.
    #[must_use]
    pub fn all() -> Self {
        Self::parse("*", "*")
    }

    /// Names if exactly one series is selected.
    pub(crate) fn exact(&self) -> Option<(&str, &str)> {
        match (&self.source, &self.metric) {
            (Pattern::Exact(source), Pattern::Exact(metric)) => Some((source, metric)),
            _ => None,
        }
    }

    /// Whether the series is selected.
    #[must_use]
    pub fn matches(&self, source: &str, metric: &str) -> bool {
        self.source.matches(source) && self.metric.matches(metric)
    }
}

/// Backtracks to the last star only, so it takes at most pattern times name steps.
///
/// Not `globset`, which the command line's filters use: there `?` is one byte, and `[`, `{` and the backslash are
/// special.
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
    fn globs_match_stars_and_question_marks() {
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
