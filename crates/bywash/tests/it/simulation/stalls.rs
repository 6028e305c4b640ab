//! Requests without a response: each kind ends at the stall limit. Requests that may be repeated are sent again.

use std::time::Duration;

use bytes::Bytes;
use bywash::{Consistency, DownloadOptions, RetryPolicy, UploadOptions, UploadedPart};
use bywash_sim::{Fault, FaultKind, FaultProfile, Validators};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::path::Path;
use object_store::{CopyMode, CopyOptions, ObjectStore as _, ObjectStoreExt as _, PutMode, Result};
use tokio::time::{Instant, sleep, timeout};

use crate::simulation::world::{BLOCK, World, steady};

const IMMUTABLE: Consistency = Consistency::Immutable;
const STALL: Duration = Duration::from_secs(3);
/// Further time of requests that move data within the origin.
const SERVER_WORK: Duration = Duration::from_secs(600);
/// Backoff, and the responses that do come.
const SLACK: Duration = Duration::from_millis(200);
/// Far above each limit: a request without one.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// One kind of request to an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Get,
    GetOfKnownVersion,
    GetRanges,
    Download,
    Head,
    List,
    ListWithDelimiter,
    ListPage,
    ListLevel,
    Put,
    PutIfAbsent,
    Delete,
    Copy,
    CopyIfAbsent,
    CreateUpload,
    PutPart,
    CompleteUpload,
    AbortUpload,
}

impl Kind {
    const ALL: [Self; 18] = [
        Self::Get,
        Self::GetOfKnownVersion,
        Self::GetRanges,
        Self::Download,
        Self::Head,
        Self::List,
        Self::ListWithDelimiter,
        Self::ListPage,
        Self::ListLevel,
        Self::Put,
        Self::PutIfAbsent,
        Self::Delete,
        Self::Copy,
        Self::CopyIfAbsent,
        Self::CreateUpload,
        Self::PutPart,
        Self::CompleteUpload,
        Self::AbortUpload,
    ];

    fn limit(self) -> Duration {
        match self {
            Self::Copy | Self::CopyIfAbsent | Self::CompleteUpload => STALL + SERVER_WORK,
            _ => STALL,
        }
    }

    /// Whether it is sent again: not if its effect is unknown and matters, nor if its limit exceeds the retry deadline.
    fn is_repeated(self) -> bool {
        let once = [Self::PutIfAbsent, Self::CopyIfAbsent, Self::PutPart];
        self.limit() == STALL && !once.contains(&self)
    }
}

fn world() -> World {
    World::with(IMMUTABLE, |builder| {
        builder.retry(RetryPolicy {
            stall: STALL,
            ..RetryPolicy::default()
        })
    })
}

/// An upload with one part.
struct OpenUpload {
    id: String,
    part: UploadedPart,
}

async fn open_upload(world: &World) -> OpenUpload {
    let path = Path::from("upload");
    let id = world.bucket.create_upload(&path, Default::default()).await;
    let id = id.unwrap();
    let body = stream::iter([Ok(Bytes::from_static(b"part"))]).boxed();
    let e_tag = world.bucket.put_part(&path, &id, 1, 4, body).await.unwrap();
    let part = UploadedPart { number: 1, e_tag };
    OpenUpload { id, part }
}

