#![no_main]
use stepvault_formats::structure::tf_bundle;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let table = stepvault_formats_fuzz::table(bytes);
    stepvault_formats_fuzz::directory(&table, &["x.index"], |tree, path, files| {
        tf_bundle::check(tree, &format!("{path}/x"), files)
    });
});
