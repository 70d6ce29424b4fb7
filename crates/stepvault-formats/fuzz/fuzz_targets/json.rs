#![no_main]
use stepvault_formats::structure::json;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::file(bytes, json::check));
