//! The command line with a hostile store: planted file names, control characters, sizes with an overflowing sum.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use bytes::Bytes;
use bywash_sim::server::objects::crc32c;
use tokio::process::Command;

use super::store::{Entry, Store};
use super::{Case, case};
use crate::Trouble;
use crate::field::Field;
use crate::record::{Class, End};

pub(super) const CASES: &[Case] = &[
    case!("hostile-names", hostile_names),
    case!("poisoned-resume", poisoned_resume),
    case!("hostile-text", hostile_text),
    case!("hostile-sizes", hostile_sizes),
    case!("hostile-links", hostile_links),
];

/// Max time of one command.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the program with the store, and checks that its output contains no terminal control.
async fn run(field: &Field, store: &Store, args: &[&str]) -> Result<Output, Trouble> {
    let running = Command::new(&field.campaign.binary)
        .args(args)
        .env_clear()
        .env("HOME", field.path())
        .env("AWS_ENDPOINT_URL", &store.url)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", "a")
        .env("AWS_SECRET_ACCESS_KEY", "b")
        .env("AWS_REGION", "us-east-1")
        .current_dir(field.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let what = format!("bywash {}", args.join(" "));
    let output = tokio::time::timeout(PATIENCE, running)
        .await
        .map_err(|_| Trouble(format!("{what} did not end")))??;
    field
        .record
        .request(Class::Past("a hostile store"), End::Right);
    for (stream, bytes) in [("output", &output.stdout), ("errors", &output.stderr)] {
        let text = String::from_utf8_lossy(bytes);
        if let Some(bad) = text.chars().find(|c| drives_terminals(*c)) {
            field.record.found(format!(
                "{what} prints U+{:04X} among its {stream}",
                bad as u32
            ));
        }
    }
    Ok(output)
}

/// C0 except line ends and tabs, DEL, C1, and text direction marks.
fn drives_terminals(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{200E}' | '\u{200F}' | '\u{061C}')
}

/// Collects all files below `folder` except `allowed`.
fn planted(folder: &Path, allowed: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path == allowed {
            continue;
        }
        if path.is_dir() {
            planted(&path, allowed, found);
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

/// Keys that would be written outside of the target, or that the program would take for its own files. Each is in a
/// store of its own with a valid key, so that an aborted copy does not hide the others.
async fn hostile_names(field: &mut Field) -> Result<(), Trouble> {
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
        let store = Store::start(entries(&["good", key], "1"), "no").await?;
        let target = field.path().join("inner").join(format!("target-{number}"));
        std::fs::create_dir_all(&target)?;
        let to = target.display().to_string();
        for verb in [
            &["cp", "-r", "s3://data/", &to][..],
            &["sync", "s3://data/", &to],
        ] {
            run(field, &store, verb).await?;
        }
        let own = target.join(key);
        if key.contains("bywash") && own.exists() {
            field
                .record
                .found(format!("the store planted {}", own.display()));
        }
        std::fs::remove_dir_all(&target)?;
        let mut found = Vec::new();
        planted(field.path(), &target, &mut found);
        if !found.is_empty() {
            field
                .record
                .found(format!("{key} of a store wrote {}", found.join(" ")));
        }
    }
    if Path::new("/absolute").exists() {
        field.record.found("a file was written to the root");
    }
    Ok(())
}

/// Size of an object that is downloaded in two parts, each with an entry in its state.
const IN_PARTS: usize = 9 << 20;

/// A hostile store plants what looks like half a download from an honest store. The later download from the honest
/// store must have the honest bytes.
async fn poisoned_resume(field: &mut Field) -> Result<(), Trouble> {
    let object = crate::field::body(field.seed, 1, IN_PARTS);
    let honest = Store::start(vec![Entry::new("later", object.clone())], "no").await?;
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
    let hostile = Store::start(planted, "no").await?;
    let target = field.path().join("target");
    std::fs::create_dir_all(&target)?;
    let to = target.display().to_string();
    run(field, &hostile, &["cp", "-r", "s3://data/", &to]).await?;
    let file = target.join("later");
    let to = file.display().to_string();
    let output = run(field, &honest, &["cp", "s3://data/later", &to]).await?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        field
            .record
            .found(format!("the honest object was not copied: {text}"));
    } else if std::fs::read(&file)? != object {
        field
            .record
            .found("the file has bytes that the honest store never sent");
    }
    Ok(())
}

/// Names and messages that clear the screen or reverse text.
async fn hostile_text(field: &mut Field) -> Result<(), Trouble> {
    let bad = [
        "esc\u{1b}[2Jape",
        "c1\u{9b}2J",
        "bidi\u{202e}txt.exe",
        "del\u{7f}",
        "bell\u{7}",
        "cr\rover",
    ];
    let store = Store::start(entries(&bad, "1"), "go\u{9b}2J\u{202e}away\u{1b}[2J").await?;
    run(field, &store, &["ls", "-r", "s3://data/"]).await?;
    run(field, &store, &["ls", "s3://data/"]).await?;
    run(field, &store, &["du", "s3://data/"]).await?;
    run(field, &store, &["cat", "s3://data/refused"]).await?;
    run(field, &store, &["stat", "s3://data/refused"]).await?;
    let target = field.path().join("target");
    std::fs::create_dir_all(&target)?;
    run(
        field,
        &store,
        &["cp", "-r", "s3://data/", &target.display().to_string()],
    )
    .await?;
    std::fs::write(field.path().join("local"), "x")?;
    run(field, &store, &["cp", "local", "s3://data/local"]).await?;
    Ok(())
}

/// Sizes whose sum exceeds 64 bits.
async fn hostile_sizes(field: &mut Field) -> Result<(), Trouble> {
    let store = Store::start(entries(&["a", "b", "c"], "9223372036854775807"), "no").await?;
    let output = run(field, &store, &["du", "s3://data/"]).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    field.record.figure("du", text.trim().replace('\n', " "));
    // Three times 8 EiB, or the maximum, or an error; never less than one of them.
    let wrapped =
        output.status.success() && !text.contains("EiB") && !text.contains("18446744073709551615");
    if wrapped || output.status.code().is_none_or(|code| code > 100) {
        field
            .record
            .found(format!("du says {text} and ends with {}", output.status));
    }
    Ok(())
}

/// A symbolic link in the target that leads out of it is not followed.
async fn hostile_links(field: &mut Field) -> Result<(), Trouble> {
    let store = Store::start(entries(&["link/planted"], "1"), "no").await?;
    let (target, outside) = (field.path().join("target"), field.path().join("outside"));
    std::fs::create_dir_all(&target)?;
    std::fs::create_dir_all(&outside)?;
    std::os::unix::fs::symlink(&outside, target.join("link"))?;
    let to = target.display().to_string();
    run(field, &store, &["cp", "-r", "s3://data/", &to]).await?;
    if outside.join("planted").exists() {
        field.record.found("cp -r wrote through a symbolic link");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::drives_terminals;

    #[test]
    fn plain_text_drives_no_terminal_and_escapes_do() {
        assert!(
            "plain\ttext\n\u{e4}\u{65e5}"
                .chars()
                .all(|c| !drives_terminals(c))
        );
        for bad in ['\u{1b}', '\u{9b}', '\u{7f}', '\r', '\u{202e}', '\u{2066}'] {
            assert!(drives_terminals(bad), "{bad:?}");
        }
    }
}
