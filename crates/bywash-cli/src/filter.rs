//! Selection of names in a tree by globs.

use std::str::FromStr;

use globset::{GlobBuilder, GlobMatcher};

/// Globs of names to include and to exclude.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Filter {
    /// Include only names that match one of these globs, such as '*.parquet' or '2026/**'
    ///
    /// A glob without a slash is compared with the last part of a name, one with a slash with the whole name below the source.
    /// * and ? stop at a slash, ** does not; {a,b} is either.
    #[arg(long, value_name = "GLOB")]
    include: Vec<Pattern>,
    /// Exclude names that match one of these globs, also those that --include matches
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<Pattern>,
}

impl Filter {
    pub(crate) fn takes(&self, name: &str) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }

    /// Whether a name, or one below it if it ends with a slash, may be taken.
    pub(crate) fn may_take(&self, name: &str) -> bool {
        if !name.ends_with('/') {
            return self.takes(name);
        }
        let below = format!("{name}_");
        let all_below = |pattern: &Pattern| pattern.whole_folders && pattern.matches(&below);
        !self.exclude.iter().any(all_below)
    }
}

#[derive(Debug, Clone)]
struct Pattern {
    matcher: GlobMatcher,
    whole: bool,
    /// Whether it matches all below a folder if it matches a name in it.
    whole_folders: bool,
}

impl Pattern {
    fn matches(&self, name: &str) -> bool {
        let last = name.rsplit('/').next().unwrap_or(name);
        self.matcher.is_match(if self.whole { name } else { last })
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let glob = GlobBuilder::new(text.trim_start_matches('/'))
            .literal_separator(true)
            .build()
            .map_err(|error| format!("{text:?} is no glob: {}", error.kind()))?;
        Ok(Self {
            matcher: glob.compile_matcher(),
            whole: text.contains('/'),
            whole_folders: text.ends_with("/**") || text == "*",
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn filter(include: &[&str], exclude: &[&str]) -> Filter {
        let read = |globs: &[&str]| globs.iter().map(|glob| glob.parse().unwrap()).collect();
        Filter {
            include: read(include),
            exclude: read(exclude),
        }
    }

    #[test]
    fn names_are_taken_and_left_out() {
        let names = ["a.txt", "b.bin", "dir/c.txt", "dir/sub/d.txt"];
        for (include, exclude, taken) in [
            (&[][..], &[][..], &names[..]),
            (&["*.txt"], &[], &["a.txt", "dir/c.txt", "dir/sub/d.txt"]),
            (&["dir/*"], &[], &["dir/c.txt"]),
            (&["dir/**"], &[], &["dir/c.txt", "dir/sub/d.txt"]),
            (&["/*.txt"], &[], &["a.txt"]),
            (&["*.{bin,md}"], &[], &["b.bin"]),
            (&[], &["*.txt"], &["b.bin"]),
            (&["*.txt"], &["dir/sub/*"], &["a.txt", "dir/c.txt"]),
        ] {
            let filter = filter(include, exclude);
            let left: Vec<_> = names
                .into_iter()
                .filter(|name| filter.takes(name))
                .collect();
            assert_eq!(left, taken, "{include:?} {exclude:?}");
        }
        assert!("a[".parse::<Pattern>().is_err());
    }

    #[test]
    fn folder_is_excluded_only_if_all_below_it_is() {
        for (include, exclude, expected) in [
            (&[][..], &[][..], true),
            (&[], &["lost+found/**"], false),
            (&[], &["lost*/**"], false),
            (&[], &["**"], true),
            (&[], &["*"], false),
            (&[], &["lost+found/*"], true),
            (&[], &["*.txt"], true),
            (&["*.txt"], &[], true),
        ] {
            let filter = filter(include, exclude);
            assert_eq!(
                filter.may_take("lost+found/"),
                expected,
                "{include:?} {exclude:?}"
            );
        }
        assert!(!filter(&[], &["a"]).may_take("dir/a"));
    }

    #[test]
    fn damaged_globs_are_refused_or_match() {
        bywash_support::fuzz_corpus::run_mutations(b"/dir/**/[a-z!]{x,y?}*", |bytes| {
            match String::from_utf8_lossy(bytes).parse::<Pattern>() {
                Ok(pattern) => _ = pattern.matches("dir/sub/a.txt"),
                Err(why) => assert!(why.contains("is no glob")),
            }
        });
    }
}
