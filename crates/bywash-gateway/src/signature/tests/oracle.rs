//! The two verdicts on drawn requests: of this server, and of `s3s` with the same keys.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use bywash_support::settings::{seeds, setting};
use bywash_support::sign::{KEY, SECRET, sha256_hex};
use futures::{FutureExt, StreamExt};
use http::{Extensions, HeaderMap, Method, Request, Uri};
use s3s::auth::{S3Auth, SecretKey};
use s3s::route::S3Route;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, S3, S3Request, S3Response, S3Result, s3_error};

use super::draw::{Draws, OTHER, Sent};
use super::exceptions::{self, EXCEPTIONS};
use crate::body::RequestContext;
use crate::chunked::{ChunkedBody, SignedChunks};
use crate::config::Credential;
use crate::host::Hosts;
use crate::record::RequestIds;
use crate::routes::Query;
use crate::signature::{Framing, verify};
use crate::sigv4::keys::{Secrets, SigningKeys};

/// The access key of a request that is served, empty of an unsigned one; else the code of its error.
type Verdict = Result<String, String>;

const PANIC: &str = "panic";

struct NoOperation;
impl S3 for NoOperation {}

struct KnownKeys;

#[async_trait]
impl S3Auth for KnownKeys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let known = [(KEY, SECRET), OTHER];
        let found = known.into_iter().find(|(key, _)| *key == access_key);
        found
            .map(|(_, secret)| secret.into())
            .ok_or_else(|| s3_error!(InvalidAccessKeyId))
    }
}

/// Takes each request whose signature `s3s` has verified, and reads its body to the end.
struct Signed;

#[async_trait]
impl S3Route for Signed {
    fn is_match(&self, _: &Method, _: &Uri, _: &HeaderMap, _: &mut Extensions) -> bool {
        true
    }

    async fn check_access(&self, _: &mut S3Request<Body>) -> S3Result<()> {
        Ok(())
    }

    async fn call(&self, mut request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        while let Some(piece) = request.input.next().await {
            let Err(error) = piece else { continue };
            let error = error.to_string();
            return Err(match () {
                () if error.contains("SignatureMismatch") => s3_error!(SignatureDoesNotMatch),
                () if error.contains("Sha256Mismatch") => s3_error!(BadDigest),
                () if error.contains("Incomplete") => s3_error!(IncompleteBody),
                () => s3_error!(InvalidRequest),
            });
        }
        let key = request.credentials.map(|found| found.access_key);
        Ok(S3Response::new(Body::from(key.unwrap_or_default())))
    }
}

/// Both servers, with the same keys.
struct Both {
    keys: SigningKeys,
    hosts: Hosts,
    oracle: S3Service,
}

impl Both {
    fn new() -> Self {
        let credentials = [(KEY, SECRET), OTHER].map(|(key, secret)| Credential::new(key, secret));
        let mut oracle = S3ServiceBuilder::new(NoOperation);
        oracle.set_auth(KnownKeys);
        oracle.set_route(Signed);
        Self {
            keys: SigningKeys::new(Secrets::new(&credentials)),
            hosts: Hosts::new(&[]).unwrap(),
            oracle: oracle.build(),
        }
    }

    async fn verdicts(&self, sent: &Sent) -> Option<(Verdict, Verdict)> {
        let ours = self.ours(sent)?;
        let theirs = self.theirs(sent).await?;
        Some((ours, theirs))
    }

    fn ours(&self, sent: &Sent) -> Option<Verdict> {
        let (parts, ()) = request(sent, ())?.into_parts();
        let query = Query::new(&parts.uri);
        let target = self.hosts.target(&parts).0;
        let code = |error: s3s::S3Error| error.code().as_str().to_owned();
        let verdict = || {
            let verified = verify(&parts, &query, &target, &self.keys).map_err(code)?;
            let Some(verified) = verified else {
                return Ok(String::new());
            };
            let framing = Framing::of(&parts.headers, !sent.body.is_empty()).map_err(code)?;
            if framing
                .sha256
                .is_some_and(|digest| !digest.eq_ignore_ascii_case(&sha256_hex(&sent.body)))
            {
                return Err("BadDigest".to_owned());
            }
            if let Some(with_trailer) = framing.chunks {
                let verifier = verified.chunks.map(|verifier| SignedChunks {
                    verifier,
                    with_trailer,
                });
                decode(&sent.body, verifier)?;
            }
            Ok(verified.signatory.access_key.to_string())
        };
        Some(verdict())
    }

