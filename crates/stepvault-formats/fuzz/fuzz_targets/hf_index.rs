#![no_main]
use stepvault_formats::structure::hf_index;
const INDEX: &str = "model.safetensors.index.json";
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_formats_fuzz::directory(
    bytes,
    &[INDEX, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
    |tree, path, files| hf_index::check(tree, &format!("{path}/{INDEX}"), files)
));
