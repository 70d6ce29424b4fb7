#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stepvault_agent_fuzz::answers::check(bytes));
