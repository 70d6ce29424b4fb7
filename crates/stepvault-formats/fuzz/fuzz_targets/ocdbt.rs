#![no_main]
use stepvault_formats::structure::ocdbt;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::directory_with_checksums(
    bytes,
    &["manifest.ocdbt", "d/1"],
    ocdbt::check
));
