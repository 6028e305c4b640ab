//! How the objects of a bucket are read and cached: settings of a `[[bucket]]` in the file.

use std::str::FromStr;
use std::time::Duration;

use bywash::time::parse_duration;
use bywash::{BucketOptions, Consistency};

use super::file::FileBucket;
use super::settings::BucketSettings;
use crate::failure::Failure;
use crate::size;

/// Parses these settings of the bucket `name`.
pub(super) fn bucket_reads(name: &str, bucket: &FileBucket) -> Result<BucketOptions, Failure> {
    let consistency = parsed(name, "consistency", bucket.consistency.as_deref())?;
    let block_size = bucket.block_size.as_deref();
    let block_size = block_size.map(|text| block_size_of(name, text));
    let stale = bucket.stale_if_error.as_deref();
    let digest = bucket.digest_in_key.as_deref();
    let digest = digest.map(|text| parse(name, "digest-in-key", text));
    Ok(BucketOptions {
        consistency,
        block_size: block_size.transpose()?,
        unlistable: parsed(name, "unlistable", bucket.unlistable.as_deref())?,
        stale_if_error: stale_if_error_of(name, consistency, stale)?,
        caching: parsed(name, "cache", bucket.cache.as_deref())?,
        digest_in_key: digest.transpose()?,
    })
}

fn parsed<T: FromStr<Err: ToString> + Default>(
    name: &str,
    setting: &str,
    text: Option<&str>,
) -> Result<T, Failure> {
    text.map_or_else(|| Ok(T::default()), |text| parse(name, setting, text))
}

fn parse<T: FromStr<Err: ToString>>(name: &str, setting: &str, text: &str) -> Result<T, Failure> {
    text.parse()
        .map_err(|error: T::Err| wrong(name, setting, &error.to_string()))
}

fn wrong(name: &str, setting: &str, problem: &str) -> Failure {
    Failure::usage(format!("{setting} of [[bucket]] {name}: {problem}"))
}

/// Parses the size of a block. The engine validates it.
fn block_size_of(bucket: &str, text: &str) -> Result<usize, Failure> {
    let bytes = size::parse(text).ok();
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| {
        Failure::usage(format!(
            "block-size of [[bucket]] {bucket} is {text:?}; write 64KiB, 1MiB or another power of two from 4 KiB to 4 MiB"
        ))
    })
}

/// Parses `stale-if-error`: for how long versions are read as stale while the origin fails.
fn stale_if_error_of(
    name: &str,
    consistency: Consistency,
    text: Option<&str>,
) -> Result<Option<Duration>, Failure> {
    let wrong = |problem: &str| wrong(name, "stale-if-error", problem);
    let Some(text) = text else { return Ok(None) };
    let time = parse_duration(text).map_err(|error| wrong(&error.to_string()))?;
    if consistency == Consistency::Immutable {
        let problem = "objects of an immutable bucket are never stale; leave one of them out";
        return Err(wrong(problem));
    }
    Ok(Some(time))
}

/// Refuses buckets with reads of stale versions: nodes return nothing older than an acknowledged write.
pub(super) fn refuse_stale(buckets: &[BucketSettings]) -> Result<(), Failure> {
    let stale = buckets
        .iter()
        .find(|bucket| bucket.reads.stale_if_error.is_some());
    let Some(bucket) = stale else { return Ok(()) };
    Err(Failure::usage(format!(
        "--cluster: bucket {} has stale-if-error, but nodes of a cluster serve nothing stale; leave one of them out",
        bucket.name
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use bywash::DigestInKey;

    use super::super::Args;
    use super::super::tests::merge;
    use super::*;

    #[test]
    fn digests_of_keys_are_where_the_bucket_says() {
        let set = |text: &str| {
            let file = format!("[[bucket]]\nurl = 'memory://'\n{text}");
            merge(Args::default(), &file).map(|settings| settings.buckets[0].reads.digest_in_key)
        };
        assert_eq!(set("").unwrap(), None);
        let place = set("digest-in-key = 'sha256'").unwrap();
        assert_eq!(place, Some(DigestInKey::LAST));
        let message = set("digest-in-key = 'md5'").unwrap_err().message;
        let named = message.contains("digest-in-key of [[bucket]] memory");
        assert!(named, "{message}");
    }

    #[test]
    fn stale_reads_are_off_unless_a_bucket_allows_them_for_a_time() {
        let set = |text: &str| {
            let file = format!("[[bucket]]\nurl = 'memory://'\n{text}");
            merge(Args::default(), &file).map(|settings| settings.buckets[0].reads.stale_if_error)
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
        bucket.reads.stale_if_error = Some(Duration::from_secs(1));
        let message = refuse_stale(&[bucket]).unwrap_err().message;
        assert!(message.contains("bucket b has stale-if-error"), "{message}");
    }
}
