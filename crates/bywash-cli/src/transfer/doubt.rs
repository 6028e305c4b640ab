//! Moves of an object to a place that may be the object itself by another address, as a folder and the bucket that a server has over it.
//!
//! The copy then replaces its source with equal bytes, so an equal ETag does not mean that the source was left alone. A server may also
//! report a state from its cache. So the destination is compared before the copy: one that does not exist is another place. An existing
//! file keeps a second name while the source is deleted, see [`Kept`](super::removal::Kept).

use std::time::Duration;

use chrono::{DateTime, Utc};
use object_store::{Error, ObjectMeta, ObjectStoreExt};

use crate::address::Address;
use crate::failure::Failure;
use crate::transfer::Pair;
use crate::transfer::copy::Copier;
use crate::url::Url;

/// Min age of an object that is moved between places: a rewrite then has another date, for dates of
/// HTTP have seconds, and servers that check again after a second have seen it.
const MIN_AGE: Duration = Duration::from_millis(2200);

/// How the destination of a move may be its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// It is another place.
    None,
    /// It is a file, which must still be there after the deletion of the source.
    File,
    /// Unknown: the source is deleted unless it shows the write, some time later.
    Unseen,
}

impl Copier {
    /// Compares the ends of a move before its copy. Fails if both may be one object. Waits until the source is [`MIN_AGE`] old.
    pub(crate) async fn doubt(&self, pair: &Pair) -> Result<Doubt, Failure> {
        let (source, destination) = (&pair.source, &pair.destination);
        // A file is compared by its inode, which a copy replaces.
        let Url::Object(from) = source else {
            return Ok(Doubt::None);
        };
        match destination {
            // Anyone could have signed it for any object.
            _ if pair.signed.is_some() => {
                self.wait_for_age(from, pair).await?;
                return Ok(Doubt::Unseen);
            }
            // Names of one bucket are compared before.
            Url::Object(to) if (from.scheme, &from.bucket) == (to.scheme, &to.bucket) => {
                return Ok(Doubt::None);
            }
            Url::File(path) => {
                let exists = path.metadata().is_ok_and(|meta| meta.is_file());
                return Ok(if exists { Doubt::File } else { Doubt::None });
            }
            _ => {}
        }
        self.wait_for_age(from, pair).await?;
        if self.existing(destination).await?.is_none() {
            return Ok(Doubt::None);
        }
        // One wait a run: a server's cache could have different states for the two addresses.
        tokio::time::sleep(MIN_AGE.saturating_sub(self.start.elapsed())).await;
        let Some(there) = self.existing(destination).await? else {
            return Ok(Doubt::None);
        };
        if may_be_one(&self.head(from).await?, &there) {
            return Err(Failure::failed(format!(
                "{source} is kept: {destination} has the same size and date, and may be the same object by another address; if they are two \
                 objects, delete {source} with rm"
            )));
        }
        Ok(Doubt::None)
    }

    /// Waits after a copy to a place that cannot be read, until the source shows the write if it is there.
    pub(crate) async fn wait_for_write(&self) {
        tokio::time::sleep(MIN_AGE).await;
    }

    async fn wait_for_age(&self, source: &Address, pair: &Pair) -> Result<(), Failure> {
        let listed = pair.listed.as_ref().and_then(|it| it.version.as_ref());
        let modified = match listed {
            Some(version) => version.modified(),
            None => self.head(source).await?.last_modified,
        };
        tokio::time::sleep(time_to_age(modified, Utc::now())).await;
        Ok(())
    }

    async fn head(&self, address: &Address) -> Result<ObjectMeta, Failure> {
        let found = self.endpoint.of(address)?.head(&address.object()?).await;
        found.map_err(|error| Failure::store(format!("cannot read {address}"), &error))
    }

    /// Looks up the object at a destination. `None` also if that is not allowed: a user who may write need not be allowed to read.
    async fn existing(&self, destination: &Url) -> Result<Option<ObjectMeta>, Failure> {
        let (origin, path) = destination.split()?;
        match self.endpoint.bucket(&origin)?.head(&path).await {
            Ok(meta) => Ok(Some(meta)),
            Err(
                Error::NotFound { .. }
                | Error::PermissionDenied { .. }
                | Error::Unauthenticated { .. },
            ) => Ok(None),
            Err(error) => {
                let what = format!("cannot write {destination}");
                Err(Failure::store(what, &error))
            }
        }
    }
}

/// The time until an object is [`MIN_AGE`] old; at most that, also by a clock that is behind.
fn time_to_age(modified: DateTime<Utc>, now: DateTime<Utc>) -> Duration {
    let age = now.signed_duration_since(modified).to_std();
    MIN_AGE.saturating_sub(age.unwrap_or_default())
}

/// Whether two responses may be about one object. Its ETags by two protocols differ, and stores
/// without dates report the epoch.
fn may_be_one(here: &ObjectMeta, there: &ObjectMeta) -> bool {
    let dates = [here, there].map(|meta| meta.last_modified.timestamp());
    here.size == there.size && (dates[0] == dates[1] || dates.iter().any(|date| *date <= 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_when_the_object_is_old_enough() {
        let at = |millis| DateTime::from_timestamp_millis(millis).unwrap_or_default();
        for (modified, now, millis) in [
            (5_000, 5_900, 1_300),
            (5_000, 5_000, 2_200),
            (9_000, 5_000, 2_200),
            (5_000, 7_200, 0),
            (0, 7_200, 0),
        ] {
            let time = time_to_age(at(modified), at(now));
            assert_eq!(time, Duration::from_millis(millis), "{modified} {now}");
        }
    }
}
