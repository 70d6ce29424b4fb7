#![no_main]
use stepvault_formats::structure::zarr::{self, Presence};
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::directory(
    bytes,
    &["zarr.json", "c/0", "c"],
    |tree, path, files| zarr::check(tree, path, files, Presence::Required)
));
