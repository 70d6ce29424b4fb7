//! Objects through the JSON API, by hand: what a request states has to agree, listings, deletions, compositions.

use serde_json::{Value, json};
use stepvault_testkit::gcs::{StrictGcs, StrictGcsOptions};

use crate::raw::{Answer, send};
use crate::{BUCKET, crc32c_base64, server, server_with, stored};

const JSON: (&str, &str) = ("Content-Type", "application/json");

async fn put(server: &StrictGcs, key: &str, body: &[u8]) -> String {
    let answer = send(server, "PUT", &format!("/{BUCKET}/{key}"), &[], body).await;
    answer.header("x-goog-generation").expect("a generation").to_owned()
}

async fn get(server: &StrictGcs, path: &str) -> Answer {
    send(server, "GET", &format!("/storage/v1/b/{BUCKET}{path}"), &[], b"").await
}

async fn delete(server: &StrictGcs, path: &str) -> u16 {
    let path = format!("/storage/v1/b/{BUCKET}{path}");
    send(server, "DELETE", &path, &[], b"").await.status
}

async fn compose(server: &StrictGcs, target: &str, document: &Value) -> Answer {
    let path = format!("/storage/v1/b/{BUCKET}/o/{target}");
    send(server, "POST", &path, &[JSON], document.to_string().as_bytes()).await
}

fn named(names: &[&str]) -> Value {
    names.iter().map(|name| json!({ "name": name })).collect()
}

/// Returns status and reason of a refusal.
fn refusal(answer: &Answer) -> (u16, String) {
    let reason = answer.json()["error"]["errors"][0]["reason"].clone();
    (answer.status, reason.as_str().unwrap_or_default().to_owned())
}

async fn insert(server: &StrictGcs, query: &str, resource: &Value, media_type: &str) -> Answer {
    let body = format!(
        "--b\r\nContent-Type: application/json\r\n\r\n{resource}\r\n--b\r\n{media_type}\r\nhello\r\n--b--\r\n"
    );
    let headers = [("Content-Type", "multipart/related; boundary=b")];
    let path = format!("/upload/storage/v1/b/{BUCKET}/o?{query}");
    send(server, "POST", &path, &headers, body.as_bytes()).await
}

#[tokio::test]
async fn what_an_upload_states_twice_has_to_agree() {
    let server = server();
    let text = "Content-Type: text/plain\r\n";
    for (query, resource, media_type) in [
        ("uploadType=multipart&name=a", json!({ "name": "b" }), ""),
        ("uploadType=multipart&name=a", json!({ "contentType": "image/png" }), text),
    ] {
        let answer = insert(&server, query, &resource, media_type).await;
        assert_eq!(refusal(&answer), (400, "invalid".to_owned()), "{resource}");
    }
    let start = format!("/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&name=a");
    for (resource, header) in [
        (json!({ "name": "b" }), JSON),
        (json!({ "contentType": "image/png" }), ("X-Upload-Content-Type", "text/plain")),
    ] {
        let answer = send(&server, "POST", &start, &[header], resource.to_string().as_bytes()).await;
        assert_eq!(refusal(&answer), (400, "invalid".to_owned()), "{resource}");
    }
    assert_eq!(stored(&server, "a"), None);
    let both = json!({ "name": "a", "contentType": "text/plain" });
    let answer = insert(&server, "uploadType=multipart&name=a", &both, text).await;
    assert_eq!(answer.json()["contentType"], "text/plain", "{}", answer.text());
    // Google's own library states no type for the media.
    let answer = insert(&server, "uploadType=multipart&name=b", &both_but_name(), "").await;
    assert_eq!(answer.json()["contentType"], "text/plain", "{}", answer.text());
}

fn both_but_name() -> Value {
    json!({ "contentType": "text/plain" })
}

#[tokio::test]
async fn an_upload_has_a_known_type() {
    let server = server();
    let answer = insert(&server, "name=a", &json!({}), "").await;
    assert_eq!(refusal(&answer), (400, "required".to_owned()));
    let answer = insert(&server, "uploadType=other&name=a", &json!({}), "").await;
    assert_eq!(refusal(&answer), (400, "invalid".to_owned()));
}

