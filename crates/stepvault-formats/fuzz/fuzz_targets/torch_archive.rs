#![no_main]
use stepvault_formats::structure::torch_zip;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let archive =
        stepvault_formats_fuzz::archive(bytes, &["a/data.pkl", "a/byteorder", "a/version", "a/data/0"]);
    stepvault_formats_fuzz::file(&archive, torch_zip::check);
});
