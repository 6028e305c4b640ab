//! Origins that lie in every way of `bywash_sim::server::Lie`, read, listed and downloaded through a bucket.
//!
//! With any response of the origin, a read returns correct bytes or an error; once the origin is honest again, so is the
//! bucket.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash::origin::OriginOptions;
use bywash::{Bucket, Consistency, DownloadOptions, Engine, OriginUrl, RetryPolicy};
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::s3::S3;
use bywash_sim::server::web::{Web, WebServerOptions};
use bywash_sim::server::{FaultPlan, Lie, Protocol, Server, ServerFault};
use bywash_support::pattern;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, Result};

const BLOCK: u64 = 16 << 10;
/// Some range fetches of small blocks, and a tail.
const LENGTH: usize = 200_017;
/// A bucket recovers within this time, also on a machine that is busy with other tests.
const MAX_RECOVERY_TIME: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    S3,
    Gcs,
    Azure,
    Web,
}

struct World {
    kind: Kind,
    server: Server,
    engine: Engine,
    bucket: Bucket,
    objects: Vec<(Path, Bytes)>,
}

impl World {
    async fn new(kind: Kind) -> Self {
        let objects: Vec<_> = (0..4)
            .map(|n| (Path::from(format!("p/key-{n}")), pattern(n, LENGTH)))
            .collect();
        let put = |store: &bywash_sim::server::objects::Objects, bucket: &str, prefix: &str| {
            for (path, bytes) in &objects {
                let key = format!("{prefix}{path}");
                let put = store.put(bucket, &key, bytes.clone(), Default::default(), |_| true);
                assert!(put.is_some());
            }
        };
        let protocol: Arc<dyn Protocol> = match kind {
            Kind::S3 => {
                let store = S3::new();
                put(store.objects(), "data", "");
                store
            }
            Kind::Gcs => {
                let store = Gcs::new();
                put(store.objects(), "data", "");
                store
            }
            Kind::Azure => {
                let store = Azure::new();
                put(store.objects(), "account", "data/");
                store
            }
            Kind::Web => {
                let web = Web::new(WebServerOptions::default());
                for (path, bytes) in &objects {
                    web.put(&format!("/data/{path}"), bytes.clone());
                }
                Arc::new(web)
            }
        };
        let server = Server::start(protocol).await.unwrap();
        let retry = RetryPolicy {
            initial_backoff: Duration::from_millis(1),
            max_backoff: Duration::from_millis(10),
            deadline: Duration::from_millis(150),
            stall: Duration::from_millis(500),
        };
        let builder = Engine::builder().memory(32 << 20).retry(retry);
        let engine = builder.block_size(BLOCK as usize).build().unwrap();
        // Each read revalidates, so that only the responses themselves can show errors.
        let always = Consistency::Revalidate(Duration::ZERO);
        let bucket = engine.mount("data", origin(kind, &server.url()), always);
        Self {
            kind,
            server,
            engine,
            bucket: bucket.unwrap(),
            objects,
        }
    }

    async fn read(&self, path: &Path, range: Option<Range<u64>>) -> Result<Bytes> {
        let options = GetOptions {
            range: range.map(GetRange::Bounded),
            ..GetOptions::default()
        };
        self.bucket.get_opts(path, options).await?.bytes().await
    }

    async fn download(&self, path: &Path) -> Result<Bytes> {
        let download = self.bucket.download(path, DownloadOptions::default());
        let segments = download.await?.finish().await?;
        Ok(segments.into_iter().flatten().collect::<Vec<u8>>().into())
    }

