#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| stepvault_core_fuzz::models::check(text));
