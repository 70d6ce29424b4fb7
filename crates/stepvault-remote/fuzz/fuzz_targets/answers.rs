#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_remote_fuzz::answers::check(bytes));