#[tokio::test]
async fn reads_ask_for_a_generation_and_for_what_they_do_not_have() {
    let server = server();
    let generation = put(&server, "a", b"hello").await;
    for path in ["/o/a?", "/o/a?alt=media&"] {
        for (query, status) in [
            (format!("generation={generation}"), 200),
            ("generation=1".to_owned(), 404),
            (format!("ifGenerationMatch={generation}"), 200),
            ("ifGenerationMatch=1".to_owned(), 412),
            (format!("ifGenerationNotMatch={generation}"), 304),
            ("ifGenerationNotMatch=1".to_owned(), 200),
            ("ifMetagenerationNotMatch=1".to_owned(), 304),
        ] {
            let answer = get(&server, &format!("{path}{query}")).await;
            assert_eq!(answer.status, status, "{path}{query}");
        }
    }
    let path = format!("/download/storage/v1/b/{BUCKET}/o/a?alt=media");
    assert_eq!(send(&server, "GET", &path, &[], b"").await.body, b"hello");
}

#[tokio::test]
async fn listings_have_pages_prefixes_and_selected_fields() {
    let server = server_with(StrictGcsOptions { list_page_size: 2, ..StrictGcsOptions::default() });
    for key in ["d%2Fa", "d%2Fb%2Fc", "d%2Fb%2Fd", "e"] {
        put(&server, key, b"x").await;
    }
    let first = get(&server, "/o?prefix=d%2F&fields=nextPageToken,items(name,size)").await.json();
    assert_eq!(first["items"], json!([{ "name": "d/a", "size": "1" }, { "name": "d/b/c", "size": "1" }]));
    assert_eq!(first.get("kind"), None, "it was not selected");
    let token = first["nextPageToken"].as_str().expect("a token");
    let second = get(&server, &format!("/o?prefix=d%2F&pageToken={token}")).await.json();
    assert_eq!(second["items"][0]["name"], "d/b/d");
    assert_eq!((second.get("nextPageToken"), &second["kind"]), (None, &json!("storage#objects")));
    let directories = get(&server, "/o?prefix=d%2F&delimiter=%2F").await.json();
    assert_eq!(directories["prefixes"], json!(["d/b/"]));
    let none = get(&server, "/o?prefix=none").await.json();
    assert_eq!(none, json!({ "kind": "storage#objects" }), "an empty list is left out");
    for (query, wanted) in [
        ("pageToken=%21", (400, "invalid")),
        ("maxResults=0", (400, "invalid")),
        ("maxResults=x", (400, "invalid")),
        ("fields=items(name", (400, "invalidParameter")),
    ] {
        let answer = get(&server, &format!("/o?{query}")).await;
        assert_eq!(refusal(&answer), (wanted.0, wanted.1.to_owned()), "{query}");
    }
    let missing = send(&server, "GET", "/storage/v1/b/none/o", &[], b"").await;
    assert_eq!(refusal(&missing), (404, "notFound".to_owned()));
}

#[tokio::test]
async fn deletions_hold_their_conditions() {
    let server = server();
    let generation = put(&server, "a", b"x").await;
    assert_eq!(delete(&server, "/o/none").await, 404);
    assert_eq!(delete(&server, "/o/a?generation=1").await, 404);
    assert_eq!(delete(&server, "/o/a?ifGenerationMatch=1").await, 412);
    assert!(stored(&server, "a").is_some());
    assert_eq!(delete(&server, &format!("/o/a?ifGenerationMatch={generation}")).await, 204);
    assert_eq!(stored(&server, "a"), None);
}

#[tokio::test]
async fn compositions_join_in_order_and_compositions_too() {
    let server = server();
    put(&server, "a", b"one").await;
    put(&server, "b", b"two").await;
    let answer = compose(&server, "c/compose", &json!({ "sourceObjects": named(&["b", "a", "b"]) })).await;
    let object = answer.json();
    assert_eq!(stored(&server, "c").as_deref(), Some(b"twoonetwo".as_slice()));
    assert_eq!(object["crc32c"], crc32c_base64(b"twoonetwo"));
    assert_eq!((object.get("md5Hash"), &object["componentCount"]), (None, &json!(3)));
    let answer = compose(&server, "d/compose", &json!({ "sourceObjects": named(&["c", "a"]) })).await;
    assert_eq!(answer.json()["componentCount"], 4);
    let read = send(&server, "GET", &format!("/{BUCKET}/d"), &[], b"").await;
    assert_eq!(read.header("x-goog-component-count"), Some("4"));
    assert_eq!(read.body, b"twoonetwoone");
}

