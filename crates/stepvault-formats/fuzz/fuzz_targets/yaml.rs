#![no_main]
use stepvault_formats::structure::yaml;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::file(bytes, yaml::check));