    /// Sends every kind of request to the bucket and checks each result. `lie` is the origin's behaviour during these.
    async fn read_and_list_everything(&self, lie: Option<Lie>) -> Result<(), String> {
        let mut failures = Vec::new();
        for (path, honest) in &self.objects[..2] {
            let believed = lie.and_then(|lie| lie.accepted_contents(honest));
            let right = |got: &Bytes, range: Range<usize>| {
                let is = |object: &Bytes| {
                    let end = range.end.min(object.len());
                    let start = range.start.min(end);
                    *got == object[start..end]
                };
                is(honest) || believed.as_ref().is_some_and(is)
            };
            let middle = 70_001..70_001 + 40_000;
            let wanted = middle.start as u64..middle.end as u64;
            for (what, got, range) in [
                ("read", self.read(path, None).await, 0..usize::MAX),
                ("range", self.read(path, Some(wanted)).await, middle),
                ("download", self.download(path).await, 0..usize::MAX),
            ] {
                match got {
                    Ok(got) if right(&got, range) => {}
                    Ok(got) => panic!(
                        "{:?} {lie:?}: {what} of {path} gave {} wrong bytes",
                        self.kind,
                        got.len()
                    ),
                    Err(error) => failures.push(format!("{what}: {error}")),
                }
            }
            match self.bucket.head(path).await {
                Ok(meta) => {
                    let size = meta.size as usize;
                    // A HEAD has no body that could contradict its length.
                    let unknown = matches!(lie, Some(Lie::HeadLonger | Lie::LengthHuge));
                    let known = |object: &Bytes| object.len() == size;
                    assert!(
                        unknown || known(honest) || believed.as_ref().is_some_and(known),
                        "{:?} {lie:?}: {size}",
                        self.kind
                    );
                }
                Err(error) => failures.push(format!("head: {error}")),
            }
        }
        if let Err(error) = self.list(lie).await {
            failures.push(format!("list: {error}"));
        }
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures.join("\n"))
        }
    }

    async fn list(&self, lie: Option<Lie>) -> Result<()> {
        // A web server has no listings, and neither does the fake of Azure.
        if matches!(self.kind, Kind::Web | Kind::Azure) {
            return Ok(());
        }
        let prefix = Path::from("p");
        // More than exist: an endless listing must be detected.
        let streamed = self.bucket.list(Some(&prefix)).take(1000);
        let streamed = streamed.try_collect::<Vec<_>>().await;
        let page = self.bucket.list_page("p/", None, 1000).await;
        let folder = self.bucket.list_with_delimiter(Some(&prefix)).await;
        let (page, folder) = (
            page.map(|page| page.objects),
            folder.map(|page| page.objects),
        );
        let mut failure = None;
        for (what, entries) in [("stream", streamed), ("page", page), ("folder", folder)] {
            let mut entries = match entries {
                Ok(entries) => entries,
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            entries.sort_by(|one, other| one.location.cmp(&other.location));
            entries.dedup_by(|one, other| one.location == other.location);
            let honest = self
                .objects
                .iter()
                .map(|(path, bytes)| (path, bytes.len() as u64));
            let got = entries.iter().map(|meta| (&meta.location, meta.size));
            let same = match lie {
                // Only the objects themselves can contradict it.
                Some(Lie::ListWrongLengths) => {
                    got.map(|(path, _)| path).eq(honest.map(|(path, _)| path))
                }
                _ => got.eq(honest),
            };
            assert!(same, "{:?} {lie:?} {what}: {entries:?}", self.kind);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Waits until all results are correct; the origin is honest.
    async fn recovers(&self, after: Option<Lie>) {
        let began = Instant::now();
        while let Err(failures) = self.read_and_list_everything(None).await {
            assert!(
                began.elapsed() < MAX_RECOVERY_TIME,
                "{:?} {after:?}: {failures}",
                self.kind
            );
        }
    }

    /// Waits until only cached blocks and idle buffers are charged.
    async fn gives_all_memory_back(&self, after: Lie) {
        let began = Instant::now();
        loop {
            let stats = self.engine.stats();
            let (pool, budget) = (stats.pool, stats.budget);
            let held = pool.resident_bytes + budget.idle;
            if budget.used <= held && pool.flights == 0 && budget.waiting == 0 {
                break;
            }
            assert!(
                began.elapsed() < MAX_RECOVERY_TIME,
                "{:?} {after:?}: {stats:?}",
                self.kind
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Returns an origin over the bucket or container `data` of a server.
pub(crate) fn origin(kind: Kind, url: &str) -> Arc<dyn bywash::Origin> {
    let service_account = format!(
        r#"{{"gcs_base_url": "{url}", "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}}"#
    );
    let (address, options) = match kind {
        Kind::S3 => (
            "s3://data".to_owned(),
            vec![
                ("endpoint", url.to_owned()),
                ("access_key_id", "k".to_owned()),
                ("secret_access_key", "s".to_owned()),
            ],
        ),
        Kind::Gcs => (
            "gs://data".to_owned(),
            vec![("google_service_account_key", service_account)],
        ),
        Kind::Azure => (
            "az://data".to_owned(),
            vec![
                ("endpoint", format!("{url}/account")),
                ("account_name", "account".to_owned()),
                ("sas_key", "sv=2023-11-03&sig=s1gned".to_owned()),
            ],
        ),
        Kind::Web => (format!("{url}/data"), Vec::new()),
    };
    let options = options
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    let options = OriginOptions {
        options: options.collect(),
        ..OriginOptions::default()
    };
    let url: OriginUrl = address.parse().unwrap();
    url.open_with(&options).unwrap()
}

/// Tests one lie with an object that the bucket knows, and one that it does not.
async fn survive(kind: Kind, lie: Lie) {
    let world = World::new(kind).await;
    let (known, honest) = &world.objects[0];
    let began = Instant::now();
    while world.read(known, Some(0..10)).await.ok() != Some(honest.slice(..10)) {
        assert!(
            began.elapsed() < MAX_RECOVERY_TIME,
            "{kind:?}: the honest origin is not read"
        );
    }
    world
        .server
        .set_fault_plan(FaultPlan::lying(1, &[lie], 1.0));
    let _ = world.read_and_list_everything(Some(lie)).await;
    world.server.set_fault_plan(FaultPlan::none());
    world.recovers(Some(lie)).await;
    world.gives_all_memory_back(lie).await;
}

/// Twelve faults at a time, each with an origin and an engine of its own.
async fn survive_all(kind: Kind) {
    let began = Instant::now();
    let all = stream::iter(Lie::ALL).map(|&lie| tokio::spawn(survive(kind, lie)));
    let ends: Vec<_> = all.buffer_unordered(12).collect().await;
    let failures = ends.iter().filter(|end| end.is_err()).count();
    assert_eq!(failures, 0, "{kind:?}: the panics above name the lies");
    println!("{kind:?}: {} lies in {:?}", Lie::ALL.len(), began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lying_s3_origin_returns_no_wrong_bytes_and_recovers() {
    survive_all(Kind::S3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lying_web_origin_returns_no_wrong_bytes_and_recovers() {
    survive_all(Kind::Web).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_or_other_range_is_rejected_from_every_origin() {
    let lies = [
        Lie::Gzip,
        Lie::GzipChunked,
        Lie::GzipUnnamed,
        Lie::GzipChunkedUnnamed,
        Lie::BodyLong,
        Lie::LengthOfHalf,
        Lie::RangeStartsLate,
        Lie::RangeEndsEarly,
        Lie::RangeHuge,
        Lie::RangeTwice,
        Lie::NotModified,
        Lie::NoContent,
    ];
    for kind in [Kind::S3, Kind::Gcs, Kind::Azure, Kind::Web] {
        let world = World::new(kind).await;
        let (path, honest) = &world.objects[3];
        for lie in lies {
            world
                .server
                .set_fault_plan(FaultPlan::lying(1, &[lie], 1.0));
            let error = world.read(path, Some(20_000..60_000)).await;
            let error = error.expect_err(lie.name()).to_string();
            let resident = world.engine.stats().pool.resident_blocks;
            assert_eq!(resident, 0, "{kind:?} {lie:?} is cached: {error}");
        }
        world.server.set_fault_plan(FaultPlan::none());
        world.recovers(None).await;
        // One response in between is requested again.
        let _ = world.bucket.drop_cached("");
        world
            .server
            .script(path.as_ref(), ServerFault::Lie(Lie::Gzip));
        assert_eq!(world.read(path, None).await.unwrap(), honest, "{kind:?}");
    }
}
