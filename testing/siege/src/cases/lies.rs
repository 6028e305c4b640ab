//! Lying origins, one lie each.

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

use super::raw::ask;
use super::{Case, case};
use crate::Trouble;
use crate::client::{Client, Expect};
use crate::field::{Field, body};
use crate::process::Setup;
use crate::record::{Class, End, Record};

pub(super) const CASES: &[Case] = &[
    case!("lying-origin", lying_origin),
    case!("packed-ranges", packed_ranges),
];

/// Key of an origin's object. Sorts after the tokens of lies about lists, so that continued pages contain it.
const KEY: &str = "object";
/// Number of origins that lie concurrently. Each holds two blocks of a stalled response, together a third of the
/// server's memory. `slow-readers` covers more readers.
const AT_ONCE: usize = 12;
/// Max wait for a response while an origin lies: the server retries for longer.
const LIED_TO: Duration = Duration::from_secs(2);
/// Size of an origin's object: two blocks.
const LARGE: usize = 1_500_000;

/// Lies that describe another object consistently, which a client cannot detect. `TwoVersions` sends other bytes with
/// an ETag of their own. `TotalSmaller` reports the first half as the whole in every ranged response; the ETag is the
/// same, but does not show which length is false. Only exactly the bytes of [`Lie::believed`] are right then, and
/// only while the origin lies.
const BEYOND_DOUBT: [Lie; 2] = [Lie::TwoVersions, Lie::TotalSmaller];

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
    ask(address, "GET", request.as_bytes(), LIED_TO).await
}

/// Reads a range while the origin lies. Right are the object's bytes, an error, or a truncated response.
async fn read_lied(
    address: SocketAddr,
    path: &str,
    object: &Bytes,
    range: Range<usize>,
    lie: Lie,
) -> End {
    let header = format!("bytes={}-{}", range.start, range.end - 1);
    let reply = match get(address, path, "", &[("range", &header)]).await {
        Ok(reply) => reply,
        Err(error) => return End::Failed(error.to_string()),
    };
    if !matches!(reply.status, 200 | 206) {
        return End::Failed(reply.status.to_string());
    }
    let believed = BEYOND_DOUBT
        .contains(&lie)
        .then(|| lie.accepted_contents(object));
    let right = |object: &Bytes| {
        let end = range.end.min(object.len());
        range.start < end && reply.body == object[range.start..end]
    };
    if right(object) || believed.flatten().as_ref().is_some_and(right) {
        return End::Right;
    }
    let (bytes, name) = (reply.body.len(), lie.name());
    End::Wrong(format!(
        "{bytes} bytes of {header} from an origin that tells {name}"
    ))
}

/// Texts of an XML element without attributes.
fn texts_of<'a>(xml: &'a str, element: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    xml.split(&open)
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(&close)?.0))
        .collect()
}

/// Lists the bucket by a prefix of its one key while the origin lies. Right are that key or an error.
async fn list_lied(address: SocketAddr, path: &str, lie: Lie) -> End {
    let reply = match get(address, path, "list-type=2&prefix=o", &[]).await {
        Ok(reply) => reply,
        Err(error) => return End::Failed(error.to_string()),
    };
    if reply.status != 200 {
        return End::Failed(reply.status.to_string());
    }
    let text = reply.text();
    let (keys, sizes) = (texts_of(&text, "Key"), texts_of(&text, "Size"));
    let large = LARGE.to_string();
    // Only the object itself can contradict its length in a listing.
    let sized = lie == Lie::ListWrongLengths || sizes.iter().all(|size| *size == large);
    if !keys.is_empty() && keys.iter().all(|key| *key == KEY) && sized {
        return End::Right;
    }
    let short: String = text.chars().take(300).collect();
    End::Wrong(format!(
        "list of an origin that tells {}: {short}",
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
    async fn start(lie: Lie, object: Bytes, seed: u64) -> Result<Self, Trouble> {
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

    /// From now on the origin lies with this probability; 0 makes it honest.
    fn lie(&self, chance: f64) {
        self.server
            .set_fault_plan(FaultPlan::lying(self.seed, &[self.lie], chance));
    }

    fn path(&self) -> String {
        format!("{}/{KEY}", self.bucket)
    }

    async fn read(&self, address: SocketAddr, range: Range<usize>) -> End {
        read_lied(address, &self.path(), &self.object, range, self.lie).await
    }

    /// Reads or lists while the origin lies. Returns the client that read it before.
    async fn attack(&self, address: SocketAddr, mut well: Client, record: &Record) -> Client {
        let path = self.path();
        // The version is known before the lies begin.
        let known = Expect::Status(&[200]);
        well.send(("HEAD", &path, ""), &[], b"", &known).await;
        self.lie(0.7);
        for range in [0..100_000, 1_200_000..1_300_000, 0..LARGE] {
            let end = match self.lie.is_list_lie() {
                true => list_lied(address, &self.bucket, self.lie).await,
                false => self.read(address, range).await,
            };
            record.request(Class::Past("a lying origin"), end);
        }
        self.lie(0.0);
        well
    }
}

/// Starts an origin for each of `lies`, and a server for all of them.
async fn serve(field: &mut Field, lies: &[Lie]) -> Result<Vec<Arc<LyingOrigin>>, Trouble> {
    let object = body(field.seed, 1, LARGE);
    let (mut config, mut origins) = (String::new(), Vec::new());
    for (number, &lie) in lies.iter().enumerate() {
        let origin = LyingOrigin::start(lie, object.clone(), field.seed ^ number as u64).await?;
        config.push_str(&origin.config());
        origins.push(Arc::new(origin));
    }
    field.serve(Setup::default().config(config)).await?;
    field.record.figure("lies", origins.len());
    Ok(origins)
}

/// All lies of the simulated store, each by an origin of its own. Every read and list is right or an error, and right
/// once the origin is honest again.
async fn lying_origin(field: &mut Field) -> Result<(), Trouble> {
    let origins = serve(field, Lie::ALL).await?;
    let address = field.address();
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    field
        .crowd(origins.len() as u64, |number| {
            let origin = Arc::clone(&origins[number as usize]);
            let (well, record) = (field.well(), Arc::clone(&field.record));
            let turns = Arc::clone(&turns);
            async move {
                let _turn = turns.acquire().await;
                let mut well = origin.attack(address, well, &record).await;
                // Lets the consistency window of a lie expire.
                tokio::time::sleep(Duration::from_millis(1500)).await;
                well.get(&origin.path(), &origin.object).await;
            }
        })
        .await;
    Ok(())
}

/// A proxy encodes each ranged response, with an encoding that the whole object does not have, or without naming it.
async fn packed_ranges(field: &mut Field) -> Result<(), Trouble> {
    let packed = [
        Lie::Gzip,
        Lie::GzipChunked,
        Lie::GzipUnnamed,
        Lie::GzipChunkedUnnamed,
    ];
    let origins = serve(field, &packed).await?;
    let address = field.address();
    field
        .crowd(origins.len() as u64, |number| {
            let origin = Arc::clone(&origins[number as usize]);
            let (mut well, record) = (field.well(), Arc::clone(&field.record));
            async move {
                origin.lie(1.0);
                // The server retries for some time; an error or a truncated response is right.
                let end = origin.read(address, 100_000..200_000).await;
                record.request(Class::Past("a lying origin"), end);
                origin.lie(0.0);
                well.get(&origin.path(), &origin.object).await;
            }
        })
        .await;
    Ok(())
}
