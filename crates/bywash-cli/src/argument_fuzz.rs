//! Fuzz-like tests of the command line's parsers: damaged arguments are rejected, or parsed and displayed alike. A
//! binary has no library for a fuzzer to call.

use std::str::FromStr;
use std::time::Duration;

use bywash::time::parse_duration;
use bywash_support::fuzz_corpus::run_mutations;

use crate::address::Address;
use crate::size::{self, Memory};
use crate::transfer::byte_range::ByteRange;
use crate::url::Url;

/// All prefixes and damaged forms of valid arguments that are valid UTF-8.
fn words(good: &[&str], take: fn(&[u8])) {
    for good in good {
        take(good.as_bytes());
        run_mutations(good.as_bytes(), take);
    }
}

fn read<T: FromStr<Err = String>>(bytes: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(bytes).ok()?;
    match text.parse() {
        Ok(read) => Some(read),
        Err(why) => {
            assert!(!why.is_empty(), "refused without a word: {text:?}");
            None
        }
    }
}

#[test]
fn addresses_are_refused_or_read_and_written_alike() {
    let good = [
        "s3://bucket/dir/a b+%2F\u{e4}",
        "gs://b/k//l/",
        "s3://a@b/k",
        "az://container/",
        "https://host:80/a/b?sig=x%2F&y#z",
        "file:///dir/a%20file",
        "-",
        "dir/file",
    ];
    words(&good, |bytes| {
        if let Some(address) = read::<Address>(bytes)
            && address.scheme.is_writable()
        {
            let shown = address.to_string();
            assert_eq!(shown.parse::<Address>().as_ref(), Ok(&address), "{shown}");
        }
        let _ = read::<Url>(bytes);
        if let Ok(destination) = Url::destination(&String::from_utf8_lossy(bytes)) {
            assert!(!destination.to_string().is_empty());
        }
    });
}

#[test]
fn sizes_times_and_ranges_are_refused_or_within_bounds() {
    words(
        &["512MiB", "1.5gb", "25%", "18014398509481983K", "7"],
        |bytes| {
            if let Some(memory) = read::<Memory>(bytes)
                && let Memory::Percent(_) = memory
            {
                assert!(memory.bytes(1 << 30) <= 1 << 30);
            }
            if let Ok(text) = std::str::from_utf8(bytes) {
                assert_ne!(size::parse(text), Ok(0));
            }
        },
    );
    words(&["7d", "12h", "18446744073709551615s"], |bytes| {
        if let Some(Ok(duration)) = std::str::from_utf8(bytes).ok().map(parse_duration) {
            assert!(duration < Duration::from_secs(300 * 366 * 24 * 3600));
        }
    });
    words(
        &["0-99", "100-", "-20", "5-18446744073709551615"],
        |bytes| {
            if let Some(range) = read::<ByteRange>(bytes) {
                for size in [0, 1, 100, u64::MAX] {
                    let of = range.of(size);
                    assert!(of.is_none_or(|of| of.start < of.end && of.end <= size));
                }
            }
        },
    );
}
