#![no_main]
libfuzzer_sys::fuzz_target!(|description: &str| stepvault_formats_fuzz::watched(description));
