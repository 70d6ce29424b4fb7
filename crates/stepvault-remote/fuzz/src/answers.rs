//! What a store answers: statuses, headers, XML and JSON, through the clients that ask for it.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::ids::RemoteName;
use stepvault_core::remote_settings::{RemoteSettings, Transport};
use stepvault_core::{Error, Result};
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::{Created, PartReceipt, RemoteStore};
use tokio::runtime::Runtime;

use super::server::Server;

const SECRET: &str = "cAnArY+secret/key=must_not_sing";
/// No answer may take longer, whatever it is.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest message: it goes into logs, and onto terminals.
const MAX_MESSAGE_BYTES: usize = 4096;
/// S3, and Google Cloud Storage over either of its APIs.
pub const STORES: usize = 3;
/// An upload of the JSON API; the others take any text.
const UPLOAD: &str = "json-0123456789abcdef0123456789abcdef";
/// What stands between two answers.
const NEXT: &[u8] = b"\n--\n";

/// The server and a store of each kind.
struct Place {
    runtime: Runtime,
    server: Server,
    stores: [Arc<dyn RemoteStore>; STORES],
}

thread_local! {
    static PLACE: OnceCell<Place> = const { OnceCell::new() };
}

impl Place {
    fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = Server::start();
        let settings = |url: &str| {
            let mut settings = RemoteSettings::new(RemoteName::new("r").unwrap(), url.parse().unwrap());
            settings.endpoint = Some(server.endpoint());
            settings.stall_timeout_seconds = 5;
            settings.retry_deadline_seconds = 1;
            settings
        };
        let mut s3 = settings("s3://bucket/prefix");
        s3.region = Some("us-east-1".to_owned());
        let keys = StaticKeys { access_key: "AKIAEXAMPLE".to_owned(), secret_key: SECRET.to_owned() };
        let gcs = settings("gs://bucket/prefix");
        let mut gcs_json = gcs.clone();
        gcs_json.transport = Transport::Json;
        let stores = runtime.block_on(async {
            [
                stepvault_remote::s3::open(&s3, Some(keys)).await.unwrap(),
                stepvault_remote::gcs::open(&gcs).await.unwrap(),
                stepvault_remote::gcs::open(&gcs_json).await.unwrap(),
            ]
        });
        Self { runtime, server, stores }
    }
}

/// The first byte says which store is asked and for what; what follows are answers.
pub fn check(bytes: &[u8]) {
    if let Err(error) = told(bytes) {
        check_error(&error);
    }
}

/// What came of the question.
pub fn told(bytes: &[u8]) -> Result<()> {
    let Some((which, bytes)) = bytes.split_first() else {
        return Ok(());
    };
    PLACE.with(|place| {
        let place = place.get_or_init(Place::new);
        place.server.answer(answers(bytes));
        let (what, store) = (usize::from(*which) / STORES % 8, usize::from(*which) % STORES);
        let store = &place.stores[store];
        let asked = async { tokio::time::timeout(PATIENCE, ask(store.as_ref(), what)).await };
        place.runtime.block_on(asked).expect("an answer in time")
    })
}

fn check_error(error: &Error) {
    let told = format!("{error} {:?}", error.hint_text());
    assert!(told.len() <= MAX_MESSAGE_BYTES, "{} bytes: {told}", told.len());
    assert!(!told.contains(SECRET), "{told}");
    let _ = error.retry_after_wait();
}

/// Each begins with a status in one line and headers in others; the body behind an empty line is given its length. What
/// begins with `HTTP/` is sent as it is.
fn answers(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = bytes;
    let mut answers = Vec::new();
    loop {
        let end = rest.windows(NEXT.len()).position(|window| window == NEXT);
        answers.push(answer(&rest[..end.unwrap_or(rest.len())]));
        match end {
            Some(end) if answers.len() < 16 => rest = &rest[end + NEXT.len()..],
            _ => return answers,
        }
    }
}

