//! The upload as a blocking `std::io::Write`, from a thread without a runtime.

use std::io::Write;

use bywash::{OriginError, OriginUrl, UploadOptions};
use object_store::path::Path;

use super::fake::{Fake, IN_ORDER, SessionFault, crc32c};

#[allow(dead_code, reason = "the example's own command line")]
#[path = "../../../examples/blocking_writer.rs"]
mod blocking_writer;

const CHUNK: usize = 1_000;

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn blocking_writer_stores_the_bytes_of_any_writes_and_only_finish_completes() {
    let runtime = runtime();
    for piece in [1, 7, 999, 1_000, 1_001, 2_500] {
        let fake = Fake::with(
            &[SessionFault::Keep(3), SessionFault::LoseAfter(500)],
            &[SessionFault::LoseResponse],
        );
        let path = Path::from("blocking");
        let upload = runtime.block_on(fake.bucket(CHUNK).upload(&path, UploadOptions::default()));
        let mut writer = upload.unwrap().into_blocking_writer(runtime.handle());
        let body = bywash_support::pattern(5, 4 * CHUNK + 3);
        for piece in body.chunks(piece) {
            writer.write_all(piece).unwrap();
        }
        writer.flush().unwrap();
        assert_eq!(
            runtime.block_on(fake.object(&path)),
            None,
            "a flush is no end"
        );
        assert_eq!(writer.upload().position(), body.len() as u64);
        let result = writer.finish().unwrap();
        assert_eq!((result.crc32c, result.buffers), (crc32c(&body), 1));
        assert_eq!(runtime.block_on(fake.object(&path)).unwrap(), body);
    }
}

#[test]
fn failed_blocking_write_has_accepted_nothing_and_a_drop_finishes_nothing() {
    let runtime = runtime();
    let fake = Fake::new(IN_ORDER);
    let path = Path::from("blocking");
    let options = UploadOptions {
        length: Some(2 * CHUNK as u64),
        ..UploadOptions::default()
    };
    let upload = runtime.block_on(fake.bucket(CHUNK).upload(&path, options));
    let mut writer = upload.unwrap().into_blocking_writer(runtime.handle());
    let body = bywash_support::pattern(6, 2 * CHUNK);
    writer.write_all(&body[..CHUNK]).unwrap();
    fake.state.lock().sends.push_back(SessionFault::Refuse);
    let error = writer.write(&body[CHUNK..]).unwrap_err();
    assert!(error.to_string().contains("403"), "{error}");
    writer.write_all(&body[CHUNK..]).unwrap();
    let error = writer.write(b"more").unwrap_err();
    let error = error.get_ref().unwrap();
    let found = OriginError::find(error.downcast_ref().unwrap());
    assert!(
        matches!(found, Some(OriginError::LengthMismatch { .. })),
        "{found:?}"
    );
    drop(writer);
    assert_eq!(runtime.block_on(fake.object(&path)), None);
    assert_eq!(fake.open_sessions(), 1, "left for a process with its token");
}

#[test]
fn example_writes_lines_from_a_thread_without_a_runtime() {
    let home = tempfile::tempdir().unwrap();
    let origin = OriginUrl::File(home.path().to_owned());
    let lines = 200_000;
    let path = Path::from("dir/lines.csv");
    let written = blocking_writer::write_lines(&origin, &path, lines).unwrap();
    let object = std::fs::read(home.path().join("dir/lines.csv")).unwrap();
    assert_eq!(
        (written.length, written.crc32c),
        (object.len() as u64, crc32c(&object))
    );
    assert!(object.len() > 3 << 20, "several chunks of either length");
    let text = String::from_utf8(object).unwrap();
    assert_eq!(text.lines().count() as u64, lines + 1);
    assert_eq!(text.lines().last(), Some("199999,39999600001"));
}
