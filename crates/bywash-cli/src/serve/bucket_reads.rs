//! The setting `stale-if-error`: for how long versions are read as stale while the origin fails.

use std::time::Duration;

use bywash::Consistency;
use bywash::time::parse_duration;

use super::settings::BucketSettings;
use crate::failure::Failure;

/// Parses the setting of a bucket.
pub(super) fn stale_if_error_of(
    bucket: &BucketSettings,
    text: Option<&str>,
) -> Result<Option<Duration>, Failure> {
    let wrong = |problem: String| {
        let name = &bucket.name;
        Failure::usage(format!("stale-if-error of [[bucket]] {name}: {problem}"))
    };
    let Some(text) = text else { return Ok(None) };
    let time = parse_duration(text).map_err(|error| wrong(error.to_string()))?;
    if bucket.consistency == Consistency::Immutable {
        let problem = "objects of an immutable bucket are never stale; leave one of them out";
        return Err(wrong(problem.to_owned()));
    }
    Ok(Some(time))
}

/// Refuses buckets with reads of stale versions: nodes return nothing older than an acknowledged write.
pub(super) fn refuse_stale(buckets: &[BucketSettings]) -> Result<(), Failure> {
    let stale = buckets
        .iter()
        .find(|bucket| bucket.stale_if_error.is_some());
    let Some(bucket) = stale else { return Ok(()) };
    Err(Failure::usage(format!(
        "--cluster: bucket {} has stale-if-error, but nodes of a cluster serve nothing stale; leave one of them out",
        bucket.name
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::Args;
    use super::super::tests::merge;
    use super::*;

    #[test]
    fn stale_reads_are_off_unless_a_bucket_allows_them_for_a_time() {
        let set = |text: &str| {
            let file = format!("[[bucket]]\nurl = 'memory://'\n{text}");
            merge(Args::default(), &file).map(|settings| settings.buckets[0].stale_if_error)
        };
        assert_eq!(set("").unwrap(), None);
        let time = set("stale-if-error = '10m'").unwrap();
        assert_eq!(time, Some(Duration::from_secs(600)));
        for text in [
            "stale-if-error = 'soon'",
            "stale-if-error = ''",
            "stale-if-error = '1m'\nconsistency = 'immutable'",
        ] {
            let message = set(text).unwrap_err().message;
            let named = message.contains("stale-if-error of [[bucket]] memory");
            assert!(named, "{text}: {message}");
        }
    }

    #[test]
    fn cluster_refuses_buckets_with_stale_reads() {
        let mut bucket = BucketSettings::new("b", "s3://b".parse().unwrap());
        assert!(refuse_stale(std::slice::from_ref(&bucket)).is_ok());
        bucket.stale_if_error = Some(Duration::from_secs(1));
        let message = refuse_stale(&[bucket]).unwrap_err().message;
        assert!(message.contains("bucket b has stale-if-error"), "{message}");
    }
}