fn answer(bytes: &[u8]) -> Vec<u8> {
    if bytes.starts_with(b"HTTP/") {
        return bytes.to_vec();
    }
    let end = bytes.windows(2).position(|window| window == b"\n\n");
    let (head, body) = bytes.split_at(end.unwrap_or(bytes.len()));
    let body = body.strip_prefix(b"\n\n").unwrap_or(body);
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut answer = b"HTTP/1.1 ".to_vec();
    answer.extend_from_slice(lines.next().unwrap_or(b"200"));
    answer.extend_from_slice(b" x\r\n");
    for line in lines.filter(|line| !line.is_empty()) {
        answer.extend_from_slice(line);
        answer.extend_from_slice(b"\r\n");
    }
    answer
        .extend_from_slice(format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()).as_bytes());
    answer.extend_from_slice(body);
    answer
}

async fn ask(store: &dyn RemoteStore, what: usize) -> Result<()> {
    let body = || bytes::Bytes::from_static(b"body");
    let digest = PartDigest::of(b"body");
    let file = FileDigest::from_parts(&[digest]);
    let parts = [PartReceipt { index: 0, tag: "17".to_owned(), digest }];
    match what {
        0 => {
            // Pages without an end are an error, or are listed as long as somebody asks.
            let listed: Vec<_> = store.list("run/").take(2000).try_collect().await?;
            for info in listed {
                assert!(info.key.starts_with("run/"), "{info:?}");
            }
        }
        1 => {
            if let Some(head) = store.head("run/key").await? {
                assert_eq!(head.info.key, "run/key");
                let _ = head.checksum.proves(&file, &[digest.content]);
            }
        }
        2 => {
            let range = 3..7;
            let pieces: Vec<_> = store.read("run/key", Some(range)).await?.try_collect().await?;
            assert_eq!(pieces.iter().map(bytes::Bytes::len).sum::<usize>(), 4, "all or an error");
        }
        3 => {
            if let Created::Written(head) = store.create("run/key", body().into(), &digest).await? {
                assert_eq!(head.info.size_bytes, 4);
            }
        }
        4 => {
            for pending in store.pending_uploads("run/").await? {
                assert!(pending.key.starts_with("run/"), "{pending:?}");
            }
        }
        5 => {
            let upload = store.start_upload("run/key", 4, DigestAlgorithm::Sha256).await?;
            store.upload_part("run/key", &upload, 0, body().into(), &digest).await?;
        }
        6 => {
            store.complete_upload("run/key", UPLOAD, &parts, &file).await?;
        }
        _ => {
            store.copy("run/key", "run/other").await?;
            store.delete(&["run/key".to_owned(), "run/other".to_owned()]).await?;
        }
    }
    Ok(())
}

