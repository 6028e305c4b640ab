#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bywash_store::fuzzing::response(bytes));
