//! Rejection of dangerous settings.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use bywash::OriginUrl;
use url::Url;

use super::settings::{BucketSettings, Settings};
use crate::endpoint::PROFILE_ENDPOINT;
use crate::failure::Failure;

/// Rejects a data folder inside a served folder: its secrets would be objects.
pub(super) fn refuse_served_secrets(settings: &Settings) -> Result<(), Failure> {
    let data = std::path::absolute(&settings.data_dir)
        .map_err(|error| Failure::io("cannot use --data-dir", &error))?;
    // It may not exist yet; then its parent folders decide.
    let Some(data) = data
        .ancestors()
        .find_map(|folder| folder.canonicalize().ok())
    else {
        return Ok(());
    };
    for bucket in &settings.buckets {
        if let OriginUrl::File(folder) = &bucket.url
            && folder
                .canonicalize()
                .is_ok_and(|folder| data.starts_with(folder))
        {
            return Err(Failure::usage(format!(
                "the data folder {} is inside {}, so its secrets would be served; give --data-dir another place",
                settings.data_dir.display(),
                folder.display()
            )));
        }
    }
    Ok(())
}

/// Rejects a folder of fetched files that overlaps the data folder or the folder of the disk tier:
/// a fetch could replace keys.
pub(super) fn refuse_fetches_to_own_files(settings: &Settings) -> Result<(), Failure> {
    let Some(fetched) = &settings.fetch_folder else {
        return Ok(());
    };
    let disk = settings.disk.as_ref().map(|disk| disk.path.as_path());
    let own = [
        ("--data-dir", Some(settings.data_dir.as_path())),
        ("--disk", disk),
    ];
    for (option, folder) in own {
        let Some(folder) = folder.and_then(resolved) else {
            continue;
        };
        if folder.starts_with(fetched) || fetched.starts_with(&folder) {
            return Err(Failure::usage(format!(
                "--fetch-folder {} and the folder of {option}, {}, overlap; give it another place",
                fetched.display(),
                folder.display()
            )));
        }
    }
    Ok(())
}

/// Resolves the links in a path whose end may not exist.
fn resolved(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    absolute.ancestors().find_map(|folder| {
        let there = folder.canonicalize().ok()?;
        Some(there.join(absolute.strip_prefix(folder).ok()?))
    })
}

/// Rejects this server as its own origin: an s3:// origin with this server's endpoint, or a web server's address that
/// is this one. `ambient` is the environment's endpoint.
pub(super) fn refuse_loop(
    settings: &Settings,
    own: SocketAddr,
    ambient: Option<(&str, Url)>,
) -> Result<(), Failure> {
    for bucket in &settings.buckets {
        if let OriginUrl::Http(url) = &bucket.url
            && Url::parse(&url.to_string()).is_ok_and(|url| leads_to(&url, own))
        {
            return Err(Failure::usage(format!(
                "{url} is this server's own --s3-addr: bucket {} would be read from itself. Give the address of the web server, or \
                 another --s3-addr",
                bucket.name
            )));
        }
    }
    let s3 = |bucket: &&BucketSettings| matches!(bucket.url, OriginUrl::S3 { .. });
    for bucket in settings.buckets.iter().filter(s3) {
        let options = &bucket.options.options;
        let option = options.iter().find(|(name, _)| name.contains("endpoint"));
        let (origin, own_setting) = (&bucket.url, !options.is_empty());
        let found = match (own_setting, option, &ambient) {
            (true, Some((name, text)), _) => Url::parse(text).ok().map(|url| (name.as_str(), url)),
            (false, _, Some((variable, url))) => Some((*variable, url.clone())),
            _ => None,
        };
        let Some((name, url)) = found.filter(|(_, url)| leads_to(url, own)) else {
            continue;
        };
        let next_step = match own_setting {
            true => format!("Set the option {name} to the origin's endpoint"),
            false if name == PROFILE_ENDPOINT => {
                "Name another profile by AWS_PROFILE, or set AWS_ENDPOINT_URL to the origin's endpoint".to_owned()
            }
            false => format!(
                "Set {name} to the origin's endpoint, or unset it (env -u {name} bywash serve ...) for AWS; the lines of \
                 `bywash env` belong in the shell of the clients"
            ),
        };
        return Err(Failure::usage(format!(
            "{name} is {url}, this server's own --s3-addr: {origin} would be read from itself. {next_step}"
        )));
    }
    Ok(())
}

/// Whether `url` addresses the listener bound to `own`.
pub(super) fn leads_to(url: &Url, own: SocketAddr) -> bool {
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        return false;
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // A name that does not resolve is not this server; the first request will report it.
    let mut addresses = (host, port).to_socket_addrs().into_iter().flatten();
    addresses.any(|address| {
        let ip = address.ip();
        address.port() == own.port()
            && (ip == own.ip()
                || ip.is_unspecified()
                || (own.ip().is_unspecified() && ip.is_loopback()))
    })
}
