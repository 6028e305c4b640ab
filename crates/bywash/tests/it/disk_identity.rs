//! Blocks on the disk belong to the headers, credentials and options that brought them: no other client of the same store reads them.

use std::path::Path as FsPath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash::origin::OriginOptions;
use bywash::{Bucket, Consistency, DiskOptions, Engine, OriginUrl};
use bywash_sim::server::Server;
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::s3::S3;
use bywash_sim::server::web::{Tag, Web, WebServerOptions};
use bywash_support::pattern;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

const BLOCK: usize = 64 << 10;
const BYTES: usize = 3 * BLOCK + 5;

/// One way to open a store.
struct Client {
    url: String,
    options: OriginOptions,
}

impl Client {
    fn new(url: &str, options: &[(&str, &str)]) -> Self {
        let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let options = OriginOptions {
            options: options.iter().map(text).collect(),
            ..OriginOptions::default()
        };
        let url = url.to_owned();
        Self { url, options }
    }

    fn with_header(url: &str, name: &str, value: &str) -> Self {
        let mut client = Self::new(url, &[]);
        let headers = &mut client.options.headers;
        headers.insert(name.to_owned(), value.to_owned());
        client
    }

    fn mount(&self, engine: &Engine, name: &str) -> Bucket {
        let url: OriginUrl = self.url.parse().unwrap();
        let origin = url.open_with(&self.options).unwrap();
        let always = Consistency::Revalidate(Duration::ZERO);
        engine.mount(name, origin, always).unwrap()
    }
}

/// Opens an engine over the folder. The threads of the engine before it may still have the folder's lock for a moment.
fn engine(folder: &FsPath) -> Engine {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let options = DiskOptions {
            path: folder.to_owned(),
            size: 64 << 20,
            daily_writes: None,
            min_block_size: None,
        };
        let builder = Engine::builder().memory(32 << 20).block_size(BLOCK);
        match builder.disk(options).build() {
            Ok(engine) => return engine,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::yield_now();
    }
}

async fn read(bucket: &Bucket) {
    let found = bucket.get(&Path::from("key")).await.unwrap();
    assert!(found.bytes().await.unwrap() == pattern(1, BYTES));
}

/// Reads the object as `first` until it is on the disk, restarts, and reads it as `second`. Returns how many blocks of it came from the
/// disk, and the requests for data.
async fn reread(first: &Client, second: &Client) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let engine_before = engine(folder.path());
    let bucket = first.mount(&engine_before, "first");
    let deadline = Instant::now() + Duration::from_secs(120);
    while engine_before.stats().disk.unwrap().blocks < 4 {
        assert!(Instant::now() < deadline, "the object is not on the disk");
        read(&bucket).await;
        tokio::task::yield_now().await;
    }
    assert!(engine_before.close_disk(Duration::from_secs(60)).await);
    drop((bucket, engine_before));

    let engine_after = engine(folder.path());
    // Both in one engine: they share memory and disk, and no block.
    let own = first.mount(&engine_after, "first");
    let bucket = second.mount(&engine_after, "second");
    read(&bucket).await;
    let hits = engine_after.stats().disk.unwrap().hits;
    let requests = engine_after.stats().buckets["second"].origin_data_requests;
    read(&own).await;
    let stats = engine_after.stats();
    let disk = stats.disk.unwrap();
    let own_hits = disk.hits - hits;
    // Blocks that the disk did not return in time were loaded from the origin.
    assert!(own_hits + disk.slow_reads >= 4, "{disk:?}");
    (hits, requests)
}

