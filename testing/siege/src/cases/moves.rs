//! The command line while another program changes its source: nothing is deleted that was not copied.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bywash_support::sign::{KEY, SECRET};
use tokio::process::Command;
use tokio::task::JoinHandle;

use super::{Case, case};
use crate::CaseError;
use crate::client::Expect;
use crate::context::{CaseContext, body};
use crate::process::Setup;

pub(super) const CASES: &[Case] = &[case!("moves", moves), case!("mirrors", mirrors)];

/// Files of a tree, and their bytes.
const FILES: u64 = 60;
const FILE: usize = 1 << 20;
/// Max time of one command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the command line with the server of the case.
async fn bywash(context: &CaseContext, args: &[&str]) -> Result<Output, CaseError> {
    let running = Command::new(&context.campaign.binary)
        .args(args)
        .env_clear()
        .env("HOME", context.path())
        .env("AWS_ENDPOINT_URL", format!("http://{}", context.address()))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_REGION", "us-east-1")
        .current_dir(context.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ended = tokio::time::timeout(COMMAND_TIMEOUT, running).await;
    Ok(ended.map_err(|_| CaseError(format!("bywash {} did not end", args.join(" "))))??)
}

/// Writes the files of a tree: `f-0`, `f-1`, ...
fn write_files(seed: u64, folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for number in 0..FILES {
        std::fs::write(folder.join(format!("f-{number}")), body(seed, number, FILE))?;
    }
    Ok(())
}

/// Bytes of file `number` after its change.
fn changed(seed: u64, number: u64) -> Vec<u8> {
    let mut bytes = body(seed, number, FILE).to_vec();
    if number % 3 == 1 {
        // Of the same length.
        bytes.reverse();
    } else {
        bytes.extend_from_slice(&body(seed, number + FILES, 1000));
    }
    bytes
}

/// Changes every file but each third once, in turn, by a rename, in place or by further bytes, as long as it is there.
#[allow(
    clippy::disallowed_methods,
    reason = "the pace of another program, on a thread of its own"
)]
fn change_files(seed: u64, folder: PathBuf, ended: Arc<AtomicBool>) -> JoinHandle<Vec<u64>> {
    tokio::task::spawn_blocking(move || {
        let mut done = Vec::new();
        for number in (0..FILES).filter(|number| number % 3 > 0) {
            // Relaxed: only the end of the loop depends on it.
            if ended.load(Ordering::Relaxed) {
                break;
            }
            let path = folder.join(format!("f-{number}"));
            let beside = folder.with_extension("beside");
            let bytes = changed(seed, number);
            let is_changed = path.exists()
                && std::fs::write(&beside, bytes).is_ok()
                && std::fs::rename(&beside, &path).is_ok();
            if is_changed {
                done.push(number);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        done
    })
}

/// Returns the bytes of an object, if it is there.
async fn object(context: &CaseContext, path: &str) -> Option<Vec<u8>> {
    let good = Expect::Status(&[200, 404]);
    let mut client = context.well_behaved();
    let response = client.send(("GET", path, ""), &[], b"", &good).await?;
    (response.status == 200).then_some(response.body)
}

/// `mv -r` of a tree whose files are replaced while it runs: the last bytes of each file are at the destination or at the source.
async fn moves(context: &mut CaseContext) -> Result<(), CaseError> {
    context.bucket("data")?;
    context.serve_filled(Setup::default()).await?;
    let folder = context.path().join("tree");
    write_files(context.seed, &folder)?;
    let ended = Arc::new(AtomicBool::new(false));
    let changing = change_files(context.seed, folder.clone(), Arc::clone(&ended));
    let source = folder.display().to_string();
    let output = bywash(context, &["mv", "-r", &source, "s3://data/moved"]).await?;
    // Relaxed as above.
    ended.store(true, Ordering::Relaxed);
    let done = changing
        .await
        .map_err(|error| CaseError(error.to_string()))?;
    context.record.figure("changed", done.len());
    context
        .record
        .figure("exit", output.status.code().unwrap_or(-1));
    for number in 0..FILES {
        let here = std::fs::read(folder.join(format!("f-{number}"))).ok();
        let there = object(context, &format!("/data/moved/f-{number}")).await;
        let first = body(context.seed, number, FILE).to_vec();
        let last = if done.contains(&number) {
            changed(context.seed, number)
        } else {
            first.clone()
        };
        if here.as_ref() != Some(&last) && there.as_ref() != Some(&last) {
            context
                .record
                .lost_write(format!("the last bytes of f-{number} are nowhere"));
        }
        if there
            .as_ref()
            .is_some_and(|found| *found != first && *found != last)
        {
            context
                .record
                .finding(format!("f-{number} was copied as a mixture of two files"));
        }
        if here.is_none() && there.is_none() {
            context.record.finding(format!("f-{number} is nowhere"));
        }
    }
    Ok(())
}

/// Each copy is there, and that of one version of its file.
async fn judge_copies(context: &mut CaseContext) {
    for number in 0..FILES {
        let there = object(context, &format!("/data/mirror/f-{number}")).await;
        let first = body(context.seed, number, FILE).to_vec();
        match there {
            None => context
                .record
                .lost_write(format!("the copy of f-{number} was deleted")),
            Some(found) if found != first && found != changed(context.seed, number) => {
                context
                    .record
                    .finding(format!("f-{number} was copied as a mixture of two files"));
            }
            Some(_) => {}
        }
    }
}

/// `sync --delete` of a tree whose files are replaced while it runs: no copy of a file is deleted, nor an object below a link that leads
/// nowhere, and a run without changes makes the copies equal.
async fn mirrors(context: &mut CaseContext) -> Result<(), CaseError> {
    context.bucket("data")?;
    context.serve_filled(Setup::default()).await?;
    let folder = context.path().join("tree");
    write_files(context.seed, &folder)?;
    let source = folder.display().to_string();
    let sync = ["sync", "--delete", &source, "s3://data/mirror"];
    let first = bywash(context, &sync).await?;
    if !first.status.success() {
        let text = String::from_utf8_lossy(&first.stderr).into_owned();
        return Err(CaseError(text));
    }
    // Of the store alone, so a run may delete it.
    let stray = body(context.seed, 1, 10);
    context
        .well_behaved()
        .put("/data/mirror/stray", &stray)
        .await;
    // A link that leads nowhere hides what is below it: nothing there is deleted.
    let hidden = body(context.seed, 2, 10);
    context
        .well_behaved()
        .put("/data/mirror/link/below", &hidden)
        .await;
    std::os::unix::fs::symlink("absent", folder.join("link"))?;
    let ended = Arc::new(AtomicBool::new(false));
    let changing = change_files(context.seed, folder.clone(), Arc::clone(&ended));
    let second = bywash(context, &sync).await?;
    // Relaxed as above.
    ended.store(true, Ordering::Relaxed);
    let done = changing
        .await
        .map_err(|error| CaseError(error.to_string()))?;
    context.record.figure("changed", done.len());
    context
        .record
        .figure("exit", second.status.code().unwrap_or(-1));
    judge_copies(context).await;
    if object(context, "/data/mirror/link/below").await.is_none() {
        let text = "an object below a link that leads nowhere was deleted";
        context.record.lost_write(text.to_owned());
    }
    std::fs::remove_file(folder.join("link"))?;
    // sync compares times: a file that was renamed into place during the upload of the one before may be older than the copy.
    let later = SystemTime::now() + Duration::from_secs(2);
    for number in 0..FILES {
        let path = folder.join(format!("f-{number}"));
        let file = std::fs::File::options().write(true).open(path)?;
        file.set_modified(later)?;
    }
    let last = bywash(context, &sync).await?;
    if !last.status.success() {
        let text = String::from_utf8_lossy(&last.stderr).into_owned();
        context
            .record
            .finding(format!("sync of a tree at rest failed: {text}"));
    }
    for number in 0..FILES {
        let here = std::fs::read(folder.join(format!("f-{number}"))).ok();
        let there = object(context, &format!("/data/mirror/f-{number}")).await;
        if here != there {
            context
                .record
                .lost_write(format!("the copy of f-{number} is not the file"));
        }
    }
    if object(context, "/data/mirror/stray").await.is_some() {
        context
            .record
            .finding("an object without a file was not deleted");
    }
    Ok(())
}
