use stepvault_testkit::s3::EmbeddedS3Fs;

use super::*;

#[tokio::test]
async fn the_embedded_file_system_server_serves() {
    let server = EmbeddedS3Fs::start();
    server.create_bucket(BUCKET);
    let client = client(&server.endpoint(), server.access_key(), server.secret_key());
    put(&client, "dir/k", b"hello").await;
    assert_eq!(get(&client, "dir/k").await, b"hello");
    let again =
        client.put_object().bucket(BUCKET).key("dir/k").if_none_match("*").body(stream(b"x")).send().await;
    assert_refused(again, 412, "PreconditionFailed");
}
