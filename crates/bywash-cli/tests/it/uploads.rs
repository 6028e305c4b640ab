//! Copies that are killed, and `bywash uploads`, with the real program and real files.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::common::{bywash, stderr, stdout};
use bywash_support::settings::setting;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// What `cp` makes of a file of this length.
const CHUNK_BYTES: u64 = 8 * MIB;
/// Of which it sends so many side by side.
const PARALLEL: u64 = 4;
/// Kills; `BYWASH_KILLS` says another number, and `BYWASH_SEED` another seed.
const KILLS: u64 = 10;

/// A file to copy, a folder to copy it to, and a data folder.
struct Place {
    home: TempDir,
    content: Vec<u8>,
}

impl Place {
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

    /// Runs `bywash uploads`; gives its outcome and the lines it told.
    fn uploads(&self, args: &[&str]) -> (Output, Vec<Value>) {
        let args = [&["uploads"], args, &["--json"]].concat();
        let output = self.bywash(&args).output().unwrap();
        let told = stdout(&output);
        let lines = told.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines = lines.collect();
        (output, lines)
    }

    /// Journal files there are.
    fn journal(&self) -> Vec<PathBuf> {
        files(&self.path("data/uploads"), ".upload")
    }

    fn journal_bytes(&self) -> u64 {
        self.journal().first().map_or(0, |path| length(path))
    }

    /// Bytes of the object that are in the folder already.
    fn staged_bytes(&self) -> u64 {
        let uploads = files(&self.path("origin/.bywash/uploads"), "");
        uploads.first().map_or(0, |path| length(&path.join("data")))
    }

    /// Starts a copy and kills it once `enough`. Returns whether it was killed before its end.
    fn kill_when(&self, mut cp: Command, enough: impl Fn(&Self) -> bool) -> bool {
        let mut child = cp
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while !enough(self) {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::yield_now();
        }
        kill(&child);
        !child.wait().unwrap().success()
    }

