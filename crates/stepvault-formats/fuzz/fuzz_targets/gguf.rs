#![no_main]
use stepvault_formats::structure::gguf;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::file(bytes, gguf::check));
