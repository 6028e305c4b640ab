//! The command line with a hostile store: malicious keys, control characters, sizes with an overflowing sum.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use bytes::Bytes;
use bywash_sim::server::objects::crc32c;
use tokio::process::Command;

use super::store::{Entry, HostileStore};
use super::{Case, case};
use crate::CaseError;
use crate::context::CaseContext;
use crate::record::{Class, Outcome};

pub(super) const CASES: &[Case] = &[
    case!("hostile-names", hostile_names),
    case!("poisoned-resume", poisoned_resume),
    case!("hostile-text", hostile_text),
    case!("hostile-sizes", hostile_sizes),
    case!("hostile-links", hostile_links),
];

/// Maximum time of one command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the program with the store, and checks that its output contains no terminal control.
async fn run(
    context: &CaseContext,
    store: &HostileStore,
    args: &[&str],
) -> Result<Output, CaseError> {
    let running = Command::new(&context.campaign.binary)
        .args(args)
        .env_clear()
        .env("HOME", context.path())
        .env("AWS_ENDPOINT_URL", &store.url)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", "a")
        .env("AWS_SECRET_ACCESS_KEY", "b")
        .env("AWS_REGION", "us-east-1")
        .current_dir(context.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let what = format!("bywash {}", args.join(" "));
    let output = tokio::time::timeout(COMMAND_TIMEOUT, running)
        .await
        .map_err(|_| CaseError(format!("{what} did not end")))??;
    context
        .record
        .request(Class::Excessive("a hostile store"), Outcome::Correct);
    for (stream, bytes) in [("output", &output.stdout), ("errors", &output.stderr)] {
        let text = String::from_utf8_lossy(bytes);
        if let Some(bad) = text.chars().find(|c| is_terminal_control(*c)) {
            context.record.finding(format!(
                "{what} prints U+{:04X} among its {stream}",
                bad as u32
            ));
        }
    }
    Ok(output)
}

/// C0 except line ends and tabs, DEL, C1, and text direction marks.
fn is_terminal_control(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{200E}' | '\u{200F}' | '\u{061C}')
}

/// Collects all files below `folder` except `allowed`.
fn unexpected_files(folder: &Path, allowed: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path == allowed {
            continue;
        }
        if path.is_dir() {
            unexpected_files(&path, allowed, found);
        } else {
            found.push(path.display().to_string());
        }
    }
}

fn entries(keys: &[&str], size: &str) -> Vec<Entry> {
    keys.iter()
        .map(|key| Entry {
            key: (*key).to_owned(),
            size: size.to_owned(),
            body: Bytes::from_static(b"x"),
        })
        .collect()
}

/// Keys that would be written outside the target, or that look like the program's own files. Each is in a separate store
/// with a valid key, so that an aborted copy does not hide the others.
async fn hostile_names(context: &mut CaseContext) -> Result<(), CaseError> {
    for (number, key) in [
        "a/../../escaped",
        "../escaped-too",
        "/absolute",
        "./dot",
        "a//b",
        ".later.bywash-part",
        ".later.bywash-part.state",
        ".bywash-folder",
    ]
    .into_iter()
    .enumerate()
    {
        let store = HostileStore::start(entries(&["good", key], "1"), "no").await?;
        let target = context
            .path()
            .join("inner")
            .join(format!("target-{number}"));
        std::fs::create_dir_all(&target)?;
        let to = target.display().to_string();
        for verb in [
            &["cp", "-r", "s3://data/", &to][..],
            &["sync", "s3://data/", &to],
        ] {
            run(context, &store, verb).await?;
        }
        let own = target.join(key);
        if key.contains("bywash") && own.exists() {
            context
                .record
                .finding(format!("the store created {}", own.display()));
        }
        std::fs::remove_dir_all(&target)?;
        let mut found = Vec::new();
        unexpected_files(context.path(), &target, &mut found);
        if !found.is_empty() {
            context
                .record
                .finding(format!("{key} of a store wrote {}", found.join(" ")));
        }
    }
    if Path::new("/absolute").exists() {
        context.record.finding("a file was written to the root");
    }
    Ok(())
}

/// Length of an object that is downloaded in two parts, each with an entry in its state.
const IN_PARTS: usize = 9 << 20;

