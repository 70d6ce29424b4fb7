//! Answers of stores, changed at random: the checks of the fuzz target, on every compiler and at every change.
#![allow(
    unreachable_pub,
    missing_docs,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]

#[path = "../../fuzz/src/answers.rs"]
mod answers;
#[path = "../../fuzz/src/server.rs"]
mod server;

#[test]
fn answers() {
    stepvault_testkit::mutations::assert_holds(&answers::seeds(), answers::check);
}

/// Found by chance, on a fresh clone: a listing of uploads with a key that only looks like one of the prefix's. `gc` would
/// have aborted somebody else's upload.
#[test]
fn an_upload_outside_the_prefix_is_not_passed_on() {
    const PENDING: &str = "200\n\n<ListMultipartUploadsResult><Upload><Key>prefix/runFa</Key><UploadId>1</UploadId>\
        <Initiated>2026-11-21T10:16:00.000Z</Initiated></Upload></ListMultipartUploadsResult>";
    const OBJECTS: &str = "200\n\n<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>prefix/runFa</Key>\
        <Size>4</Size><LastModified>2026-11-21T10:16:00.000Z</LastModified></Contents></ListBucketResult>";
    const JSON: &str = "200\n\n{\"kind\": \"storage#objects\", \"items\": [{\"name\": \"prefix/runFa\", \
        \"generation\": \"1\", \"updated\": \"2026-11-21T10:16:00Z\"}, {\"name\": \
        \"prefix/.stepvault-uploads/runFa/json-0123456789abcdef0123456789abcdef/begun\", \
        \"generation\": \"1\", \"updated\": \"2026-11-21T10:16:00Z\"}]}";
    // Google lists uploads in XML or in JSON, as they are written, and objects always in JSON.
    for (store, pending, objects) in [(0, PENDING, OBJECTS), (1, PENDING, JSON), (2, JSON, JSON)] {
        for (what, answer) in [(4, pending), (0, objects)] {
            let which = u8::try_from(what * answers::STORES + store).unwrap();
            answers::told(&[&[which], answer.as_bytes()].concat()).unwrap();
        }
    }
}

/// Neither refusals alone nor answers that say nothing.
#[test]
fn seeds_of_every_store_are_understood_and_others_are_not() {
    for store in 0..answers::STORES {
        let seeds = answers::seeds();
        let seeds = seeds.iter().filter(|seed| usize::from(seed[0]) % answers::STORES == store);
        let told: Vec<String> = seeds
            .map(|seed| {
                answers::told(seed).map_or_else(|error| error.to_string(), |()| "understood".to_owned())
            })
            .collect();
        let understood = told.iter().filter(|told| *told == "understood").count();
        assert!(understood >= 4 && understood < told.len(), "{told:#?}");
    }
}
