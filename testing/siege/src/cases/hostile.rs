//! The command line before a hostile store: names that plant files, control characters, sizes whose sum wraps.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinHandle;

use super::{Case, case};
use crate::Trouble;
use crate::field::Field;
use crate::record::{Class, End};

pub(super) const CASES: &[Case] = &[
    case!("hostile-names", hostile_names),
    case!("hostile-text", hostile_text),
    case!("hostile-sizes", hostile_sizes),
    case!("hostile-links", hostile_links),
];

/// Max time of one command.
const PATIENCE: Duration = Duration::from_secs(20);

/// An S3 endpoint that lists what it is given and sends `x` for every object.
struct Store {
    url: String,
    task: JoinHandle<()>,
}

impl Drop for Store {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Store {
    /// `entries` are keys and the sizes they are listed with; `message` is that of every error.
    async fn start(entries: Vec<(String, String)>, message: &'static str) -> Result<Self, Trouble> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let contents: String = entries
            .iter()
            .map(|(key, size)| {
                format!(
                    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                     <ETag>\"e\"</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
                )
            })
            .collect();
        let list = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><Name>data</Name><IsTruncated>false</IsTruncated>\
             <KeyCount>{}</KeyCount>{contents}</ListBucketResult>",
            entries.len()
        );
        let task = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let list = list.clone();
                tokio::spawn(async move {
                    let mut buffer = vec![0; 16 << 10];
                    while let Ok(count @ 1..) = socket.read(&mut buffer).await {
                        let head = String::from_utf8_lossy(&buffer[..count]).into_owned();
                        let (status, body) = if head.contains("list-type=2") {
                            ("200 OK", list.clone())
                        } else if head.contains("/refused") || head.starts_with("PUT") {
                            let error = format!(
                                "<Error><Code>AccessDenied</Code><Message>{message}</Message></Error>"
                            );
                            ("403 Forbidden", error)
                        } else {
                            ("200 OK", "x".to_owned())
                        };
                        let shown = if head.starts_with("HEAD") { "" } else { &body };
                        let response = format!(
                            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"e\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n{shown}",
                            body.len()
                        );
                        if socket.write_all(response.as_bytes()).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Ok(Self { url, task })
    }
}

/// Runs the program before the store, and judges what it prints: nothing there may drive a terminal.
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

/// C0 but for line ends and tabs, DEL, C1, and what turns the direction of text.
fn drives_terminals(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{200E}' | '\u{200F}' | '\u{061C}')
}

/// Every file below `folder` but in `allowed`.
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

fn entries(keys: &[&str], size: &str) -> Vec<(String, String)> {
    keys.iter()
        .map(|key| ((*key).to_owned(), size.to_owned()))
        .collect()
}

/// Keys that would be written outside the target, or as files of the program's own.
async fn hostile_names(field: &mut Field) -> Result<(), Trouble> {
    let keys = [
        "good",
        "a/../../escaped",
        "../escaped-too",
        "/absolute",
        "./dot",
        "a//b",
        ".later.bywash-part",
        ".later.bywash-part.state",
        ".bywash-folder",
    ];
    let store = Store::start(entries(&keys, "1"), "no").await?;
    let target = field.path().join("inner").join("target");
    std::fs::create_dir_all(&target)?;
    let to = target.display().to_string();
    for verb in [
        &["cp", "-r", "s3://data/", &to][..],
        &["sync", "s3://data/", &to],
    ] {
        run(field, &store, verb).await?;
        let mut found = Vec::new();
        planted(field.path(), &target, &mut found);
        if !found.is_empty() {
            field
                .record
                .found(format!("{} wrote {}", verb[0], found.join(" ")));
        }
        for own in [".later.bywash-part", ".later.bywash-part.state"] {
            if target.join(own).exists() {
                field
                    .record
                    .found(format!("{} let the store plant {own}", verb[0]));
            }
        }
    }
    if Path::new("/absolute").exists() {
        field.record.found("a file was written to the root");
    }
    Ok(())
}

/// Names and messages that clear the screen, and turn the text around.
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

/// Sizes whose sum is more than 64 bits.
async fn hostile_sizes(field: &mut Field) -> Result<(), Trouble> {
    let store = Store::start(entries(&["a", "b", "c"], "9223372036854775807"), "no").await?;
    let output = run(field, &store, &["du", "s3://data/"]).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    field.record.figure("du", text.trim().replace('\n', " "));
    // Three times 8 EiB, or as much as there is; never less than one of them. Or an error.
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
