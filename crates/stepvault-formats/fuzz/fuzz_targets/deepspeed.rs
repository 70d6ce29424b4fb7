#![no_main]
use stepvault_formats::structure::deepspeed;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let state =
        stepvault_formats_fuzz::archive(bytes, &["a/data.pkl", "a/byteorder", "a/version", "a/data/0"]);
    let mut files = Vec::from((state.len().min(0xffff) as u16).to_le_bytes());
    files.extend(&state);
    files.extend(&state);
    let names = ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"];
    stepvault_formats_fuzz::directory(&files, &names, |tree, path, files| {
        deepspeed::check(tree, path, files).map(drop).map_err(Into::into)
    });
});