/// A hostile store creates files that look like half a download from another store. The later download from that store
/// must have its bytes.
async fn poisoned_resume(context: &mut CaseContext) -> Result<(), CaseError> {
    let object = crate::context::body(context.seed, 1, IN_PARTS);
    let honest = HostileStore::start(vec![Entry::new("later", object.clone())], "no").await?;
    let zeros = Bytes::from(vec![0; IN_PARTS]);
    // The format of releases that stored the state beside the file.
    let mut state = format!(
        "{{\"url\":\"s3://data/later\",\"endpoint\":\"{}/\",\"e_tag\":\"\\\"e\\\"\",\"version\":null,\
         \"bytes\":{IN_PARTS},\"part_bytes\":{}}}\n",
        honest.url,
        8 << 20
    );
    for (number, part) in zeros.chunks(8 << 20).enumerate() {
        state.push_str(&format!("{number} {:08x}.\n", crc32c(part)));
    }
    let planted = vec![
        Entry::new(".later.bywash-part", zeros),
        Entry::new(".later.bywash-part.state", Bytes::from(state)),
    ];
    let hostile = HostileStore::start(planted, "no").await?;
    let target = context.path().join("target");
    std::fs::create_dir_all(&target)?;
    let to = target.display().to_string();
    run(context, &hostile, &["cp", "-r", "s3://data/", &to]).await?;
    let file = target.join("later");
    let to = file.display().to_string();
    let output = run(context, &honest, &["cp", "s3://data/later", &to]).await?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        context
            .record
            .finding(format!("the object was not copied: {text}"));
    } else if std::fs::read(&file)? != object {
        context
            .record
            .finding("the file has bytes that its store never sent");
    }
    Ok(())
}

/// Names and messages that clear the screen or reverse text.
async fn hostile_text(context: &mut CaseContext) -> Result<(), CaseError> {
    let bad = [
        "esc\u{1b}[2Jape",
        "c1\u{9b}2J",
        "bidi\u{202e}txt.exe",
        "del\u{7f}",
        "bell\u{7}",
        "cr\rover",
    ];
    let store = HostileStore::start(entries(&bad, "1"), "go\u{9b}2J\u{202e}away\u{1b}[2J").await?;
    run(context, &store, &["ls", "-r", "s3://data/"]).await?;
    run(context, &store, &["ls", "s3://data/"]).await?;
    run(context, &store, &["du", "s3://data/"]).await?;
    run(context, &store, &["cat", "s3://data/refused"]).await?;
    run(context, &store, &["stat", "s3://data/refused"]).await?;
    let target = context.path().join("target");
    std::fs::create_dir_all(&target)?;
    run(
        context,
        &store,
        &["cp", "-r", "s3://data/", &target.display().to_string()],
    )
    .await?;
    std::fs::write(context.path().join("local"), "x")?;
    run(context, &store, &["cp", "local", "s3://data/local"]).await?;
    Ok(())
}

/// Sizes whose sum exceeds 64 bits.
async fn hostile_sizes(context: &mut CaseContext) -> Result<(), CaseError> {
    let store = HostileStore::start(entries(&["a", "b", "c"], "9223372036854775807"), "no").await?;
    let output = run(context, &store, &["du", "s3://data/"]).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    context.record.figure("du", text.trim().replace('\n', " "));
    // Three times 8 EiB, or the maximum, or an error; never less than one of them.
    let wrapped =
        output.status.success() && !text.contains("EiB") && !text.contains("18446744073709551615");
    if wrapped || output.status.code().is_none_or(|code| code > 100) {
        context
            .record
            .finding(format!("du prints {text} and ends with {}", output.status));
    }
    Ok(())
}

/// A symbolic link in the target that leads out of it is not followed.
async fn hostile_links(context: &mut CaseContext) -> Result<(), CaseError> {
    let store = HostileStore::start(entries(&["link/planted"], "1"), "no").await?;
    let (target, outside) = (
        context.path().join("target"),
        context.path().join("outside"),
    );
    std::fs::create_dir_all(&target)?;
    std::fs::create_dir_all(&outside)?;
    std::os::unix::fs::symlink(&outside, target.join("link"))?;
    let to = target.display().to_string();
    run(context, &store, &["cp", "-r", "s3://data/", &to]).await?;
    if outside.join("planted").exists() {
        context
            .record
            .finding("cp -r wrote through a symbolic link");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_terminal_control;

    #[test]
    fn escapes_are_terminal_controls_and_plain_text_is_not() {
        assert!(
            "plain\ttext\n\u{e4}\u{65e5}"
                .chars()
                .all(|c| !is_terminal_control(c))
        );
        for bad in ['\u{1b}', '\u{9b}', '\u{7f}', '\r', '\u{202e}', '\u{2066}'] {
            assert!(is_terminal_control(bad), "{bad:?}");
        }
    }
}
