//! Copies by `rewriteTo`, by hand.

use stepvault_testkit::gcs::StrictGcsOptions;

use crate::raw::{Answer, send};
use crate::{BUCKET, crc32c_base64, payload, server, server_with, stored};

async fn put(server: &stepvault_testkit::gcs::StrictGcs, key: &str, body: &[u8]) -> String {
    let answer = send(server, "PUT", &format!("/{BUCKET}/{key}"), &[], body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("x-goog-generation").unwrap().to_owned()
}

async fn rewrite(
    server: &stepvault_testkit::gcs::StrictGcs,
    from: &str,
    to: &str,
    query: &str,
    body: &[u8],
) -> Answer {
    let path = format!("/storage/v1/b/{BUCKET}/o/{from}/rewriteTo/b/{BUCKET}/o/{to}?{query}");
    send(server, "POST", &path, &[], body).await
}

#[tokio::test]
async fn a_copy_has_the_bytes_and_says_so() {
    let server = server();
    put(&server, "a%2Fb", &payload(1_000)).await;
    let answer = rewrite(&server, "a%2Fb", "c%2Fd", "ifGenerationMatch=0", b"").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    assert_eq!(answer["done"], true);
    assert_eq!(answer["totalBytesRewritten"], "1000");
    assert_eq!(answer["resource"]["crc32c"], crc32c_base64(&payload(1_000)));
    assert_eq!(stored(&server, "c/d"), Some(payload(1_000)));
}

#[tokio::test]
async fn the_checksum_of_a_copy_is_that_of_its_bytes() {
    let server = server();
    put(&server, "a", &payload(1_000)).await;
    assert!(server.objects().flip_bit(&format!("{BUCKET}/a"), 5));
    let answer = rewrite(&server, "a", "b", "", b"").await.json();
    assert_ne!(answer["resource"]["crc32c"], crc32c_base64(&payload(1_000)));
}

#[tokio::test]
async fn there_are_conditions_on_both_ends() {
    let server = server();
    let generation = put(&server, "a", b"one").await;
    put(&server, "taken", b"two").await;
    for (to, query, status) in [
        ("taken", "ifGenerationMatch=0".to_owned(), 412),
        ("b", "ifSourceGenerationMatch=1".to_owned(), 412),
        ("b", "ifSourceGenerationMatch=x".to_owned(), 400),
        ("b", format!("ifSourceGenerationMatch={generation}"), 200),
    ] {
        let answer = rewrite(&server, "a", to, &query, b"").await;
        assert_eq!(answer.status, status, "{query}: {}", answer.text());
    }
    assert_eq!(stored(&server, "taken"), Some(b"two".to_vec()));
    assert_eq!(rewrite(&server, "none", "c", "", b"").await.status, 404);
    assert_eq!(stored(&server, "c"), None);
}

#[tokio::test]
async fn bytes_that_move_take_several_requests() {
    let server = server_with(StrictGcsOptions { rewrite_bytes: 400, ..StrictGcsOptions::default() });
    put(&server, "a", &payload(1_000)).await;
    let class = br#"{"storageClass":"NEARLINE"}"#;
    let mut token = String::new();
    for total in ["400", "800"] {
        let answer = rewrite(&server, "a", "b", &token, class).await.json();
        assert_eq!((&answer["done"], &answer["totalBytesRewritten"]), (&false.into(), &total.into()));
        assert_eq!(stored(&server, "b"), None, "it is there at the end only");
        token = format!("rewriteToken={}", answer["rewriteToken"].as_str().unwrap());
    }
    let answer = rewrite(&server, "a", "b", &token, class).await.json();
    assert_eq!(answer["done"], true);
    assert_eq!(answer["resource"]["storageClass"], "NEARLINE");
    assert_eq!(stored(&server, "b"), Some(payload(1_000)));
    // Within a class nothing moves.
    assert_eq!(rewrite(&server, "b", "c", "", b"").await.json()["done"], true);
}