    /// Runs a copy that the system ends when it writes behind so many bytes of a file: no handler runs, as with a kill.
    fn killed_at(&self, bytes: u64) {
        let cp = self.cp();
        // In blocks of 512 bytes.
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

/// Whether the journal has grown by so many records since it was seen first.
fn grown(records: u64) -> impl Fn(&Place) -> bool {
    let first = std::cell::Cell::new(0);
    move |place| {
        let length = place.journal_bytes();
        if first.get() == 0 {
            first.set(length);
        }
        // The smallest record there is.
        length > 0 && length >= first.get() + records * 32
    }
}

/// Bytes of which no two pieces of 1 MiB are the same.
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
fn a_copy_killed_at_any_moment_is_gone_on_with_by_another_process() {
    let seed = setting("BYWASH_SEED", 4_711);
    let kills = setting("BYWASH_KILLS", KILLS);
    let mut random = StdRng::seed_from_u64(seed);
    let length = 64 * MIB + 12_345;
    let (mut round, mut killed) = (0, 0);
    // On a busy machine most copies end before their kill; then there are more of them.
    while round < kills || (killed * 3 < kills && round < 20 * kills) {
        let place = Place::new(length);
        // After some bytes are in the folder, or after some records are in the journal.
        let (bytes, records) = if round % 2 == 0 {
            (random.random_range(0..length), 0)
        } else {
            (0, random.random_range(0..8_u64))
        };
        let began = |place: &Place| !place.journal().is_empty();
        let was_killed = if round % 2 == 0 {
            place.kill_when(place.cp(), |place| {
                began(place) && place.staged_bytes() >= bytes
            })
        } else {
            place.kill_when(place.cp(), grown(records))
        };
        let case = format!("seed {seed} round {round}: {bytes} bytes, {records} records");
        let staged = place.staged_bytes();
        let (output, told) = place.uploads(&["resume", "--all"]);
        assert!(output.status.success(), "{case}: {}", stderr(&output));
        if was_killed && !told.is_empty() {
            killed += 1;
            let number = |name: &str| told[0][name].as_u64().unwrap();
            assert_eq!((told.len(), &told[0]["ok"]), (1, &true.into()), "{case}");
            assert_eq!(told[0]["url"], place.url(), "{case}");
            assert_eq!(
                number("resumed_bytes") + number("sent_bytes"),
                length,
                "{case}"
            );
            // Only chunks that were on their way are sent again.
            let again = staged.saturating_sub(number("resumed_bytes"));
            assert!(
                again <= PARALLEL * CHUNK_BYTES,
                "{case}: {again} bytes were sent again"
            );
        }
        place.assert_object();
        place.assert_nothing_open();
        round += 1;
    }
    assert!(
        killed * 3 >= kills,
        "only {killed} of {round} copies were killed midway"
    );
}

/// A copy from a pipe that is still open, with more than two chunks of it written.
fn piped(place: &Place) -> (Child, std::process::ChildStdin) {
    let mut cp = place
        .bywash(&["--log", "trace", "cp", "-", &place.url()])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = cp.stdin.take().unwrap();
    stdin.write_all(&place.content).unwrap();
    while place.journal().is_empty() {
        assert!(cp.try_wait().unwrap().is_none(), "the copy ended");
        std::thread::yield_now();
    }
    (cp, stdin)
}

#[test]
fn what_a_process_works_on_is_left_to_it_and_a_pipe_is_not_rewound() {
    let place = Place::new(97 * MIB);
    let (cp, stdin) = piped(&place);
    let (_, listed) = place.uploads(&["list"]);
    assert_eq!(listed[0]["alive"], true);
    assert_eq!(listed[0]["process"], cp.id());
    let id = listed[0]["id"].as_str().unwrap();
    for args in [["resume", id], ["resume", "--all"], ["abort", id]] {
        let (output, _) = place.uploads(&args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let told = stderr(&output);
        let process = format!("process {}", cp.id());
        assert!(told.contains(&process), "{args:?}: {told}");
    }
    let token = files(&place.path("origin/.bywash/uploads"), "");
    let token = token[0].file_name().unwrap().to_str().unwrap().to_owned();

    kill(&cp);
    let ended = cp.wait_with_output().unwrap();
    drop(stdin);
    let (output, told) = place.uploads(&["resume", "--all"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(told[0]["ok"], false);
    assert!(
        told[0]["error"].as_str().unwrap().contains("pipe"),
        "{told:?}"
    );
    let shown = place.bywash(&["uploads", "list"]).output().unwrap();
    assert!(
        stdout(&shown).contains("cannot be rewound"),
        "{}",
        stdout(&shown)
    );
    for text in [
        stdout(&shown),
        stderr(&ended),
        stderr(&output),
        format!("{told:?} {listed:?}"),
    ] {
        assert!(
            !text.contains(&token),
            "the session's token is shown: {text}"
        );
    }
    let (output, _) = place.uploads(&["abort", id]);
    assert!(output.status.success(), "{}", stderr(&output));
    place.assert_nothing_open();
    assert!(!place.path("origin/dir/object").exists());
}

#[test]
fn a_source_that_changed_is_named_and_the_upload_stays() {
    let place = Place::new(40 * MIB);
    place.killed_at(2 * CHUNK_BYTES);
    let mut source = std::fs::OpenOptions::new()
        .append(true)
        .open(place.path("source"))
        .unwrap();
    source.write_all(b"more").unwrap();
    let (output, told) = place.uploads(&["resume", "--all"]);
    assert_eq!(output.status.code(), Some(1));
    let error = told[0]["error"].as_str().unwrap();
    let source = place.path("source");
    assert!(
        error.contains(source.to_str().unwrap()) && error.contains("size"),
        "{error}"
    );
    assert_eq!(place.journal().len(), 1);
    assert!(!place.path("origin/dir/object").exists());
}

#[test]
fn a_torn_journal_goes_on_and_a_damaged_one_is_reported() {
    let place = Place::new(97 * MIB);
    // Where the last chunk begins: it is begun only when those up to the ninth are kept.
    place.killed_at(12 * CHUNK_BYTES);
    let file = place.journal().remove(0);
    let whole = std::fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x10;
    std::fs::write(&file, &flipped).unwrap();
    let (output, told) = place.uploads(&["resume", "--all"]);
    assert_eq!(output.status.code(), Some(1));
    let error = told[0]["error"].as_str().unwrap();
    assert!(error.contains("damaged"), "{error}");
    let (output, listed) = place.uploads(&["list"]);
    assert!(output.status.success());
    assert!(listed[0]["problem"].as_str().unwrap().contains("damaged"));
    assert_eq!(
        std::fs::read(&file).unwrap(),
        flipped,
        "nothing was changed"
    );

    std::fs::write(&file, &whole[..whole.len() - 3]).unwrap();
    let (output, told) = place.uploads(&["resume", "--all"]);
    assert!(output.status.success(), "{told:?}");
    assert!(told[0]["resumed_bytes"].as_u64().unwrap() >= 9 * CHUNK_BYTES);
    place.assert_object();
    place.assert_nothing_open();
}

#[test]
fn what_was_left_long_ago_is_swept_here_and_at_the_store() {
    let place = Place::new(40 * MIB);
    place.killed_at(2 * CHUNK_BYTES);
    let origin = format!("file://{}", place.path("origin").display());
    let (output, told) = place.uploads(&["sweep", "--older-than", "7d", &origin]);
    assert!(output.status.success() && told.is_empty(), "{told:?}");
    assert_eq!(place.journal().len(), 1);

    // An orphan: the folder has it, and no journal.
    std::fs::remove_file(&place.journal()[0]).unwrap();
    let (output, told) = place.uploads(&["sweep", "--older-than", "0s", &origin]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(told[0]["url"], place.url());
    assert_eq!(told[0]["id"], Value::Null);
    place.assert_nothing_open();

    place.killed_at(2 * CHUNK_BYTES);
    let (output, told) = place.uploads(&["sweep", "--older-than", "0s"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!((told.len(), &told[0]["url"]), (1, &place.url().into()));
    place.assert_nothing_open();
}

#[test]
fn small_files_and_unknown_ids() {
    let place = Place::new(1000);
    let output = place.cp().output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    place.assert_object();
    assert!(!place.path("data").exists(), "one put needs no journal");
    let (output, listed) = place.uploads(&["list"]);
    assert!(output.status.success() && listed.is_empty());
    for args in [["resume", "nothing"], ["abort", "../x"]] {
        let (output, _) = place.uploads(&args);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    }
    let (output, _) = place.uploads(&["resume"]);
    assert_eq!(output.status.code(), Some(2));
}
