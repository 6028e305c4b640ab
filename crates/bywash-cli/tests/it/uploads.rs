//! Copies to a folder that are killed, and `bywash uploads`.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::common::{bywash, stderr, stdout};
use bywash_support::proof::{Proof, Trial};
use bywash_support::settings::setting;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// Bytes of a chunk of `cp`.
const CHUNK_BYTES: u64 = 8 * MIB;
/// Max chunks that `cp` sends concurrently.
const PARALLEL: u64 = 4;
/// Number of kills; overridden by `BYWASH_KILLS`. `BYWASH_SEED` sets the seed.
const KILLS: u64 = 10;

/// A file to copy, a folder store to copy it to, and a data folder.
struct UploadFixture {
    home: TempDir,
    content: Vec<u8>,
}

impl UploadFixture {
    fn new(length: u64) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("origin")).unwrap();
        let content = content(usize::try_from(length).unwrap());
        std::fs::write(home.path().join("source"), &content).unwrap();
        Self { home, content }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn url(&self) -> String {
        format!("file://{}/dir/object", self.path("origin").display())
    }

    fn bywash(&self, args: &[&str]) -> Command {
        let mut command = bywash(args);
        command.arg("--data-dir").arg(self.path("data"));
        command
    }

    fn cp(&self) -> Command {
        self.bywash(&["cp", self.path("source").to_str().unwrap(), &self.url()])
    }

    /// Runs `bywash uploads`. Returns its output, and the JSON lines of it.
    fn uploads(&self, args: &[&str]) -> (Output, Vec<Value>) {
        let args = [&["uploads"], args, &["--json"]].concat();
        let output = self.bywash(&args).output().unwrap();
        let printed = stdout(&output);
        let lines = printed
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let lines = lines.collect();
        (output, lines)
    }

    /// The files of the journal.
    fn journal(&self) -> Vec<PathBuf> {
        files(&self.path("data/uploads"), ".upload")
    }

    fn journal_bytes(&self) -> u64 {
        self.journal().first().map_or(0, |path| length(path))
    }

    /// The bytes of the object that the folder store has.
    fn staged_bytes(&self) -> u64 {
        let uploads = files(&self.path("origin/.bywash/uploads"), "");
        uploads.first().map_or(0, |path| length(&path.join("data")))
    }

    /// Starts a copy and kills it once `reached` returns `true`. Returns whether it was killed before its end.
    fn kill_when(&self, mut cp: Command, reached: impl Fn(&Self) -> bool) -> bool {
        let mut child = cp
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while !reached(self) {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::yield_now();
        }
        kill(&child);
        !child.wait().unwrap().success()
    }

    /// Runs a copy that the system kills when it writes past `bytes` of a file. No handler runs, as with SIGKILL.
    fn kill_at(&self, bytes: u64) {
        let cp = self.cp();
        // `ulimit` counts blocks of 512 bytes.
        let script = format!(r#"ulimit -c 0; ulimit -f {}; exec "$0" "$@""#, bytes / 512);
        let mut limited = Command::new("sh");
        limited.args(["-c", &script]).arg(cp.get_program());
        limited.args(cp.get_args()).env_clear();
        let set = cp
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?)));
        let ended = limited.envs(set).output().unwrap();
        let signal = ended.status.signal();
        assert_eq!(signal, Some(Signal::XFSZ.as_raw()), "{}", stderr(&ended));
    }

    fn assert_object(&self) {
        let object = std::fs::read(self.path("origin/dir/object")).unwrap();
        assert!(object == self.content, "the object differs from the source");
    }

    fn assert_nothing_open(&self) {
        assert_eq!(self.journal(), Vec::<PathBuf>::new());
        let staged = files(&self.path("origin/.bywash/uploads"), "");
        assert_eq!(staged, Vec::<PathBuf>::new());
    }
}

/// A condition: the journal has grown by `records` since it was first observed.
fn grown(records: u64) -> impl Fn(&UploadFixture) -> bool {
    let first = std::cell::Cell::new(0);
    move |fixture| {
        let length = fixture.journal_bytes();
        if first.get() == 0 {
            first.set(length);
        }
        // Length of the smallest record.
        length > 0 && length >= first.get() + records * 32
    }
}

/// Returns bytes in which all pieces of 1 MiB differ.
fn content(length: usize) -> Vec<u8> {
    let mut piece = vec![0; 1 << 20];
    rand::Rng::fill_bytes(&mut StdRng::seed_from_u64(1), &mut piece);
    let mut content = Vec::with_capacity(length);
    for index in 0_u64.. {
        let room = length - content.len();
        if room == 0 {
            break;
        }
        piece[..8].copy_from_slice(&index.to_le_bytes());
        content.extend_from_slice(&piece[..room.min(piece.len())]);
    }
    content
}

fn kill(child: &Child) {
    kill_process(Pid::from_child(child), Signal::KILL).unwrap();
}

fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect()
}

#[test]
fn killed_copy_is_resumed_by_another_process() {
    let repeat = "cargo test -p bywash-cli --test it killed_copy_is_resumed";
    let proof = Proof::new("copy-kills", repeat, 4_711..4_712, &KILL_AFTER);
    while let Some(mut trial) = proof.next() {
        kill_copies(&mut trial);
    }
}

