//! Origins with false responses, one lie each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash_sim::server::{FaultPlan, Lie, Server, s3::S3};
use bywash_support::http::{self, HttpResponse};
use bywash_support::sign::{Signer, borrow};
use tokio::sync::Semaphore;

use super::raw::exchange;
use super::{Case, case};
use crate::CaseError;
use crate::client::{Client, Expect};
use crate::context::{CaseContext, body};
use crate::process::Setup;
use crate::record::{Class, Outcome, Record};

pub(super) const CASES: &[Case] = &[
    case!("lying-origin", lying_origin),
    case!("packed-ranges", packed_ranges),
];

/// Key of an origin's object. Sorts after the tokens of lies about lists, so that continued pages contain it.
const KEY: &str = "object";
/// Number of concurrently lying origins. Each holds two blocks of a stalled response, together a third of the
/// server's memory. `slow-readers` covers more readers.
const CONCURRENT_ORIGINS: usize = 12;
/// Maximum wait for a response while an origin lies; the server retries for longer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Length of an origin's object: two blocks.
const LARGE: usize = 1_500_000;

/// Lies that describe another object consistently, which a client cannot detect. `TwoVersions` sends other bytes with
/// an ETag of their own. `TotalSmaller` reports the first half as the whole in every ranged response; the ETag is the
/// same, but does not show which length is false. While the origin lies, the bytes of [`Lie::accepted_contents`] are also
/// correct.
const UNDETECTABLE: [Lie; 2] = [Lie::TwoVersions, Lie::TotalSmaller];

/// Sends a signed GET without an HTTP client.
async fn get(
    address: SocketAddr,
    path: &str,
    query: &str,
    extra: &[(&str, &str)],
) -> std::io::Result<HttpResponse> {
    let (headers, _) = Signer::default().headers("GET", path, query, "UNSIGNED-PAYLOAD", extra);
    let target = match query {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    };
    let request = http::head("GET", &target, &borrow(&headers));
    exchange(address, "GET", request.as_bytes(), RESPONSE_TIMEOUT).await
}

/// Reads a range while the origin lies. The object's bytes, an error and a truncated response are correct.
async fn read_while_lying(
    address: SocketAddr,
    path: &str,
    object: &Bytes,
    range: Range<usize>,
    lie: Lie,
) -> Outcome {
    let header = format!("bytes={}-{}", range.start, range.end - 1);
    let response = match get(address, path, "", &[("range", &header)]).await {
        Ok(response) => response,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    if !matches!(response.status, 200 | 206) {
        return Outcome::Failed(response.status.to_string());
    }
    let accepted = UNDETECTABLE
        .contains(&lie)
        .then(|| lie.accepted_contents(object));
    let matches = |object: &Bytes| {
        let end = range.end.min(object.len());
        range.start < end && response.body == object[range.start..end]
    };
    if matches(object) || accepted.flatten().as_ref().is_some_and(matches) {
        return Outcome::Correct;
    }
    let (bytes, name) = (response.body.len(), lie.name());
    Outcome::Wrong(format!(
        "{bytes} bytes of {header} from an origin with the lie {name}"
    ))
}

/// Returns the texts of an XML element without attributes.
fn texts_of<'a>(xml: &'a str, element: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    xml.split(&open)
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(&close)?.0))
        .collect()
}