    async fn theirs(&self, sent: &Sent) -> Option<Verdict> {
        let body = Body::from(Bytes::from(sent.body.clone()));
        let response = self.oracle.call(request(sent, body)?);
        // Its parser of dates subtracts `0` from each byte, and panics below it in builds with checks.
        let Ok(response) = AssertUnwindSafe(response).catch_unwind().await else {
            return Some(Err(PANIC.to_owned()));
        };
        let response = response.unwrap();
        let is_good = response.status().is_success();
        let mut body = response.into_body();
        let text = body.store_all_limited(1 << 20).await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        let code = || {
            let (_, rest) = text.split_once("<Code>").unwrap();
            rest.split('<').next().unwrap().to_owned()
        };
        Some(if is_good { Ok(text) } else { Err(code()) })
    }
}

/// `None` if the library for HTTP refuses it.
fn request<B>(sent: &Sent, body: B) -> Option<Request<B>> {
    let mut request = Request::builder().method(sent.method).uri(&sent.target);
    for (name, value) in &sent.headers {
        request = request.header(name, &value[..]);
    }
    request.body(body).ok()
}

fn decode(body: &[u8], signed: Option<SignedChunks>) -> Result<(), String> {
    let context = Arc::new(RequestContext::new(RequestIds::new().next(), None));
    let input = futures::stream::iter([Ok(Bytes::copy_from_slice(body))]);
    let mut decoded = ChunkedBody::new(input, signed, Arc::clone(&context));
    // Its input is always ready.
    while let Some(piece) = decoded.next().now_or_never().unwrap() {
        piece.map_err(|_| context.fault().unwrap().code().as_str().to_owned())?;
    }
    Ok(())
}

/// How many requests had which verdicts.
#[derive(Default)]
struct Counts {
    served: usize,
    refused: usize,
    /// Of each exception.
    used: BTreeMap<usize, usize>,
    /// Wrong signatures, and how many would be found if the server accepted them.
    wrong: [usize; 2],
}

impl Counts {
    /// Counts two verdicts. False if they differ and no exception is for them.
    fn add(&mut self, sent: &Sent, ours: &Verdict, theirs: &Verdict) -> bool {
        let is_wrong = |verdict: &Verdict| verdict == &Err("SignatureDoesNotMatch".to_owned());
        if is_wrong(ours) && is_wrong(theirs) {
            let accepted = Ok(KEY.to_owned());
            let is_found = exceptions::find(sent, &accepted, theirs).is_none();
            self.wrong[0] += 1;
            self.wrong[1] += usize::from(is_found);
        }
        if ours == theirs {
            *(if ours.is_ok() {
                &mut self.served
            } else {
                &mut self.refused
            }) += 1;
            return true;
        }
        let found = exceptions::find(sent, ours, theirs);
        if let Some(found) = found {
            *self.used.entry(found).or_default() += 1;
        }
        found.is_some()
    }

    fn check(&self) {
        let unused = EXCEPTIONS.len() - self.used.len();
        let (equal, different) = (
            self.served + self.refused,
            self.used.values().sum::<usize>(),
        );
        let Self {
            served,
            refused,
            wrong: [wrong, found],
            ..
        } = self;
        println!("equal: {served} served, {refused} refused; different: {different}");
        println!("{found} of {wrong} wrong signatures would be found");
        for (at, count) in &self.used {
            println!("{count} {}", EXCEPTIONS[*at].name);
        }
        assert!(
            *served > equal / 4 && *refused > equal / 10,
            "{served} {refused}"
        );
        assert!(different < equal, "{different}");
        // Some are rare; in many requests nearly all occur.
        assert!(equal < 50_000 || unused <= 4, "{unused}");
        assert!(*found > wrong / 2, "{found} of {wrong}");
    }
}

/// `BYWASH_SIGNATURES=N` draws as many requests from each seed; 100,000 take half a minute.
#[tokio::test]
async fn verdicts_are_those_of_s3s_but_for_named_exceptions() {
    let both = Both::new();
    let mut counts = Counts::default();
    let mut unnamed = Vec::new();
    for seed in seeds(0..2) {
        let mut draws = Draws::new(seed);
        for number in 0..setting("BYWASH_SIGNATURES", 1500) {
            let sent = draws.next();
            let Some((ours, theirs)) = both.verdicts(&sent).await else {
                continue;
            };
            if !counts.add(&sent, &ours, &theirs) {
                let verdicts = format!("{ours:?}, by s3s {theirs:?}");
                unnamed.push(format!(
                    "seed {seed}, request {number}: {verdicts}\n{sent}\n"
                ));
            }
        }
    }
    let first = unnamed.iter().take(5).cloned().collect::<String>();
    assert!(
        unnamed.is_empty(),
        "{} of no exception:\n{first}",
        unnamed.len()
    );
    counts.check();
}