/// When copies are killed.
const KILL_AFTER: [&str; 2] = ["kill after bytes", "kill after records"];

fn kill_copies(trial: &mut Trial<'_>) {
    let seed = trial.seed();
    let kills = setting("BYWASH_KILLS", KILLS);
    let mut random = StdRng::seed_from_u64(seed);
    let length = 64 * MIB + 12_345;
    let (mut round, mut killed) = (0, [0_u64; 2]);
    // On a busy machine most copies end before their kill; more rounds are then run.
    let few = |killed: [u64; 2]| killed.iter().any(|killed| killed * 6 < kills);
    while round < kills || (few(killed) && round < 20 * kills) {
        let fixture = UploadFixture::new(length);
        // Kills after some bytes are in the folder, or after some records are in the journal.
        let (bytes, records) = if round % 2 == 0 {
            (random.random_range(0..length), 0)
        } else {
            (0, random.random_range(0..5_u64))
        };
        let began = |fixture: &UploadFixture| !fixture.journal().is_empty();
        let was_killed = if round % 2 == 0 {
            fixture.kill_when(fixture.cp(), |fixture| {
                began(fixture) && fixture.staged_bytes() >= bytes
            })
        } else {
            fixture.kill_when(fixture.cp(), grown(records))
        };
        let case = format!("seed {seed} round {round}: {bytes} bytes, {records} records");
        let staged = fixture.staged_bytes();
        let (output, printed) = fixture.uploads(&["resume", "--all"]);
        assert!(output.status.success(), "{case}: {}", stderr(&output));
        if was_killed && !printed.is_empty() {
            let class = usize::from(round % 2 == 1);
            killed[class] += 1;
            trial.fault(KILL_AFTER[class], 1);
            let number = |name: &str| printed[0][name].as_u64().unwrap();
            assert_eq!(
                (printed.len(), &printed[0]["ok"]),
                (1, &true.into()),
                "{case}"
            );
            assert_eq!(printed[0]["url"], fixture.url(), "{case}");
            assert_eq!(
                number("resumed_bytes") + number("sent_bytes"),
                length,
                "{case}"
            );
            // Only chunks that were in flight are sent again.
            let again = staged.saturating_sub(number("resumed_bytes"));
            assert!(
                again <= PARALLEL * CHUNK_BYTES,
                "{case}: {again} bytes were sent again"
            );
        }
        fixture.assert_object();
        fixture.assert_nothing_open();
        trial.operations(1);
        round += 1;
    }
    assert!(
        !few(killed),
        "only {killed:?} of {round} copies were killed midway"
    );
}

/// Starts a copy from a pipe, writes more than two chunks, and keeps the pipe open.
fn piped(fixture: &UploadFixture) -> (Child, std::process::ChildStdin) {
    let mut cp = fixture
        .bywash(&["--log", "trace", "cp", "-", &fixture.url()])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = cp.stdin.take().unwrap();
    stdin.write_all(&fixture.content).unwrap();
    while fixture.journal().is_empty() {
        assert!(cp.try_wait().unwrap().is_none(), "the copy ended");
        std::thread::yield_now();
    }
    (cp, stdin)
}

