//! Possible contents of each database, so that a read asks only the databases that it needs, and
//! the files that a database lacks.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use bywash::DamagedFile;
use bywash_series::{LeftOut, Pattern};

use crate::Shared;
use crate::history::{OWN, bucket_source};

/// Header of a response that lacks the rows of a damaged or missing file: its database and object.
const DAMAGED_FILE: HeaderName = HeaderName::from_static("x-bywash-damaged-file");

/// Contents of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Values of clients, of any measurement but the server's own.
    Values,
    /// The server's own history.
    History,
}

impl Content {
    /// Name of the database, also of its folder.
    fn name(self) -> &'static str {
        match self {
            Self::Values => "series",
            Self::History => "history",
        }
    }

    /// Whether a source of this database may match.
    pub(crate) fn may_have(self, source: &Pattern) -> bool {
        let own_tagged = bucket_source("");
        match (self, source) {
            (Self::History, Pattern::Exact(name)) => is_own(name),
            (Self::Values, Pattern::Exact(name)) => !is_own(name),
            (Self::History, Pattern::Glob(glob)) => {
                let start = literal_start(glob);
                own_tagged.starts_with(start) || start.starts_with(&own_tagged)
            }
            (Self::Values, Pattern::Glob(glob)) => !literal_start(glob).starts_with(OWN_TAGGED),
        }
    }
}

/// Beginning of the sources of the server's own history but one.
const OWN_TAGGED: &str = "bywash,";

/// Whether a source is of the server's own measurement, which clients cannot write.
fn is_own(source: &str) -> bool {
    source == OWN || source.starts_with(OWN_TAGGED)
}

/// Characters of a pattern before its first wildcard.
fn literal_start(glob: &str) -> &str {
    &glob[..glob.find(['*', '?']).unwrap_or(glob.len())]
}

impl Shared {
    /// Names the files that a read left out in the log, at `/readyz`, in the metrics and on the page.
    pub(crate) fn note_left_out(&self, content: Content, left_out: &LeftOut) {
        for (object, error) in left_out.iter() {
            let file = format!("{} of the database {}", object, content.name());
            if self
                .engine
                .damaged_files()
                .iter()
                .any(|known| known.file == file)
            {
                continue;
            }
            self.engine.note_damage(DamagedFile {
                file,
                reason: error.to_string(),
                effect: "queries of series return all rows but its own; restore it".to_owned(),
            });
        }
    }
}

/// Names the files that a result lacks in a header of its response.
pub(crate) fn naming(mut response: Response, damaged: &[(Content, LeftOut)]) -> Response {
    for (content, left_out) in damaged {
        for (object, _) in left_out.iter() {
            let file = format!("{}/{object}", content.name());
            if let Ok(file) = HeaderValue::from_str(&file) {
                response.headers_mut().append(DAMAGED_FILE, file);
            }
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_is_of_one_database_and_patterns_of_those_that_may_match() {
        let (values, history) = (Content::Values, Content::History);
        for (source, expected) in [
            ("bywash", vec![history]),
            ("bywash,bucket=data", vec![history]),
            ("bywash,bucket=*", vec![history]),
            ("bywash,bucket=d?ta", vec![history]),
            ("bywash2", vec![values]),
            ("by\\,wash,a=b", vec![values]),
            ("weather,place=*", vec![values]),
            ("bywash2*", vec![values]),
            ("*", vec![values, history]),
            ("by*", vec![values, history]),
            ("bywash*", vec![values, history]),
            ("?ywash", vec![values, history]),
        ] {
            let pattern = Pattern::parse(source);
            let asked = [values, history].into_iter();
            let asked: Vec<_> = asked.filter(|content| content.may_have(&pattern)).collect();
            assert_eq!(asked, expected, "{source}");
        }
    }
}