/// Lists the bucket by a prefix of its one key while the origin lies. That key and an error are correct.
async fn list_while_lying(address: SocketAddr, path: &str, lie: Lie) -> Outcome {
    let response = match get(address, path, "list-type=2&prefix=o", &[]).await {
        Ok(response) => response,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    if response.status != 200 {
        return Outcome::Failed(response.status.to_string());
    }
    let text = response.text();
    let (keys, sizes) = (texts_of(&text, "Key"), texts_of(&text, "Size"));
    let large = LARGE.to_string();
    // A client can detect a wrong length only by reading the object.
    let sized = lie == Lie::ListWrongLengths || sizes.iter().all(|size| *size == large);
    if !keys.is_empty() && keys.iter().all(|key| *key == KEY) && sized {
        return Outcome::Correct;
    }
    let short: String = text.chars().take(300).collect();
    Outcome::Wrong(format!(
        "list of an origin with the lie {}: {short}",
        lie.name()
    ))
}

/// The origin of one lie, its object, and its address at the server.
struct LyingOrigin {
    lie: Lie,
    server: Server,
    object: Bytes,
    bucket: String,
    seed: u64,
}

impl LyingOrigin {
    async fn start(lie: Lie, object: Bytes, seed: u64) -> Result<Self, CaseError> {
        let store = S3::new();
        let bytes = object.clone();
        let _ = store
            .objects()
            .put("data", KEY, bytes, BTreeMap::new(), |_| true);
        Ok(Self {
            lie,
            server: Server::start(store).await?,
            object,
            bucket: format!("/{}", lie.name()),
            seed,
        })
    }

    fn config(&self) -> String {
        format!(
            "[[bucket]]\nname = \"{}\"\nurl = \"s3://data\"\noptions = {{ endpoint = \"{}\", allow_http = \"true\", \
             region = \"us-east-1\", access_key_id = \"a\", secret_access_key = \"b\" }}\n",
            self.lie.name(),
            self.server.url()
        )
    }

    /// Sets the probability of a lie; 0 ends the lies.
    fn lie(&self, chance: f64) {
        self.server
            .set_fault_plan(FaultPlan::lying(self.seed, &[self.lie], chance));
    }

    fn path(&self) -> String {
        format!("{}/{KEY}", self.bucket)
    }

    async fn read(&self, address: SocketAddr, range: Range<usize>) -> Outcome {
        read_while_lying(address, &self.path(), &self.object, range, self.lie).await
    }

    /// Reads or lists while the origin lies. Returns the client that read it before.
    async fn attack(&self, address: SocketAddr, mut client: Client, record: &Record) -> Client {
        let path = self.path();
        // The server knows the version before the lies begin.
        let known = Expect::Status(&[200]);
        client.send(("HEAD", &path, ""), &[], b"", &known).await;
        self.lie(0.7);
        for range in [0..100_000, 1_200_000..1_300_000, 0..LARGE] {
            let end = match self.lie.is_list_lie() {
                true => list_while_lying(address, &self.bucket, self.lie).await,
                false => self.read(address, range).await,
            };
            record.request(Class::Excessive("a lying origin"), end);
        }
        self.lie(0.0);
        client
    }
}

/// Starts an origin for each of `lies`, and a server for all of them.
async fn serve(
    context: &mut CaseContext,
    lies: &[Lie],
) -> Result<Vec<Arc<LyingOrigin>>, CaseError> {
    let object = body(context.seed, 1, LARGE);
    let (mut config, mut origins) = (String::new(), Vec::new());
    for (number, &lie) in lies.iter().enumerate() {
        let origin = LyingOrigin::start(lie, object.clone(), context.seed ^ number as u64).await?;
        config.push_str(&origin.config());
        origins.push(Arc::new(origin));
    }
    context.serve(Setup::default().config(config)).await?;
    context.record.figure("lies", origins.len());
    Ok(origins)
}

/// All lies of the simulated store, each by a separate origin. Every read and list is correct or an error, and correct after
/// the lies end.
async fn lying_origin(context: &mut CaseContext) -> Result<(), CaseError> {
    let origins = serve(context, Lie::ALL).await?;
    let address = context.address();
    let turns = Arc::new(Semaphore::new(CONCURRENT_ORIGINS));
    context
        .run_concurrently(origins.len() as u64, |number| {
            let origin = Arc::clone(&origins[number as usize]);
            let (client, record) = (context.well_behaved(), Arc::clone(&context.record));
            let turns = Arc::clone(&turns);
            async move {
                let turn = turns.acquire().await;
                let mut client = origin.attack(address, client, &record).await;
                // Lets the consistency window of a lie expire, while other origins lie.
                drop(turn);
                tokio::time::sleep(Duration::from_millis(1500)).await;
                let _turn = turns.acquire().await;
                client.get(&origin.path(), &origin.object).await;
            }
        })
        .await;
    Ok(())
}

/// A proxy compresses each ranged response, with or without a Content-Encoding that the whole object does not have.
async fn packed_ranges(context: &mut CaseContext) -> Result<(), CaseError> {
    let packed = [
        Lie::Gzip,
        Lie::GzipChunked,
        Lie::GzipUnnamed,
        Lie::GzipChunkedUnnamed,
    ];
    let origins = serve(context, &packed).await?;
    let address = context.address();
    context
        .run_concurrently(origins.len() as u64, |number| {
            let origin = Arc::clone(&origins[number as usize]);
            let (mut client, record) = (context.well_behaved(), Arc::clone(&context.record));
            async move {
                origin.lie(1.0);
                // The server retries for some time; an error or a truncated response is correct.
                let end = origin.read(address, 100_000..200_000).await;
                record.request(Class::Excessive("a lying origin"), end);
                origin.lie(0.0);
                client.get(&origin.path(), &origin.object).await;
            }
        })
        .await;
    Ok(())
}
