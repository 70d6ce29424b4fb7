#![no_main]
use stepvault_formats::structure::json::{self, Root};
libfuzzer_sys::fuzz_target!(
    |bytes: &[u8]| stepvault_formats_fuzz::file(bytes, |file| json::check(file, Root::Any))
);
