#![no_main]
use stepvault_formats::structure::orbax;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::directory(
    bytes,
    &["_CHECKPOINT_METADATA", "d/_METADATA", "d/w/.zarray", "d/w/0"],
    orbax::check
));