#[test]
fn upload_of_a_live_process_is_left_to_it_and_one_from_a_pipe_is_not_resumed() {
    let fixture = UploadFixture::new(97 * MIB);
    let (cp, stdin) = piped(&fixture);
    let (_, listed) = fixture.uploads(&["list"]);
    assert_eq!(listed[0]["alive"], true);
    assert_eq!(listed[0]["process"], cp.id());
    let id = listed[0]["id"].as_str().unwrap();
    for args in [["resume", id], ["resume", "--all"], ["abort", id]] {
        let (output, _) = fixture.uploads(&args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let message = stderr(&output);
        let process = format!("process {}", cp.id());
        assert!(message.contains(&process), "{args:?}: {message}");
    }
    let token = files(&fixture.path("origin/.bywash/uploads"), "");
    let token = token[0].file_name().unwrap().to_str().unwrap().to_owned();

    kill(&cp);
    let ended = cp.wait_with_output().unwrap();
    drop(stdin);
    let (output, printed) = fixture.uploads(&["resume", "--all"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(printed[0]["ok"], false);
    assert!(
        printed[0]["error"].as_str().unwrap().contains("pipe"),
        "{printed:?}"
    );
    let shown = fixture.bywash(&["uploads", "list"]).output().unwrap();
    assert!(
        stdout(&shown).contains("cannot be rewound"),
        "{}",
        stdout(&shown)
    );
    for text in [
        stdout(&shown),
        stderr(&ended),
        stderr(&output),
        format!("{printed:?} {listed:?}"),
    ] {
        assert!(
            !text.contains(&token),
            "the session's token is shown: {text}"
        );
    }
    let (output, _) = fixture.uploads(&["abort", id]);
    assert!(output.status.success(), "{}", stderr(&output));
    fixture.assert_nothing_open();
    assert!(!fixture.path("origin/dir/object").exists());
}

#[test]
fn resume_with_a_changed_source_names_it_and_keeps_the_upload() {
    let fixture = UploadFixture::new(40 * MIB);
    fixture.kill_at(2 * CHUNK_BYTES);
    let mut source = std::fs::OpenOptions::new()
        .append(true)
        .open(fixture.path("source"))
        .unwrap();
    source.write_all(b"more").unwrap();
    let (output, printed) = fixture.uploads(&["resume", "--all"]);
    assert_eq!(output.status.code(), Some(1));
    let error = printed[0]["error"].as_str().unwrap();
    let source = fixture.path("source");
    assert!(
        error.contains(source.to_str().unwrap()) && error.contains("size"),
        "{error}"
    );
    assert_eq!(fixture.journal().len(), 1);
    assert!(!fixture.path("origin/dir/object").exists());
}

#[test]
fn torn_journal_is_resumed_and_a_damaged_one_reported() {
    let fixture = UploadFixture::new(97 * MIB);
    // At the start of the last chunk, which is sent only once the chunks up to the ninth are acknowledged.
    fixture.kill_at(12 * CHUNK_BYTES);
    let file = fixture.journal().remove(0);
    let whole = std::fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x10;
    std::fs::write(&file, &flipped).unwrap();
    let (output, printed) = fixture.uploads(&["resume", "--all"]);
    assert_eq!(output.status.code(), Some(1));
    let error = printed[0]["error"].as_str().unwrap();
    assert!(error.contains("damaged"), "{error}");
    let (output, listed) = fixture.uploads(&["list"]);
    assert!(output.status.success());
    assert!(listed[0]["problem"].as_str().unwrap().contains("damaged"));
    assert_eq!(
        std::fs::read(&file).unwrap(),
        flipped,
        "nothing was changed"
    );

    std::fs::write(&file, &whole[..whole.len() - 3]).unwrap();
    let (output, printed) = fixture.uploads(&["resume", "--all"]);
    assert!(output.status.success(), "{printed:?}");
    assert!(printed[0]["resumed_bytes"].as_u64().unwrap() >= 9 * CHUNK_BYTES);
    fixture.assert_object();
    fixture.assert_nothing_open();
}

#[test]
fn sweep_drops_old_uploads_in_the_journal_and_at_the_store() {
    let fixture = UploadFixture::new(40 * MIB);
    fixture.kill_at(2 * CHUNK_BYTES);
    let origin = format!("file://{}", fixture.path("origin").display());
    let (output, printed) = fixture.uploads(&["sweep", "--older-than", "7d", &origin]);
    assert!(output.status.success() && printed.is_empty(), "{printed:?}");
    assert_eq!(fixture.journal().len(), 1);

    // An orphan: its bytes are in the folder store, without a journal.
    std::fs::remove_file(&fixture.journal()[0]).unwrap();
    let (output, printed) = fixture.uploads(&["sweep", "--older-than", "0s", &origin]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(printed[0]["url"], fixture.url());
    assert_eq!(printed[0]["id"], Value::Null);
    fixture.assert_nothing_open();

    fixture.kill_at(2 * CHUNK_BYTES);
    let (output, printed) = fixture.uploads(&["sweep", "--older-than", "0s"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        (printed.len(), &printed[0]["url"]),
        (1, &fixture.url().into())
    );
    fixture.assert_nothing_open();
}

#[test]
fn sweep_reports_a_damaged_session_of_the_server_and_drops_the_rest() {
    let fixture = UploadFixture::new(40 * MIB);
    fixture.kill_at(2 * CHUNK_BYTES);
    std::fs::remove_file(&fixture.journal()[0]).unwrap();
    let sessions = fixture.path("data/gcs-sessions");
    std::fs::create_dir(&sessions).unwrap();
    let damaged = sessions.join(format!("{}.open", "0".repeat(64)));
    std::fs::write(&damaged, "no line").unwrap();
    let origin = format!("file://{}", fixture.path("origin").display());
    let (output, printed) = fixture.uploads(&["sweep", "--older-than", "0s", &origin]);
    assert!(!output.status.success());
    assert_eq!(printed[0]["url"], fixture.url());
    let named = damaged.display().to_string();
    let error = format!("{}{}", stderr(&output), stdout(&output));
    assert!(error.contains(&named), "{error}");
    fixture.assert_nothing_open();
    assert!(damaged.exists(), "nothing of the server is changed");
}

#[test]
fn small_file_needs_no_journal_and_unknown_id_fails() {
    let fixture = UploadFixture::new(1000);
    let output = fixture.cp().output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    fixture.assert_object();
    assert!(!fixture.path("data").exists(), "one put needs no journal");
    let (output, listed) = fixture.uploads(&["list"]);
    assert!(output.status.success() && listed.is_empty());
    for args in [["resume", "nothing"], ["abort", "../x"]] {
        let (output, _) = fixture.uploads(&args);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    }
    let (output, _) = fixture.uploads(&["resume"]);
    assert_eq!(output.status.code(), Some(2));
}
