use std::time::{Duration, Instant};

use stepvault_testkit::faults::{FaultAction, FaultRule};

use super::*;

#[tokio::test]
async fn a_refusal_carries_status_code_and_retry_after_and_does_nothing() {
    let (server, client) = strict();
    let action =
        FaultAction::Refuse { status: 503, retry_after_seconds: Some(7), code: "SlowDown".to_owned() };
    server.faults().inject("PUT", "/vault/k", 1, action);
    let data = bytes(3 << 20, 1);
    let put = || client.put_object().bucket(BUCKET).key("k").body(stream(&data)).send();
    let error = put().await.unwrap_err();
    let response = error.raw_response().unwrap();
    assert_eq!(response.headers().get("retry-after"), Some("7"));
    assert_refused::<(), _>(Err(error), 503, "SlowDown");
    assert!(server.objects().keys().is_empty());
    put().await.unwrap();
    assert_eq!(server.objects().keys(), ["vault/k"]);
}

#[tokio::test]
async fn expired_credentials_are_a_refusal() {
    let (server, client) = strict();
    server.faults().inject("GET", "", 1, FaultAction::refuse(400, "ExpiredToken"));
    put(&client, "k", b"x").await;
    assert_refused(client.get_object().bucket(BUCKET).key("k").send().await, 400, "ExpiredToken");
    assert_eq!(get(&client, "k").await, b"x");
}

#[tokio::test]
async fn apply_then_delay_does_the_work_while_the_client_still_waits() {
    let (server, client) = strict();
    let watched = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let states = std::sync::Arc::clone(&watched);
    server.objects().watch(move |objects| states.lock().unwrap().push(objects.len()));
    let forever = FaultAction::ApplyThenDelay(Duration::from_hours(1));
    server.faults().inject("PUT", "/vault/k", 1, forever);
    let put = tokio::spawn(client.put_object().bucket(BUCKET).key("k").body(stream(b"x")).send());
    while server.objects().body("vault/k").is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!put.is_finished());
    put.abort();
    let requests = server.faults().requests();
    assert_eq!(requests[0].from.unwrap().to_string(), "127.0.0.1");
    assert_eq!(server.faults().requests_after(requests.len()), []);
    let watched = watched.lock().unwrap().clone();
    assert_eq!((watched.first(), watched.last()), (Some(&0), Some(&1)));
}

#[tokio::test]
async fn apply_then_reset_does_the_work_without_an_answer() {
    let (server, client) = strict();
    server.faults().inject("PUT", "/vault/k", 1, FaultAction::ApplyThenReset);
    let put = client.put_object().bucket(BUCKET).key("k").if_none_match("*").body(stream(b"x")).send().await;
    assert!(matches!(put, Err(SdkError::DispatchFailure(_) | SdkError::ResponseError(_))), "{put:?}");
    assert_eq!(&server.objects().body("vault/k").unwrap()[..], b"x");
    let again =
        client.put_object().bucket(BUCKET).key("k").if_none_match("*").body(stream(b"x")).send().await;
    assert_refused(again, 412, "PreconditionFailed");
}

#[tokio::test]
async fn reset_does_nothing() {
    let (server, client) = strict();
    server.faults().inject("PUT", "/vault/k", 1, FaultAction::Reset);
    let put = client.put_object().bucket(BUCKET).key("k").body(stream(&bytes(1 << 20, 1))).send().await;
    assert!(matches!(put, Err(SdkError::DispatchFailure(_) | SdkError::ResponseError(_))), "{put:?}");
    assert!(server.objects().keys().is_empty());
}

#[tokio::test]
async fn delay_holds_a_request_and_then_does_it() {
    let (server, client) = strict();
    server.faults().inject("PUT", "", 1, FaultAction::Delay(Duration::from_millis(300)));
    let started = Instant::now();
    put(&client, "k", b"x").await;
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(server.objects().keys(), ["vault/k"]);
}

#[tokio::test]
async fn hang_never_answers_and_does_nothing() {
    let (server, client) = strict();
    server.faults().inject("PUT", "", 1, FaultAction::Hang);
    let put = client.put_object().bucket(BUCKET).key("k").body(stream(b"x")).send();
    assert!(tokio::time::timeout(Duration::from_millis(500), put).await.is_err());
    assert!(server.objects().keys().is_empty());
}

#[tokio::test]
async fn a_cut_body_ends_early_with_an_error() {
    use tokio::io::AsyncReadExt as _;
    let (server, client) = strict();
    let data = bytes(200_000, 3);
    put(&client, "k", &data).await;
    server.faults().inject("GET", "/vault/k", 1, FaultAction::CutBody { bytes: 70_000 });
    let got = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!(got.content_length(), Some(200_000));
    let (mut reader, mut received) = (got.body.into_async_read(), Vec::new());
    reader.read_to_end(&mut received).await.unwrap_err();
    assert_eq!(received, data[..70_000]);
    assert_eq!(get(&client, "k").await, data);
}

#[tokio::test]
async fn a_flipped_bit_is_one_bit_off() {
    let (server, client) = strict();
    let data = bytes(100_000, 4);
    put(&client, "k", &data).await;
    server.faults().inject("GET", "/vault/k", 1, FaultAction::FlipBit);
    let bad = get(&client, "k").await;
    let flipped: u32 = data.iter().zip(&bad).map(|(right, wrong)| (right ^ wrong).count_ones()).sum();
    assert_eq!((bad.len(), flipped), (data.len(), 1));
    assert_eq!(get(&client, "k").await, data);
}

#[tokio::test]
async fn an_error_can_come_with_status_200() {
    let (server, client) = strict();
    put(&client, "from", b"x").await;
    let action = FaultAction::OkWithError { code: "InternalError".to_owned() };
    server.faults().inject("PUT", "/vault/to", 1, action);
    let copy = client.copy_object().bucket(BUCKET).key("to").copy_source("vault/from").send().await;
    let (_, code) = refusal(copy);
    assert_eq!(code, "InternalError");
    assert_eq!(server.objects().keys(), ["vault/from"]);
}

#[tokio::test]
async fn rules_skip_count_and_leave_a_log() {
    let (server, client) = strict();
    server.faults().add(FaultRule {
        method: None,
        path_contains: "partNumber=".to_owned(),
        skip: 1,
        times: 1,
        action: FaultAction::refuse(500, "InternalError"),
    });
    let created = client.create_multipart_upload().bucket(BUCKET).key("k").send().await.unwrap();
    let part = |number| {
        let part = client.upload_part().bucket(BUCKET).key("k").part_number(number);
        part.upload_id(created.upload_id().unwrap()).body(stream(b"12345")).send()
    };
    part(1).await.unwrap();
    assert_refused(part(2).await, 500, "InternalError");
    part(3).await.unwrap();
    assert_eq!(server.pending_uploads()[0].part_numbers, [1, 3]);
    let log = server.faults().requests();
    assert_eq!((log.len(), log[0].method.as_str(), log[1].body_bytes), (4, "POST", 5));
}