/// Answers of each kind, to each question.
pub fn seeds() -> Vec<Vec<u8>> {
    const LIST: &str = "200\ncontent-type: application/xml\n\n<?xml version=\"1.0\"?><ListBucketResult>\
        <Name>bucket</Name><Prefix>prefix/run/</Prefix><IsTruncated>false</IsTruncated><Contents>\
        <Key>prefix/run/a&amp;b</Key><Size>4</Size><ETag>\"tag\"</ETag><Generation>17</Generation>\
        <LastModified>2026-11-21T10:16:00.000Z</LastModified></Contents></ListBucketResult>";
    const PENDING: &str = "200\n\n<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k\
        </NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker><Upload><Key>prefix/run/a</Key>\
        <UploadId>1</UploadId><Initiated>2026-11-21T10:16:00.000Z</Initiated></Upload>\
        </ListMultipartUploadsResult>\n--\n200\n\n<ListMultipartUploadsResult></ListMultipartUploadsResult>";
    const HEAD: &str = "200\ndate: Sat, 21 Nov 2026 10:16:00 GMT\nlast-modified: Sat, 21 Nov 2026 10:16:00 GMT\n\
        etag: \"tag\"\nx-amz-checksum-sha256: Iw2DWNyOiJC0xY3utikS7i8gNXrpKlzIYbmOaP4xrLU=\n\
        x-goog-hash: crc32c=Jj/JUA==\nx-goog-generation: 17\nx-goog-stored-content-length: 4\n\nbody";
    const READ: &str = "206\nlast-modified: Sat, 21 Nov 2026 10:16:00 GMT\netag: \"tag\"\n\
        content-range: bytes 3-6/10\nx-goog-generation: 17\n\nbody";
    const JSON: &str = "200\ncontent-type: application/json\n\n{\"done\": true, \"name\": \"prefix/run/key\", \
        \"bucket\": \"bucket\", \"size\": \"4\", \"generation\": \"17\", \"crc32c\": \"Jj/JUA==\", \
        \"timeCreated\": \"2026-11-21T10:16:00Z\", \"updated\": \"2026-11-21T10:16:00Z\"}";
    const JSON_LIST: &str = "200\n\n{\"kind\": \"storage#objects\", \"items\": [{\"name\": \"prefix/run/key\", \
        \"size\": \"4\", \"generation\": 17, \"crc32c\": \"Jj/JUA==\", \"updated\": \"2026-11-21T10:16:00Z\"}], \
        \"nextPageToken\": \"x\"}\n--\n200\n\n{\"kind\": \"storage#objects\"}";
    const JSON_PENDING: &str = "200\n\n{\"kind\": \"storage#objects\", \"items\": [{\"name\": \
        \"prefix/.stepvault-uploads/run/key/json-0123456789abcdef0123456789abcdef/00001\", \"size\": \"4\", \
        \"generation\": \"17\", \"updated\": \"2026-11-21T10:16:00Z\"}]}";
    const STARTED: &str = "200\n\n<InitiateMultipartUploadResult><UploadId>1</UploadId>\
        </InitiateMultipartUploadResult>\n--\n200\netag: \"tag\"\nx-goog-hash: crc32c=Jj/JUA==\n\n";
    const COMPLETED: &str = "200\n\n<CompleteMultipartUploadResult><Key>prefix/run/key</Key><ETag>\"x-1\"</ETag>\
        <ChecksumSHA256>Iw2DWNyOiJC0xY3utikS7i8gNXrpKlzIYbmOaP4xrLU=-1</ChecksumSHA256>\
        </CompleteMultipartUploadResult>\n--\n200\netag: \"x\"\n\n";
    const REFUSED: &str = "503\nretry-after: 7\n\n<Error><Code>SlowDown</Code><Message>Please &lt;reduce&gt; your \
        request rate.</Message><RequestId>1</RequestId></Error>";
    const DENIED: &str = "403\ndate: Sat, 21 Nov 2026 10:16:00 GMT\n\n{\"error\": {\"code\": 403, \"message\": \
        \"No access.\", \"status\": \"PERMISSION_DENIED\"}}";
    const HIDDEN: &str =
        "200\n\n<Error><Code>InternalError</Code><Message>It did not work.</Message></Error>";
    const RAW: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
    let mut seeds = Vec::new();
    for (what, answer) in [
        (0, LIST),
        (0, JSON_LIST),
        (0, REFUSED),
        (0, HIDDEN),
        (1, HEAD),
        (1, JSON),
        (1, "404\n\n"),
        (2, READ),
        (2, RAW),
        (3, HEAD),
        (3, JSON),
        (3, DENIED),
        (4, PENDING),
        (4, JSON_PENDING),
        (5, STARTED),
        (6, COMPLETED),
        (6, JSON),
        (6, HIDDEN),
        (7, JSON),
        (7, "200\n\n<CopyObjectResult><ETag>\"tag\"</ETag></CopyObjectResult>"),
    ] {
        for store in 0..STORES {
            let which = u8::try_from(what * STORES + store).unwrap();
            seeds.push([&[which], answer.as_bytes()].concat());
        }
    }
    seeds
}
