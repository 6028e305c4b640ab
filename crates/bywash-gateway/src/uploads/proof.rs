//! Proof that an object is the result of a completion whose response was lost, at a node that has no record of its own.
//!
//! The origin stores the mark of an upload with its object, so the mark proves the upload. Which list of parts was completed is proven
//! by one of these:
//! - The object's ETag is the one that S3 computes from the ETags of the list.
//! - The record of the completion names the list.
//! - No other list was ever sent to the origin. This needs a record of each attempt, so where it counts nothing is sent without one.

use bywash::UploadedPart;
use bywash::cluster_uploads::{RecordedState, SharedUploadsError};
use s3s::dto::CompletedPart;

use super::attempt;
use crate::digest::e_tag_of_parts;
use crate::meta::bare;

/// A list of parts, as a client named it.
#[derive(Debug)]
pub(crate) struct NamedParts {
    /// Names the list, injectively.
    pub(crate) digest: String,
    /// ETag of an object of these parts where ETags are MD5s.
    e_tag: Option<String>,
}

/// The object at the key of an upload.
#[derive(Debug)]
pub(crate) struct Candidate<'a> {
    /// Mark of the upload that created it.
    pub(crate) mark: Option<&'a str>,
    pub(crate) e_tag: Option<&'a str>,
}

/// Relation of an object to a completion.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its result.
    Result,
    /// Of another upload, or of an unknown one.
    OtherObject,
    /// The result of another list of parts of the same upload.
    OtherList,
    /// The result of the same upload, from an unknown list.
    Unproven,
    /// As [`Self::Unproven`] while the records are not available.
    Unavailable,
}

impl NamedParts {
    /// `s3`: whether the origin's protocol is S3, where the ETag of an object can be computed from
    /// the ETags of its parts.
    pub(crate) fn new(requested: &[CompletedPart], s3: bool) -> Self {
        let tag = |part: &CompletedPart| {
            let e_tag = part.e_tag.as_ref().map(|e_tag| e_tag.value());
            bare(e_tag.unwrap_or_default()).to_owned()
        };
        let parts: Vec<_> = requested
            .iter()
            .map(|part| UploadedPart {
                number: part
                    .part_number
                    .and_then(|number| u16::try_from(number).ok())
                    .unwrap_or_default(),
                e_tag: tag(part),
            })
            .collect();
        let tags = parts.iter().map(|part| Some(&*part.e_tag));
        Self {
            digest: attempt(&parts),
            e_tag: e_tag_of_parts(tags).filter(|_| s3),
        }
    }

    /// Whether the ETag of the object is the proof, so that completion may be sent without a record.
    pub(crate) fn needs_no_record(&self) -> bool {
        self.e_tag.is_some()
    }

    /// Judges an object. `mark`: the upload's mark.
    pub(crate) fn judge(
        &self,
        mark: Option<&str>,
        object: &Candidate<'_>,
        recorded: &Result<RecordedState, SharedUploadsError>,
    ) -> Verdict {
        if mark.is_none() || object.mark != mark {
            return Verdict::OtherObject;
        }
        if self.e_tag.is_some() && object.e_tag.map(bare) == self.e_tag.as_deref() {
            return Verdict::Result;
        }
        match recorded {
            Err(_) => Verdict::Unavailable,
            Ok(RecordedState::Completed(parts)) if *parts == self.digest => Verdict::Result,
            Ok(RecordedState::Completed(_)) => Verdict::OtherList,
            Ok(RecordedState::Open {
                attempts,
                since_begin: true,
            }) if !self.needs_no_record() => self.judge_attempts(attempts),
            Ok(_) => Verdict::Unproven,
        }
    }

    /// Judges by the attempts alone; no attempt is missing.
    fn judge_attempts(&self, attempts: &[String]) -> Verdict {
        let ours = attempts.contains(&self.digest);
        match attempts {
            [_] if ours => Verdict::Result,
            [_, ..] if !ours => Verdict::OtherList,
            _ => Verdict::Unproven,
        }
    }
}

#[cfg(test)]
mod tests;
