#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_core_fuzz::logs::check(bytes));
