//! The header matches the library.

use std::path::Path;

#[test]
fn header_is_made_of_the_library() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = cbindgen::generate(crate_dir).expect("the library can be read");
    let mut text = Vec::new();
    made.write(&mut text);
    let path = crate_dir.join("include/bywash.h");
    if std::env::var_os("BYWASH_WRITE_HEADER").is_some() {
        std::fs::write(&path, &text).expect("the header can be written");
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(
        kept == text,
        "include/bywash.h is another: run this test with BYWASH_WRITE_HEADER=1"
    );
}
