//! The download of a large object into a file, which another process can go on with.
//!
//! Beside the file's place stand `.NAME.bywash-part`, with each part at its offset, and `.NAME.bywash-part.state`: a first line
//! that says which version of which object this is, then a line for each part that was written, with its CRC32C. Who finds them
//! later reads the parts again and believes what matches; the state file is locked by who works on it.

mod state;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use object_store::PutMode;

use crate::failure::{Failure, Kind};
use crate::file::{Place, set_modified};
use crate::object::Object;
use crate::output::Output;
use crate::source::{PART_MIN_BYTES, ahead, part_bytes};

pub(crate) use state::is_own_file;
use state::{Staged, Version};

/// What a download did.
#[derive(Debug)]
pub(crate) struct Downloaded {
    pub(crate) bytes: u64,
    /// Those of them that an earlier process had brought.
    pub(crate) resumed_bytes: u64,
}

/// Whether it is worth a state file, and a later version can be told from this one.
pub(crate) fn can_resume(object: &Object) -> bool {
    let strong = |tag: &String| !tag.starts_with("W/");
    object.meta.size > PART_MIN_BYTES && object.meta.e_tag.as_ref().is_some_and(strong)
}

/// Brings the object at `url` to the place of a file. After a failure what came stays, for the next try.
pub(crate) async fn to_file(
    object: Object,
    url: &str,
    endpoint: Option<String>,
    place: Place,
    mode: &PutMode,
    (bar, output): (&ProgressBar, Output),
) -> Result<Downloaded, Failure> {
    let version = Version {
        url: url.to_owned(),
        endpoint,
        e_tag: object.meta.e_tag.clone(),
        version: object.meta.version.clone(),
        bytes: object.meta.size,
        part_bytes: part_bytes(object.meta.size),
    };
    let place = Arc::new(place);
    let staged = blocking(&place, {
        let place = Arc::clone(&place);
        move || Staged::open(&place, version)
    });
    let staged = Arc::new(staged.await?);
    if staged.begun_anew {
        output.note(&format!(
            "what came of {url} before was of another version or endpoint: starting over"
        ));
    }
    bar.inc(staged.resumed_bytes);
    bar.reset_eta();
    let fetched = fetch(&object, &place, &staged, bar).await;
    fetched.map_err(|failure| can_go_on(failure, &staged))?;
    blocking(&place, {
        let (place, staged, mode) = (Arc::clone(&place), Arc::clone(&staged), mode.clone());
        move || finish(&place, &staged, &mode, &object)
    })
    .await?;
    Ok(Downloaded {
        bytes: staged.version.bytes,
        resumed_bytes: staged.resumed_bytes,
    })
}

/// Brings each part that is missing to its offset, in any order.
async fn fetch(
    object: &Object,
    place: &Arc<Place>,
    staged: &Arc<Staged>,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let at_once = ahead(staged.version.part_bytes);
    stream::iter(staged.missing())
        .map(|part| async move {
            let bytes = object.part(staged.version.range(part)).await?;
            let length = bytes.len() as u64;
            let staged = Arc::clone(staged);
            blocking(place, move || staged.keep(part, &bytes)).await?;
            bar.inc(length);
            Ok(())
        })
        .buffer_unordered(at_once)
        .try_collect()
        .await
}

/// Makes the whole file visible in one step, and safe on the disk before that.
fn finish(place: &Place, staged: &Staged, mode: &PutMode, object: &Object) -> io::Result<()> {
    let data = &staged.data;
    if place.replaces {
        data.set_permissions(place.permissions.clone())?;
    }
    set_modified(data, Some(object.meta.last_modified.into()))?;
    data.sync_all()?;
    match mode {
        PutMode::Create => {
            std::fs::hard_link(&staged.data_path, &place.target)?;
            std::fs::remove_file(&staged.data_path)?;
        }
        _ => std::fs::rename(&staged.data_path, &place.target)?,
    }
    File::open(&place.folder)?.sync_all()?;
    std::fs::remove_file(&staged.state_path)
}

/// File operations of a download, aside from the threads that carry its bytes.
async fn blocking<T: Send + 'static>(
    place: &Arc<Place>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let outcome = tokio::task::spawn_blocking(work).await;
    let outcome = outcome
        .map_err(io::Error::other)
        .and_then(|outcome| outcome);
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => place.taken(),
        _ => place.failed(&error),
    })
}

fn can_go_on(mut failure: Failure, staged: &Staged) -> Failure {
    if failure.kind != Kind::NotFound {
        failure.message = format!(
            "{}; what came is kept in {}, and the same command goes on from there",
            failure.message,
            staged.data_path.display()
        );
    }
    failure
}

impl Staged {
    /// Writes a part, then notes that it is there.
    fn keep(&self, part: u64, bytes: &Bytes) -> io::Result<()> {
        self.data
            .write_all_at(bytes, self.version.range(part).start)?;
        self.note(part, bytes)
    }
}
