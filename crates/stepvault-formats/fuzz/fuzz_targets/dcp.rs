#![no_main]
use stepvault_formats::structure::dcp;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::directory(
    bytes,
    &[".metadata", "__0_0.distcp", "__1_0.distcp"],
    |tree, path, files| dcp::check(tree, path, files).map(drop).map_err(Into::into)
));
