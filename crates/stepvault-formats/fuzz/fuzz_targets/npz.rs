#![no_main]
use stepvault_formats::structure::npz;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    stepvault_formats_fuzz::file(bytes, npz::check);
    let archive = stepvault_formats_fuzz::archive(bytes, &["arr_0.npy", "arr_1.npy"]);
    stepvault_formats_fuzz::file(&archive, npz::check);
});
