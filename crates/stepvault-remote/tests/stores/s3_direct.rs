//! Requests for the bytes of objects and parts, which are built and signed without the SDK.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use stepvault_core::ErrorKind;
use stepvault_core::digest::{DigestAlgorithm, PartDigest, Sha256Digest};
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::RemoteStore;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3Options;
use stepvault_testkit::serve::ServerHandle;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{File, Strict, bytes, create, listed, read, settings, shown};

/// A server that answers every request with what `answer` makes of its head, and keeps the heads.
struct Scripted {
    heads: Arc<Mutex<Vec<String>>>,
    server: ServerHandle,
}

impl Scripted {
    fn start(answer: fn(&str) -> String) -> Self {
        let heads = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heads);
        let server = ServerHandle::start(move |listener| async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                tokio::spawn(async move {
                    loop {
                        let mut head = Vec::new();
                        while !head.ends_with(b"\r\n\r\n") {
                            let Ok(byte) = stream.read_u8().await else { return };
                            head.push(byte);
                        }
                        let head = String::from_utf8(head).unwrap();
                        let length =
                            value(&head, "content-length").map_or(0, |length| length.parse().unwrap());
                        stream.read_exact(&mut vec![0; length]).await.unwrap();
                        let answer = answer(&head);
                        kept.lock().unwrap().push(head);
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        Self { heads, server: server.unwrap() }
    }

    async fn open(&self, mut settings: RemoteSettings) -> Arc<dyn RemoteStore> {
        settings.endpoint = Some(self.server.endpoint());
        settings.region = Some("us-east-1".to_owned());
        let keys = StaticKeys { access_key: "AKIA".to_owned(), secret_key: "secret".to_owned() };
        stepvault_remote::s3::open(&settings, Some(keys)).await.unwrap()
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn value<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn ok(headers: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
}

#[tokio::test]
async fn a_write_has_every_header_that_the_settings_ask_for_and_signs_them() {
    let server = Scripted::start(|_| ok("etag: \"1\"\r\n", ""));
    let mut wanted = settings("s3://checkpoints/vault");
    wanted.storage_class = Some("STANDARD_IA".to_owned());
    wanted.server_side_encryption = Some("aws:kms".to_owned());
    wanted.kms_key = Some("alias/checkpoints".to_owned());
    wanted.tags = BTreeMap::from([("team".to_owned(), "a&b".to_owned())]);
    wanted.expected_bucket_owner = Some("111122223333".to_owned());
    wanted.requester_pays = true;
    let store = server.open(wanted).await;
    let body = bytes(10, 1);
    let digest = PartDigest::of(&body);
    create(&*store, "run/a", &body).await.unwrap();
    store.upload_part("run/a", "up+load", 2, body.clone().into(), &digest).await.unwrap();
    let heads = server.heads();
    assert!(heads[0].starts_with("PUT /checkpoints/vault/run/a?x-id=PutObject HTTP/1.1\r\n"), "{}", heads[0]);
    let part = "PUT /checkpoints/vault/run/a?x-id=UploadPart&partNumber=3&uploadId=up%2Bload HTTP/1.1\r\n";
    assert!(heads[1].starts_with(part), "{}", heads[1]);
    let checksum = Sha256Digest::of(&body).to_base64();
    let of_both = [
        ("content-type", "application/octet-stream"),
        ("content-length", "10"),
        ("x-amz-checksum-sha256", checksum.as_str()),
        ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
        ("x-amz-expected-bucket-owner", "111122223333"),
        ("x-amz-request-payer", "requester"),
    ];
    let of_object = [
        ("if-none-match", "*"),
        ("x-amz-storage-class", "STANDARD_IA"),
        ("x-amz-server-side-encryption", "aws:kms"),
        ("x-amz-server-side-encryption-aws-kms-key-id", "alias/checkpoints"),
        ("x-amz-tagging", "team=a%26b"),
    ];
    for (head, headers) in
        [(&heads[0], [&of_both[..], &of_object[..]].concat()), (&heads[1], of_both.to_vec())]
    {
        let authorization = value(head, "authorization").unwrap();
        let (_, signed) = authorization.split_once("SignedHeaders=").unwrap();
        let signed: Vec<&str> = signed.split(',').next().unwrap().split(';').collect();
        for (name, wanted) in headers {
            assert_eq!(value(head, name), Some(wanted), "{name}: {head}");
            assert!(signed.contains(&name), "{name} is not signed: {authorization}");
        }
    }
    assert_eq!(value(&heads[1], "if-none-match"), None);
    assert!(!heads.concat().contains("amz-sdk-"), "the SDK sent it: {heads:?}");
}

#[tokio::test]
async fn keys_with_odd_characters_stay_as_they_are() {
    let strict = Strict::start();
    let store = strict.open_bare().await;
    let file = File::new((8 << 20) + 1, 3);
    let mut keys = ["a b+c", "50%", "a%2Fb", "x#y?z&w=1;v", "ü/☃.pt", "!*'()~@:,$", "a\\b[c]{d}^|`\""];
    for key in keys {
        create(&*store, &format!("whole/{key}"), &file.bytes[..9]).await.expect(key);
        assert_eq!(
            read(&*store, &format!("whole/{key}"), Some(2..5)).await.unwrap(),
            file.bytes[2..5],
            "{key}"
        );
        file.upload(&*store, &format!("parts/{key}")).await.expect(key);
        assert_eq!(read(&*store, &format!("parts/{key}"), None).await.unwrap(), file.bytes, "{key}");
    }
    keys.sort_unstable();
    assert_eq!(listed(&*store, "whole/").await.unwrap(), keys.map(|key| format!("whole/{key}")));
    assert_eq!(listed(&*store, "parts/").await.unwrap(), keys.map(|key| format!("parts/{key}")));
}

#[tokio::test]
async fn a_refusal_means_the_same_for_every_request() {
    let strict = Strict::start();
    let store = strict.open_bare().await;
    let file = File::new((8 << 20) + 1, 1);
    let digest = PartDigest::of(&file.bytes[..5]);
    create(&*store, "there", &file.bytes).await.unwrap();
    let upload = store.start_upload("parts", file.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    for (status, code, kind, is_transient) in [
        (503, "SlowDown", ErrorKind::Unreachable, true),
        (500, "InternalError", ErrorKind::Unreachable, true),
        (400, "BadDigest", ErrorKind::Damaged, false),
        (400, "ExpiredToken", ErrorKind::Denied, true),
        (403, "AccessDenied", ErrorKind::Denied, false),
        (404, "NoSuchBucket", ErrorKind::Usage, false),
        (301, "PermanentRedirect", ErrorKind::Usage, false),
    ] {
        let requests = strict.server.faults().requests().len();
        strict.inject("PUT", "", 2, FaultAction::refuse(status, code));
        strict.inject("GET", "", 1, FaultAction::refuse(status, code));
        let errors = [
            create(&*store, "new", &file.bytes).await.map(drop).unwrap_err(),
            store
                .upload_part("parts", &upload, 0, file.bytes.slice(..5).into(), &digest)
                .await
                .map(drop)
                .unwrap_err(),
            read(&*store, "there", None).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!((error.kind(), error.is_transient()), (kind, is_transient), "{code}: {error}");
            assert!(error.to_string().contains(code), "{code}: {error}");
        }
        assert_eq!(strict.server.faults().requests().len(), requests + 3, "{code} is not repeated here");
        strict.server.faults().clear();
    }
}

#[tokio::test]
async fn the_region_of_the_bucket_is_named() {
    let strict = Strict::start_with(StrictS3Options {
        only_region: Some("eu-central-1".to_owned()),
        ..StrictS3Options::default()
    });
    let store = strict.open_bare().await;
    let errors = [
        create(&*store, "a", &bytes(1, 1)).await.map(drop).unwrap_err(),
        read(&*store, "a", None).await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        let text = shown(&error);
        assert!(text.ends_with("hint: set region = \"eu-central-1\" for this remote"), "{text}");
    }
}

#[tokio::test]
async fn a_clock_that_a_read_has_set_counts_for_the_sdk_too() {
    for clock_ahead_seconds in [3_600, -3_600] {
        let strict =
            Strict::start_with(StrictS3Options { clock_ahead_seconds, ..StrictS3Options::default() });
        let store = strict.open_bare().await;
        let error = read(&*store, "a", None).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        create(&*store, "a", &bytes(1, 1)).await.unwrap();
        assert_eq!(listed(&*store, "").await.unwrap(), ["a"]);
        let requests = strict.server.faults().requests();
        let methods: Vec<&str> = requests.iter().map(|request| request.method.as_str()).collect();
        assert_eq!(methods, ["GET", "GET", "PUT", "GET"]);
    }
}

#[tokio::test]
async fn an_answer_with_another_checksum_is_damage() {
    let other = |_: &str| {
        let checksum = Sha256Digest::of(b"other bytes").to_base64();
        ok(&format!("etag: \"1\"\r\nx-amz-checksum-sha256: {checksum}\r\n"), "")
    };
    let server = Scripted::start(other);
    let store = server.open(settings("s3://checkpoints/vault")).await;
    let body = bytes(10, 1);
    let digest = PartDigest::of(&body);
    let errors = [
        create(&*store, "a", &body).await.map(drop).unwrap_err(),
        store.replace("a", body.clone(), &digest).await.unwrap_err(),
        store.upload_part("a", "u", 0, body.into(), &digest).await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(
            error.to_string().ends_with("the store returned a different checksum than was sent"),
            "{error}"
        );
    }
}

/// The entities of a message are read, as Go's servers write them.
#[tokio::test]
async fn the_stores_own_message_is_shown_as_it_was_meant() {
    let server = Scripted::start(|_| {
        let document = "<?xml version=\"1.0\"?>\n<Error><Code>Odd</Code><Message>&#34;a&#34; &lt;&amp;&gt; &apos;b&apos;\n \
                        c.</Message></Error>";
        ok("", document).replace("200 OK", "400 Bad Request")
    });
    let store = server.open(settings("s3://checkpoints/vault")).await;
    let error = create(&*store, "a", &bytes(1, 1)).await.map(drop).unwrap_err();
    assert_eq!(error.to_string(), "cannot write the object: s3://checkpoints/vault/a: Odd: \"a\" <&> 'b' c");
}

#[tokio::test]
async fn a_directory_bucket_is_used_in_the_sdks_session() {
    let server = Scripted::start(|head| {
        if head.contains("?session") {
            let session = "<CreateSessionResult><Credentials><AccessKeyId>S</AccessKeyId><SecretAccessKey>s\
                           </SecretAccessKey><SessionToken>of the session</SessionToken><Expiration>\
                           2099-01-01T00:00:00Z</Expiration></Credentials></CreateSessionResult>";
            return ok("", session);
        }
        ok("etag: \"1\"\r\n", if head.starts_with("GET") { "bytes" } else { "" })
    });
    let store = server.open(settings("s3://name--usw2-az1--x-s3/vault")).await;
    let body = bytes(10, 1);
    let digest = PartDigest::of(&body);
    create(&*store, "a", &body).await.unwrap();
    store.upload_part("a", "u", 0, body.clone().into(), &digest).await.unwrap();
    assert_eq!(read(&*store, "a", None).await.unwrap(), b"bytes");
    let heads = server.heads();
    let (sessions, requests): (Vec<_>, Vec<_>) = heads.iter().partition(|head| head.contains("?session"));
    assert!(!sessions.is_empty() && requests.len() == 3, "{heads:?}");
    for head in &requests {
        assert_eq!(value(head, "x-amz-s3session-token"), Some("of the session"), "{head}");
        assert!(value(head, "authorization").unwrap().contains("Credential=S/"), "{head}");
    }
    for head in &requests[..2] {
        let checksum = Sha256Digest::of(&body).to_base64();
        assert_eq!(value(head, "x-amz-checksum-sha256"), Some(checksum.as_str()), "{head}");
    }
    assert_eq!(value(requests[0], "if-none-match"), Some("*"), "{}", requests[0]);
    assert!(requests.iter().all(|head| head.contains("amz-sdk-")), "{heads:?}");
}
