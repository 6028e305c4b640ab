//! `bywash uploads sweep`: drops what nobody has worked on for long.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bywash::upload::SessionToken;
use bywash::upload::journal::Listed;
use bywash::{Bucket, OriginUrl};
use chrono::Utc;

use super::{drop_upload, journal, take};
use crate::failure::Failure;
use crate::target::{self, Target};

/// Without other words: as long as the longest-lived sessions of the stores.
const DEFAULT_AGE: &str = "7d";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// As 7d, 12h, 30m or 90s: uploads written to since then stay
    #[arg(long, value_name = "AGE", default_value = DEFAULT_AGE, value_parser = age)]
    older_than: Duration,
    /// Origins to look through for uploads that are in no journal, beside those that the journal names. What other data
    /// folders have open there is dropped too, if it is as old
    #[arg(value_name = "URL")]
    origins: Vec<OriginUrl>,
}

fn age(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is no age; write 7d, 12h, 30m or 90s");
    let unit = text.chars().last().ok_or_else(bad)?;
    let seconds: u64 = match unit {
        'd' => 24 * 3600,
        'h' => 3600,
        'm' => 60,
        's' => 1,
        _ => return Err(bad()),
    };
    let count: u64 = text[..text.len() - 1].parse().map_err(|_| bad())?;
    count
        .checked_mul(seconds)
        .map(Duration::from_secs)
        .ok_or_else(bad)
}

/// What is looked through, and the sessions there that a journal knows.
#[derive(Default)]
struct Places {
    buckets: BTreeMap<String, Bucket>,
    known: Vec<SessionToken>,
}

pub(super) async fn run(args: &super::Args, sweep: &Args) -> Result<(), Failure> {
    let journal_of = args.journal();
    let engine = target::engine(&args.data_dir, 8 << 20)?;
    let mut places = Places::default();
    let mut failed = Vec::new();
    for url in &sweep.origins {
        let bucket = target::mount(&engine, url, &args.remote)?;
        places.buckets.insert(url.to_string(), bucket);
    }
    for listed in journal_of.list().map_err(|error| journal(&error))? {
        let Ok(content) = &listed.content else {
            failed.push(format!("{} is left: its file is damaged", listed.id));
            continue;
        };
        places.known.push(content.header.session.clone());
        match Target::reopen(&engine, &content.header, &args.remote) {
            Ok(bucket) => {
                let name = place_name(&content.header.url, content.header.endpoint.as_deref());
                places.buckets.entry(name).or_insert(bucket);
            }
            Err(failure) => failed.push(failure.message),
        }
        if !listed.alive && is_old(&listed, sweep.older_than) {
            let url = content.header.url.clone();
            let dropped = match take(&journal_of, &listed.id).await {
                Ok(entry) => drop_upload(args, entry).await,
                Err(failure) => Err(failure),
            };
            match dropped {
                Ok(()) => tell(args, Some(&listed.id), &url)?,
                Err(failure) => failed.push(failure.message),
            }
        }
    }
    for (name, bucket) in &places.buckets {
        if let Err(failure) = orphans(args, sweep, &places, name, bucket).await {
            failed.push(failure.message);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "not all was swept: {}",
        failed.join("; ")
    )))
}

/// Drops the old sessions of an origin that no journal knows.
async fn orphans(
    args: &super::Args,
    sweep: &Args,
    places: &Places,
    name: &str,
    bucket: &Bucket,
) -> Result<(), Failure> {
    let failed = |error| Failure::store(format!("cannot sweep {name}"), &error);
    for open in bucket.open_sessions().await.map_err(failed)? {
        let idle = (Utc::now() - open.modified).to_std().unwrap_or_default();
        if idle >= sweep.older_than && !places.known.contains(&open.token) {
            bucket.abort_session(&open).await.map_err(failed)?;
            tell(args, None, &format!("{name}/{}", open.object))?;
        }
    }
    Ok(())
}

fn tell(args: &super::Args, id: Option<&str>, url: &str) -> Result<(), Failure> {
    let line = serde_json::json!({"id": id, "url": url, "ok": true});
    args.output.line(&line, || format!("{url}: dropped"))
}

fn is_old(listed: &Listed, age: Duration) -> bool {
    SystemTime::now()
        .duration_since(listed.modified)
        .is_ok_and(|idle| idle >= age)
}

/// The origin of a journaled upload, to look through each once.
fn place_name(url: &str, endpoint: Option<&str>) -> String {
    match endpoint {
        Some(folder) if folder.starts_with("file://") => folder.to_owned(),
        _ => {
            let rest = url.split_once("://");
            rest.map_or_else(
                || url.to_owned(),
                |(scheme, rest)| {
                    let bucket = rest.split('/').next().unwrap_or(rest);
                    format!("{scheme}://{bucket}")
                },
            )
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn ages_are_read() {
        for (text, seconds) in [("7d", 604_800), ("12h", 43_200), ("30m", 1800), ("0s", 0)] {
            assert_eq!(age(text).unwrap().as_secs(), seconds, "{text}");
        }
        for bad in ["", "d", "7", "7w", "-1d", "1.5h", "99999999999999999999d"] {
            assert!(age(bad).is_err(), "{bad}");
        }
    }
}
