//! Which endpoints receive credentials, and which do not.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Outcome, Place};

/// Of nobody, by its documentation: nothing is sent there.
const ELSEWHERE: &str = "http://192.0.2.1:9000";

const AWS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "secret")];
const AZURE: [(&str, &str); 2] =
    [("AZURE_STORAGE_ACCOUNT_NAME", "account"), ("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")];

fn list(place: &Place, remote: &str, variables: &[(&str, &str)]) -> Outcome {
    let mut command = place.command(["list", "--run", "mine", "--remote", remote]);
    command.envs(variables.iter().copied()).run()
}

#[test]
fn plain_http_to_another_machine_is_refused_wherever_it_is_named() {
    let place = Place::new();
    let profile = format!("[default]\nendpoint_url = {ELSEWHERE}\nregion = us-east-1\n");
    std::fs::write(place.path("aws-config"), profile).unwrap();
    let file = place.path("aws-config").display().to_string();
    let named = |url: &str| format!("{url}?endpoint={ELSEWHERE}");
    let emulator = ELSEWHERE.trim_start_matches("http://");
    for (remote, variables) in [
        (named("s3://bucket/p"), vec![]),
        (named("gs://bucket/p"), vec![]),
        (named("az://container/p"), vec![]),
        ("s3://bucket/p".to_owned(), vec![("AWS_ENDPOINT_URL", ELSEWHERE)]),
        ("s3://bucket/p".to_owned(), vec![("AWS_ENDPOINT_URL_S3", ELSEWHERE)]),
        ("s3://bucket/p".to_owned(), vec![("AWS_CONFIG_FILE", file.as_str())]),
        ("gs://bucket/p".to_owned(), vec![("STORAGE_EMULATOR_HOST", emulator)]),
        ("az://container/p".to_owned(), vec![("AZURE_STORAGE_ENDPOINT", ELSEWHERE)]),
    ] {
        let all = [&variables[..], &AWS, &AZURE].concat();
        let outcome = list(&place, &remote, &all);
        assert_eq!(outcome.code, 2, "{remote} {variables:?}: {outcome:#?}");
        let told = outcome.stderr.to_lowercase();
        assert!(told.contains("plain http") && told.contains("allow-http"), "{remote} {variables:?}: {told}");
    }
}

#[test]
fn a_token_is_sent_to_no_host_but_the_providers_unless_that_is_configured() {
    let place = Place::new();
    std::fs::write(
        place.path("google.json"),
        r#"{"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}"#,
    )
    .unwrap();
    let file = place.path("google.json").display().to_string();
    let google = [("GOOGLE_APPLICATION_CREDENTIALS", file.as_str())];
    for (remote, variables) in [
        ("gs://bucket/p?endpoint=https://evil.invalid", &google[..]),
        // The host has to be trusted with the token, and plain HTTP allowed by itself.
        ("gs://bucket/p?endpoint=http://192.0.2.1:9&allow-http=true", &google),
        ("az://container/p?endpoint=https://evil.invalid", &AZURE),
    ] {
        list(&place, remote, variables)
            .expect_code(2)
            .expect_stderr(&["it is not a host of", "send-token = true"]);
    }
    // S3 signs, and knows no token to keep back.
    let outcome = list(&place, "s3://bucket/p?endpoint=https://evil.invalid&send-token=true", &AWS);
    outcome.expect_code(2).expect_error("it does not apply to a s3:// remote");
}

/// A server that answers every request alike, and keeps the heads of all.
struct Server {
    address: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
        let heads = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heads);
        // Ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                kept.lock().unwrap().push(head_of(&stream));
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        Self { address, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn head_of(mut stream: &TcpStream) -> String {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read(&mut piece) {
            Ok(length) if length > 0 => head.extend_from_slice(&piece[..length]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&head).to_lowercase()
}

#[test]
fn a_redirect_is_followed_by_no_credential() {
    let place = Place::new();
    for (remote, variables, is_signed) in [
        ("s3://bucket/p?region=us-east-1", &AWS[..], true),
        ("az://container/p?", &AZURE, true),
        ("gs://bucket/p?", &[], false),
    ] {
        let other = Server::start(
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned(),
        );
        let port = other.address.rsplit(':').next().unwrap().to_owned();
        let first = Server::start(format!(
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://localhost:{port}/x\r\ncontent-length: 0\r\n\
             connection: close\r\n\r\n"
        ));
        let url = format!("{remote}&endpoint=http://{}&retry-deadline=1s", first.address);
        let outcome = list(&place, &url, variables);
        assert_ne!(outcome.code, 0, "{outcome:#?}");
        let asked = first.heads();
        assert!(!asked.is_empty(), "{outcome:#?}");
        assert_eq!(asked.iter().any(|head| head.contains("\nauthorization:")), is_signed, "{asked:?}");
        for head in other.heads() {
            let secret = ["authorization:", "x-amz-security-token", "sig="];
            assert!(!secret.iter().any(|word| head.contains(word)), "{url}: {head}");
        }
    }
}
