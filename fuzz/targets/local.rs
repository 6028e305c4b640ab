#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bywash_client::fuzzing::local(bytes));
