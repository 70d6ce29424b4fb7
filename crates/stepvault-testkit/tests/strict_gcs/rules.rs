//! The rules for single requests, by hand.

use stepvault_testkit::gcs::StrictGcsOptions;

use crate::raw::send;
use crate::{BUCKET, crc32c_base64, payload, server, server_with, stored};

fn related(resource: &str, media: &[u8], trailing: Option<&str>) -> Vec<u8> {
    let mut body =
        format!("--B\r\nContent-Type: application/json\r\n\r\n{resource}\r\n--B\r\n\r\n").into_bytes();
    body.extend_from_slice(media);
    if let Some(trailing) = trailing {
        body.extend_from_slice(
            format!("\r\n--B\r\nContent-Type: application/json\r\n\r\n{trailing}").as_bytes(),
        );
    }
    body.extend_from_slice(b"\r\n--B--\r\n");
    body
}

const RELATED: (&str, &str) = ("Content-Type", "multipart/related; boundary=B");

fn upload_path(query: &str) -> String {
    format!("/upload/storage/v1/b/{BUCKET}/o?{query}")
}

#[tokio::test]
async fn a_single_shot_upload_checks_every_stated_checksum() {
    let server = server();
    let path = upload_path("uploadType=multipart&name=a");
    let good = format!(r#"{{"crc32c":"{}"}}"#, crc32c_base64(b"hello"));
    let bad = format!(r#"{{"crc32c":"{}"}}"#, crc32c_base64(b"other"));
    let bad_md5 = r#"{"md5Hash":"AAAAAAAAAAAAAAAAAAAAAA=="}"#;

    for body in [
        related(&bad, b"hello", None),
        related(bad_md5, b"hello", None),
        related("{}", b"hello", Some(&bad)),
        related(r#"{"crc32c":"no"}"#, b"hello", None),
    ] {
        let answer = send(&server, "POST", &path, &[RELATED], &body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], 400);
        assert_eq!(stored(&server, "a"), None);
    }
    let header = format!("crc32c={}", crc32c_base64(b"other"));
    let answer =
        send(&server, "POST", &path, &[RELATED, ("x-goog-hash", &header)], &related("{}", b"hello", None))
            .await;
    assert_eq!(answer.status, 400);

    let answer = send(&server, "POST", &path, &[RELATED], &related(&good, b"hello", Some(&good))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["crc32c"], crc32c_base64(b"hello"));
    assert_eq!(answer.json()["md5Hash"], "XUFAKrxLKna5cZ2REBfFkg==");
    assert_eq!(answer.json()["size"], "5");
    assert_eq!(stored(&server, "a").as_deref(), Some(b"hello".as_slice()));
}

#[tokio::test]
async fn media_that_resembles_a_boundary_stays_whole() {
    let server = server();
    let media = b"\r\n--\r\n\r\n--A--\r\n\r\n";
    let path = upload_path("uploadType=multipart&name=a");
    let answer = send(&server, "POST", &path, &[RELATED], &related("{}", media, None)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(stored(&server, "a").as_deref(), Some(media.as_slice()));
    let answer = send(&server, "POST", &path, &[RELATED], b"--B\r\n\r\n{}\r\n--B--").await;
    assert_eq!(answer.status, 400, "a part is missing");
}

#[tokio::test]
async fn a_media_upload_checks_its_hash_header() {
    let server = server();
    let path = upload_path("uploadType=media&name=a");
    let good = format!("crc32c={},md5=XUFAKrxLKna5cZ2REBfFkg==", crc32c_base64(b"hello"));
    let answer = send(&server, "POST", &path, &[("x-goog-hash", &good)], b"jello").await;
    assert_eq!(answer.status, 400);
    assert_eq!(stored(&server, "a"), None);
    let answer = send(&server, "POST", &path, &[("x-goog-hash", &good)], b"hello").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn generation_conditions_of_the_json_api_hold() {
    let server = server();
    let create = upload_path("uploadType=media&name=a&ifGenerationMatch=0");
    let first = send(&server, "POST", &create, &[], b"one").await;
    assert_eq!(first.status, 200);
    let refused = send(&server, "POST", &create, &[], b"two").await;
    assert_eq!(refused.status, 412);
    assert_eq!(refused.json()["error"]["errors"][0]["reason"], "conditionNotMet");
    assert_eq!(stored(&server, "a").as_deref(), Some(b"one".as_slice()));

    let generation = first.json()["generation"].as_str().expect("a generation").to_owned();
    let replace = upload_path(&format!("uploadType=media&name=a&ifGenerationMatch={generation}"));
    let second = send(&server, "POST", &replace, &[], b"two").await;
    assert_eq!(second.status, 200);
    let later: i64 =
        second.json()["generation"].as_str().and_then(|text| text.parse().ok()).expect("a number");
    assert!(later > generation.parse().expect("a number"), "generations increase");
    assert_eq!(send(&server, "POST", &replace, &[], b"three").await.status, 412);
    let unless = upload_path("uploadType=media&name=b&ifGenerationNotMatch=0");
    assert_eq!(send(&server, "POST", &unless, &[], b"x").await.status, 412, "there is none");
    assert_eq!(
        send(&server, "POST", &upload_path("uploadType=media&name=a&ifGenerationMatch=x"), &[], b"x")
            .await
            .status,
        400
    );
}

#[tokio::test]
async fn an_xml_put_checks_hashes_and_conditions() {
    let server = server();
    let path = format!("/{BUCKET}/dir%2Fa");
    let bad = format!("crc32c={}", crc32c_base64(b"other"));
    for header in [
        ("x-goog-hash", bad.as_str()),
        ("x-goog-hash", "md5=AAAAAAAAAAAAAAAAAAAAAA=="),
        ("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ("x-goog-hash", "sha1=AAAA"),
    ] {
        let answer = send(&server, "PUT", &path, &[header], b"hello").await;
        assert_eq!(answer.status, 400, "{header:?}");
        assert!(answer.element("Code").is_some_and(|code| code.ends_with("Digest")), "{}", answer.text());
        assert_eq!(stored(&server, "dir/a"), None);
    }
    let good = format!("crc32c={}", crc32c_base64(b"hello"));
    let headers =
        [("x-goog-hash", good.as_str()), ("x-goog-if-generation-match", "0"), ("x-goog-meta-step", "7")];
    let answer = send(&server, "PUT", &path, &headers, b"hello").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.header("x-goog-hash").is_some_and(|hash| hash.starts_with(&good)));
    assert_eq!(answer.header("etag"), Some("\"5d41402abc4b2a76b9719d911017c592\""));
    assert_eq!(send(&server, "PUT", &path, &headers, b"hello").await.status, 412);

    let head = send(&server, "HEAD", &path, &[], b"").await;
    assert_eq!((head.status, head.header("content-length")), (200, Some("5")));
    assert_eq!(head.header("x-goog-meta-step"), Some("7"));
    assert_eq!(head.header("x-goog-metageneration"), Some("1"));
    assert_eq!(head.header("x-goog-stored-content-length"), Some("5"));
    assert!(head.header("x-goog-generation").is_some() && head.header("last-modified").is_some());
}

#[tokio::test]
async fn a_liar_accepts_wrong_checksums_and_answers_true_ones() {
    let server =
        server_with(StrictGcsOptions { accept_wrong_checksums: true, ..StrictGcsOptions::default() });
    let bad = format!("crc32c={}", crc32c_base64(b"other"));
    let answer =
        send(&server, "POST", &upload_path("uploadType=media&name=a"), &[("x-goog-hash", &bad)], b"hello")
            .await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["crc32c"], crc32c_base64(b"hello"));
    let answer = send(&server, "PUT", &format!("/{BUCKET}/b"), &[("x-goog-hash", &bad)], b"hello").await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn checksums_can_be_left_out_of_every_answer() {
    let server = server_with(StrictGcsOptions { no_checksum_answers: true, ..StrictGcsOptions::default() });
    let answer = send(&server, "POST", &upload_path("uploadType=media&name=a"), &[], b"hello").await;
    assert!(answer.json().get("crc32c").is_none() && answer.json().get("md5Hash").is_none());
    let path = format!("/{BUCKET}/a");
    for (method, path) in [("PUT", &path), ("GET", &path), ("HEAD", &path)] {
        let answer = send(&server, method, path, &[], if method == "PUT" { b"hello" } else { b"" }).await;
        assert_eq!((answer.status, answer.header("x-goog-hash")), (200, None), "{method}");
    }
}

#[tokio::test]
async fn create_only_can_be_ignored() {
    let server = server_with(StrictGcsOptions { ignore_create_only: true, ..StrictGcsOptions::default() });
    let path = upload_path("uploadType=media&name=a&ifGenerationMatch=0");
    assert_eq!(send(&server, "POST", &path, &[], b"one").await.status, 200);
    assert_eq!(send(&server, "POST", &path, &[], b"two").await.status, 200);
    assert_eq!(stored(&server, "a").as_deref(), Some(b"two".as_slice()));
    let exact = upload_path("uploadType=media&name=a&ifGenerationMatch=1");
    assert_eq!(send(&server, "POST", &exact, &[], b"three").await.status, 412, "other conditions still hold");
}

#[tokio::test]
async fn reads_of_the_json_api_have_ranges_and_headers() {
    let server = server();
    let body = payload(1000);
    send(&server, "POST", &upload_path("uploadType=media&name=dir/a"), &[], &body).await;
    let path = format!("/storage/v1/b/{BUCKET}/o/dir%2Fa?alt=media");

    let whole = send(&server, "GET", &path, &[], b"").await;
    assert_eq!((whole.status, &whole.body), (200, &body));
    let part = send(&server, "GET", &path, &[("Range", "bytes=10-19")], b"").await;
    assert_eq!((part.status, part.body.as_slice()), (206, &body[10..20]));
    assert_eq!(part.header("content-range"), Some("bytes 10-19/1000"));
    assert_eq!(part.header("x-goog-stored-content-length"), Some("1000"));
    assert_eq!(part.header("x-goog-hash"), whole.header("x-goog-hash"), "the whole object's");
    let past_end = send(&server, "GET", &path, &[("Range", "bytes=1000-")], b"").await;
    assert_eq!(past_end.status, 416);

    let generation = whole.header("x-goog-generation").expect("a generation");
    let at = |generation: &str| format!("{path}&generation={generation}");
    assert_eq!(send(&server, "GET", &at(generation), &[], b"").await.status, 200);
    assert_eq!(send(&server, "GET", &at("1"), &[], b"").await.status, 404);
    let resource = send(&server, "GET", &format!("/storage/v1/b/{BUCKET}/o/dir%2Fa"), &[], b"").await;
    assert_eq!(resource.json()["generation"], generation);
    let missing = send(&server, "GET", &format!("/storage/v1/b/{BUCKET}/o/none?alt=media"), &[], b"").await;
    assert_eq!((missing.status, missing.json()["error"]["code"].as_u64()), (404, Some(404)));
}

#[tokio::test]
async fn entity_tags_guard_reads() {
    let server = server();
    let path = format!("/{BUCKET}/a");
    let put = send(&server, "PUT", &path, &[], b"hello").await;
    let etag = put.header("etag").expect("an ETag");
    assert_eq!(send(&server, "GET", &path, &[("If-Match", etag)], b"").await.status, 200);
    assert_eq!(send(&server, "GET", &path, &[("If-Match", "\"x\"")], b"").await.status, 412);
    assert_eq!(send(&server, "GET", &path, &[("If-None-Match", etag)], b"").await.status, 304);
}

#[tokio::test]
async fn buckets_must_exist() {
    let server = server();
    for (method, path) in [
        ("POST", "/upload/storage/v1/b/none/o?uploadType=media&name=a"),
        ("POST", "/upload/storage/v1/b/none/o?uploadType=resumable&name=a"),
        ("GET", "/storage/v1/b/none/o/a?alt=media"),
        ("GET", "/none?list-type=2"),
        ("PUT", "/none/a"),
        ("GET", "/none/a"),
        ("POST", "/none/a?uploads"),
    ] {
        let answer = send(&server, method, path, &[], b"").await;
        assert_eq!(answer.status, 404, "{method} {path}");
        assert!(answer.text().contains("The specified bucket does not exist."), "{}", answer.text());
    }
}

#[tokio::test]
async fn bearers_are_checked() {
    let strict = server_with(StrictGcsOptions { anonymous: false, ..StrictGcsOptions::default() });
    let relaxed = server();
    let right = format!("Bearer {}", strict.bearer());
    let xml = format!("/{BUCKET}/a");
    for path in
        [xml.clone(), upload_path("uploadType=media&name=a"), upload_path("uploadType=resumable&name=a")]
    {
        let method = if path == xml { "PUT" } else { "POST" };
        let with = |value: &str| [("Authorization".to_owned(), value.to_owned())];
        for (server, value, status) in [
            (&strict, None, 401),
            (&strict, Some("Bearer "), 401),
            (&strict, Some("Bearer wrong"), 401),
            (&strict, Some("Basic wrong"), 401),
            (&strict, Some(right.as_str()), 200),
            (&relaxed, None, 200),
            (&relaxed, Some("Bearer "), 200),
            (&relaxed, Some("Bearer wrong"), 401),
            (&relaxed, Some("Basic wrong"), 401),
        ] {
            let header = value.map(with);
            let header: Vec<_> =
                header.iter().flatten().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let answer = send(server, method, &path, &header, b"").await;
            assert_eq!(answer.status, status, "{method} {path} {value:?}");
        }
    }
}
