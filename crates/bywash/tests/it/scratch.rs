//! Scratch of a program that embeds the engine: the example sorts more than memory holds, and a killed process leaves nothing.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use bywash::{Engine, Scratch, ScratchOptions};

#[allow(dead_code, reason = "the example's own command line")]
#[path = "../../examples/external_sort.rs"]
mod external_sort;

use external_sort::{Sort, check, make, sort};

const MEMORY: u64 = 8 << 20;

#[test]
fn example_sorts_more_records_than_memory_holds() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("rows.txt");
    make(&input, 300_000, 7).unwrap();
    let (before, in_order) = check(&input).unwrap();
    assert!(!in_order && before.records == 300_000);
    let limit = 64 << 20;
    let settings = Sort {
        output: folder.path().join("sorted.txt"),
        input,
        memory: MEMORY,
        scratch: folder.path().join("scratch"),
        disk: limit,
        threads: 2,
    };
    let (sorted, stats) = sort(&settings).unwrap();
    assert_eq!(sorted, before);
    assert_eq!(check(&settings.output).unwrap(), (before, true));
    assert!(stats.written_block_bytes > 20_000_000, "{stats:?}");
    assert_eq!((stats.blocks, stats.slots, stats.disk_bytes), (0, 0, 0));
    let left = std::fs::read_dir(&settings.scratch).unwrap();
    assert_eq!(left.count(), 1, "the lock");
    // The limit of the disk ends it with an error that names it.
    let error = sort(&Sort {
        disk: 4 << 20,
        ..settings
    })
    .unwrap_err()
    .to_string();
    assert!(
        error.contains("of 4194304 bytes are used; raise the limit"),
        "{error}"
    );
}

/// The folder of the process that is killed.
const KILLED: &str = "BYWASH_TEST_SCRATCH";

fn open(folder: &Path) -> (Engine, Scratch) {
    let engine = Engine::builder()
        .memory(MEMORY)
        .block_size(64 << 10)
        .build()
        .unwrap();
    let scratch = engine
        .scratch(&ScratchOptions::new(folder, 64 << 20))
        .unwrap();
    (engine, scratch)
}

/// The body of the next test, which runs it in a process of its own and kills that.
#[test]
fn in_a_killed_process() {
    let Some(folder) = std::env::var_os(KILLED) else {
        return;
    };
    let (_engine, scratch) = open(folder.as_ref());
    let blocks: Vec<_> = (0..256)
        .map(|_| scratch.allocate_blocking(64 << 10).unwrap().unpin())
        .collect();
    println!("blocks {}", blocks.len());
    std::thread::park();
}

#[test]
fn temporary_files_of_a_killed_process_are_removed_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "scratch::in_a_killed_process", "--nocapture"])
        .env(KILLED, folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines
        .map(Result::unwrap)
        .any(|line| line.contains("blocks 256"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ready && files() >= 2, "it had temporary files");
    let (_engine, scratch) = open(folder.path());
    assert_eq!(files(), 1, "the lock");
    let mut buffer = scratch.allocate_blocking(10).unwrap();
    buffer.copy_from_slice(b"0123456789");
    assert_eq!(buffer.unpin().pin_blocking().unwrap()[..], *b"0123456789");
}