#[tokio::test]
async fn a_composition_takes_1_to_32_sources() {
    let server = server();
    put(&server, "a", b"x").await;
    for (count, wanted) in [(0, (400, "required")), (33, (400, "invalid"))] {
        let answer =
            compose(&server, "c/compose", &json!({ "sourceObjects": named(&vec!["a"; count]) })).await;
        assert_eq!(refusal(&answer), (wanted.0, wanted.1.to_owned()), "{count}");
    }
    let answer = compose(&server, "c/compose", &json!({})).await;
    assert_eq!(refusal(&answer), (400, "required".to_owned()));
    assert_eq!(stored(&server, "c"), None);
    let answer = compose(&server, "c/compose", &json!({ "sourceObjects": named(&["a"; 32]) })).await;
    assert_eq!(answer.status, 200);
    assert_eq!(stored(&server, "c").map(|body| body.len()), Some(32));
}

#[tokio::test]
async fn compositions_hold_the_conditions_of_target_and_sources() {
    let server = server();
    let generation = put(&server, "a", b"x").await;
    put(&server, "taken", b"y").await;
    let of = |source: Value| json!({ "sourceObjects": [source] });
    let plain = of(json!({ "name": "a" }));
    for (target, document, wanted) in [
        ("taken/compose?ifGenerationMatch=0", plain.clone(), (412, "conditionNotMet")),
        ("c/compose?ifMetagenerationMatch=7", plain.clone(), (412, "conditionNotMet")),
        ("c/compose", of(json!({ "name": "none" })), (404, "notFound")),
        ("c/compose", of(json!({ "generation": generation })), (400, "required")),
        ("c/compose", of(json!({ "name": "a", "generation": "1" })), (404, "notFound")),
        ("c/compose", of(json!({ "name": "a", "generation": "x" })), (400, "invalid")),
        (
            "c/compose",
            of(json!({ "name": "a", "objectPreconditions": { "ifGenerationMatch": "1" } })),
            (412, "conditionNotMet"),
        ),
        (
            "c/compose",
            json!({ "sourceObjects": named(&["a"]), "destination": { "name": "d" } }),
            (400, "invalid"),
        ),
        (
            "c/compose",
            json!({ "sourceObjects": named(&["a"]), "destination": { "crc32c": crc32c_base64(b"other") } }),
            (400, "invalid"),
        ),
        (
            "c/compose",
            json!({ "sourceObjects": named(&["a"]), "deleteSourceObjects": true }),
            (501, "NotImplemented"),
        ),
    ] {
        let answer = compose(&server, target, &document).await;
        assert_eq!(refusal(&answer), (wanted.0, wanted.1.to_owned()), "{target}: {document}");
    }
    assert_eq!((stored(&server, "c"), stored(&server, "taken")), (None, Some(b"y".to_vec())));
    let right = json!({ "name": "a", "generation": generation,
        "objectPreconditions": { "ifGenerationMatch": generation } });
    assert_eq!(compose(&server, "c/compose?ifGenerationMatch=0", &of(right)).await.status, 200);
}

#[tokio::test]
async fn all_objects_of_a_composition_have_one_storage_class() {
    let server = server();
    put(&server, "a", b"x").await;
    let class = ("x-goog-storage-class", "NEARLINE");
    send(&server, "PUT", &format!("/{BUCKET}/cold"), &[class], b"y").await;
    for document in [
        json!({ "sourceObjects": named(&["a", "cold"]) }),
        json!({ "sourceObjects": named(&["a"]), "destination": { "storageClass": "NEARLINE" } }),
    ] {
        let answer = compose(&server, "c/compose", &document).await;
        assert_eq!(refusal(&answer), (400, "invalid".to_owned()), "{document}");
    }
    let answer = compose(&server, "c/compose", &json!({ "sourceObjects": named(&["cold"]) })).await;
    assert_eq!(answer.json()["storageClass"], "NEARLINE", "it is the sources'");
}
