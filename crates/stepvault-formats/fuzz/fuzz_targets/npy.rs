#![no_main]
use stepvault_formats::structure::npy;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::file(bytes, npy::check));
