#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bywash_gateway::fuzzing::jwt(bytes));
