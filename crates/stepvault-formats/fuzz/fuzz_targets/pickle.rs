#![no_main]
use stepvault_formats::structure::pickle_file;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::file(bytes, pickle_file::check));