async fn request(world: &World, kind: Kind, open: &OpenUpload) -> Result<()> {
    let (bucket, path) = (&world.bucket, &world.path);
    let (new, upload) = (&Path::from("new"), &Path::from("upload"));
    match kind {
        Kind::Get | Kind::GetOfKnownVersion => drop(bucket.get(path).await?.bytes().await?),
        Kind::GetRanges => drop(bucket.get_ranges(path, &[1..2, 9..10]).await?),
        Kind::Download => drop(bucket.download(path, DownloadOptions::default()).await?),
        Kind::Head => drop(bucket.head(path).await?),
        Kind::List => drop(bucket.list(None).try_collect::<Vec<_>>().await?),
        Kind::ListWithDelimiter => drop(bucket.list_with_delimiter(None).await?),
        Kind::ListPage => drop(bucket.list_page("", None, 10).await?),
        Kind::ListLevel => drop(bucket.list_level("", "", 10).await?),
        Kind::Put => drop(bucket.put(new, "body".into()).await?),
        Kind::PutIfAbsent => {
            let create = PutMode::Create.into();
            bucket.put_opts(new, "body".into(), create).await?;
        }
        Kind::Delete => bucket.delete(path).await?,
        Kind::Copy => bucket.copy(path, new).await?,
        Kind::CopyIfAbsent => {
            let create = CopyOptions::new().with_mode(CopyMode::Create);
            bucket.copy_opts(path, new, create).await?;
        }
        Kind::CreateUpload => drop(bucket.create_upload(new, Default::default()).await?),
        Kind::PutPart => {
            let body = stream::iter([Ok(Bytes::from_static(b"part"))]).boxed();
            bucket.put_part(upload, &open.id, 2, 4, body).await?;
        }
        Kind::CompleteUpload => {
            let parts = [open.part.clone()];
            let mode = PutMode::Overwrite;
            bucket
                .complete_upload(upload, &open.id, &parts, mode)
                .await?;
        }
        Kind::AbortUpload => bucket.abort_upload(upload, &open.id).await?,
    }
    Ok(())
}

/// Runs `request` while the origin stays silent until half of `limit` has passed. Returns the result and how long it
/// took.
async fn with_a_stall<T>(
    world: &World,
    limit: Duration,
    request: impl Future<Output = T>,
) -> (T, Duration) {
    let faults = vec![(FaultKind::StallResponse, 1.0)];
    world
        .origin
        .set_fault_profile(FaultProfile { faults, ..steady() });
    let begun = Instant::now();
    let speaks_again = async {
        sleep(limit / 2).await;
        world.origin.set_fault_profile(steady());
    };
    let (result, ()) = tokio::join!(timeout(NEVER, request), speaks_again);
    (result.expect("it has a limit"), begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn request_without_response_ends_at_its_limit_and_is_repeated_if_it_may_be() {
    for kind in Kind::ALL {
        let world = world();
        world.origin.write(&world.path, 4 * BLOCK);
        let open = open_upload(&world).await;
        if kind == Kind::GetOfKnownVersion {
            world.bucket.head(&world.path).await.unwrap();
        }
        let (result, took) = with_a_stall(&world, kind.limit(), request(&world, kind, &open)).await;
        let allowed = kind.limit()..kind.limit() + SLACK;
        assert!(allowed.contains(&took), "{kind:?} took {took:?}");
        match result {
            Ok(()) => assert!(kind.is_repeated(), "{kind:?} was repeated"),
            Err(error) => assert!(
                !kind.is_repeated()
                    && error
                        .to_string()
                        .contains(&kind.limit().as_millis().to_string()),
                "{kind:?}: {error}"
            ),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn body_that_stops_ends_at_the_limit_and_goes_on_if_it_has_a_validator() {
    let stalls = |world: &World| {
        let script = vec![vec![Fault::Stall { after: 5_000 }]];
        world.origin.script(&world.path, script);
    };
    for validators in [Validators::Strong, Validators::None] {
        let world = world();
        world.origin.set_validators(validators);
        let version = world.origin.write(&world.path, 4 * BLOCK);
        stalls(&world);
        let begun = Instant::now();
        let read = async { world.bucket.get(&world.path).await?.bytes().await };
        let read = timeout(NEVER, read).await.expect("it has a limit");
        let took = begun.elapsed();
        assert!((STALL..STALL + SLACK).contains(&took), "{took:?}");
        match validators {
            Validators::None => assert!(read.is_err(), "no other response can continue it"),
            _ => assert_eq!(read.unwrap(), version.body),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn part_of_an_upload_without_response_is_sent_again_after_the_limit() {
    let world = world();
    let chunk = 4 * BLOCK;
    let mut upload = world
        .bucket
        .upload(&world.path, UploadOptions::default())
        .await
        .unwrap();
    let bytes = Bytes::from(vec![7; chunk]);
    // The first chunk leaves when more follows.
    upload.write(bytes.clone()).await.unwrap();
    upload.write(bytes.clone()).await.unwrap();
    let sending = upload.write(bytes.clone());
    let (result, took) = with_a_stall(&world, STALL, sending).await;
    result.unwrap();
    assert!((STALL..STALL + SLACK).contains(&took), "{took:?}");
    upload.finish().await.unwrap();
    assert_eq!(world.read().await, bytes.repeat(3));
}