#[tokio::test]
async fn blocks_on_the_disk_are_not_read_with_other_headers_credentials_or_options() {
    let web = Arc::new(Web::new(WebServerOptions {
        tag: Tag::Strong,
        ..WebServerOptions::default()
    }));
    web.put("/pub/key", pattern(1, BYTES));
    let server = Server::start(Arc::<Web>::clone(&web)).await.unwrap();
    let url = format!("{}/pub", server.url());
    let user = url.replace("http://", "http://me:secret@");
    let web = || {
        let mut same_host = Client::new(&url, &[]);
        same_host.options.redirects = Some("same-host".parse().unwrap());
        vec![
            Client::new(&url, &[]),
            Client::new(&user, &[]),
            same_host,
            Client::with_header(&url, "authorization", "Bearer one"),
            Client::with_header(&url, "authorization", "Bearer two"),
            Client::with_header(&url, "x-tenant", "one"),
        ]
    };

    let s3 = S3::new();
    let s3_server = Server::start(Arc::<S3>::clone(&s3)).await.unwrap();
    let endpoint = s3_server.url();
    let signed = |key| {
        let options = [
            ("endpoint", &*endpoint),
            ("access_key_id", key),
            ("secret_access_key", "s"),
        ];
        Client::new("s3://data", &options)
    };
    let s3 = || {
        let mut payer = signed("one");
        let options = &mut payer.options.options;
        options.insert("request_payer".to_owned(), "true".to_owned());
        let unsigned = [("endpoint", &*endpoint), ("skip_signature", "true")];
        let unsigned = Client::new("s3://data", &unsigned);
        vec![signed("one"), signed("two"), payer, unsigned]
    };

    let gcs = Gcs::new();
    let gcs_server = Server::start(Arc::<Gcs>::clone(&gcs)).await.unwrap();
    let account = |email: &str| {
        let account = service_account(&gcs_server.url(), email, "1");
        Client::new("gs://data", &[("service_account_key", &account)])
    };
    let gcs = || vec![account("one@example"), account("two@example"), account("")];

    let azure = Azure::new();
    let azure_server = Server::start(Arc::<Azure>::clone(&azure)).await.unwrap();
    let endpoint = format!("{}/account", azure_server.url());

    for clients in [web(), s3(), gcs(), azure_clients(&endpoint)] {
        put(&clients[0]).await;
        for second in &clients[1..] {
            let (hits, requests) = reread(&clients[0], second).await;
            let options = &second.options;
            assert_eq!(hits, 0, "{}: {options:?}", second.url);
            assert!(requests > 0, "{}: {options:?}", second.url);
        }
        let (hits, _) = reread(&clients[0], &clients[0]).await;
        assert!(hits > 0, "{}", clients[0].url);
    }
}

fn azure_clients(endpoint: &str) -> Vec<Client> {
    let shared = |key| {
        let options = [
            ("endpoint", endpoint),
            ("account_name", "account"),
            ("sas_key", key),
        ];
        Client::new("az://data", &options)
    };
    vec![
        shared("sv=2023-11-03&sig=one"),
        shared("sv=2023-11-03&sig=two"),
    ]
}

fn service_account(endpoint: &str, email: &str, key_id: &str) -> String {
    format!(
        r#"{{"gcs_base_url": "{endpoint}", "disable_oauth": true, "client_email": "{email}", "private_key": "", "private_key_id": "{key_id}"}}"#
    )
}

/// Writes the object, unless a web server has it already.
async fn put(client: &Client) {
    if client.url.starts_with("http") {
        return;
    }
    let engine = Engine::builder().memory(32 << 20).build().unwrap();
    let bucket = client.mount(&engine, "writer");
    let payload = PutPayload::from(pattern(1, BYTES));
    bucket.put(&Path::from("key"), payload).await.unwrap();
}

#[tokio::test]
async fn blocks_on_the_disk_are_read_with_another_proof_of_the_same_name() {
    let s3 = S3::new();
    let server = Server::start(Arc::<S3>::clone(&s3)).await.unwrap();
    let gcs = Gcs::new();
    let gcs_server = Server::start(Arc::<Gcs>::clone(&gcs)).await.unwrap();
    let signed = |secret| {
        let options = [
            ("endpoint", &*server.url()),
            ("access_key_id", "one"),
            ("secret_access_key", secret),
        ];
        Client::new("s3://data", &options)
    };
    let account = |key_id| {
        let account = service_account(&gcs_server.url(), "one@example", key_id);
        Client::new("gs://data", &[("service_account_key", &account)])
    };
    for (first, second) in [(signed("old"), signed("new")), (account("1"), account("2"))] {
        put(&first).await;
        let (hits, _) = reread(&first, &second).await;
        assert!(hits > 0, "{}", first.url);
    }
}
