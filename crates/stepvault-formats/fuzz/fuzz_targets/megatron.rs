#![no_main]
use stepvault_formats::structure::megatron;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::directory(
    bytes,
    &["integrity.json", ".metadata", "metadata.json"],
    megatron::check
));
