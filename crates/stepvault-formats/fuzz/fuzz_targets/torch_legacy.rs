#![no_main]
use stepvault_formats::structure::torch_legacy;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::file(bytes, torch_legacy::check));
