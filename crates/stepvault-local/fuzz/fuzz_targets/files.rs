#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_local_fuzz::files::check(bytes));
