//! Servers behind TLS: authorities of one's own, and certificates that are not valid.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use stepvault_testkit::discard::{Delays, DiscardS3};
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::serve::ServerHandle;
use stepvault_testkit::tls::{Authority, Validity};

use crate::support::{ANY_KEYS, Outcome, Place, TestCommand};

/// A strict S3 behind TLS, with a directory that has a step.
struct Scene {
    place: Place,
    server: StrictS3,
    front: ServerHandle,
}

impl Scene {
    fn new(validity: Validity) -> Self {
        let place = Place::new();
        let server = StrictS3::start();
        server.create_bucket("bucket");
        let authority = Authority::new();
        authority.write(&place.path("authority.pem"));
        let address = server.endpoint();
        let address = address.strip_prefix("http://").unwrap().trim_end_matches('/');
        let front = authority.serve(address.parse().unwrap(), validity);
        place.write("step_1/weights.bin", "weights");
        Self { place, server, front }
    }

    /// A push of the step to the server, with more options in the remote's URL.
    fn push(&self, options: &str) -> TestCommand {
        self.push_to(&self.front.endpoint().replace("http://", "https://"), options)
    }

    fn push_to(&self, endpoint: &str, options: &str) -> TestCommand {
        let remote = format!("main=s3://bucket/p?endpoint={endpoint}&region=us-east-1{options}");
        let mut command = self.place.command(["push", "step_1", "--run", "demo/a", "--local", "vault"]);
        command
            .option("--remote", remote)
            .env("AWS_ACCESS_KEY_ID", self.server.access_key())
            .env("AWS_SECRET_ACCESS_KEY", self.server.secret_key());
        command
    }

    fn is_stored(&self) -> bool {
        !self.server.objects().keys().is_empty()
    }
}

/// The push fails at once: a certificate does not become valid by waiting.
#[track_caller]
fn refused(scene: &Scene, outcome: Outcome, texts: &[&str]) {
    outcome.expect_code(12).expect_stderr(texts);
    assert!(!scene.is_stored());
}

#[test]
fn an_authority_of_ones_own_is_trusted_where_it_is_named() {
    let scene = Scene::new(Validity::Valid);
    let why = ["UnknownIssuer", "set ca-file for this remote"];
    refused(&scene, scene.push("").run(), &why);
    // Another authority is no help.
    Authority::new().write(&scene.place.path("other.pem"));
    refused(&scene, scene.push("&ca-file=other.pem").run(), &why);
    scene.push("&ca-file=authority.pem").run().expect_code(0);
    assert!(scene.is_stored());
}

#[test]
fn awss_own_ways_to_name_it_are_known() {
    let scene = Scene::new(Validity::Valid);
    let mut by_variable = scene.push("");
    by_variable.env("AWS_CA_BUNDLE", scene.place.path("authority.pem"));
    by_variable.run().expect_code(0);
    assert!(scene.is_stored());

    let scene = Scene::new(Validity::Valid);
    let bundle = scene.place.path("authority.pem");
    scene.place.write("aws", format!("[profile own]\nca_bundle = {}\n", bundle.display()));
    let mut by_profile = scene.push("&profile=own");
    by_profile.env("AWS_CONFIG_FILE", scene.place.path("aws"));
    by_profile.run().expect_code(0);
    assert!(scene.is_stored());
}

#[test]
fn a_certificate_that_is_not_valid_is_named() {
    for (validity, texts) in [
        (Validity::Expired, ["expired", "renew it, or set this machine's clock"]),
        (Validity::OtherHost, ["not valid for name", "correct the endpoint"]),
    ] {
        let scene = Scene::new(validity);
        refused(&scene, scene.push("&ca-file=authority.pem").run(), &texts);
    }
}

#[test]
fn a_file_that_is_no_certificate_is_refused() {
    let scene = Scene::new(Validity::Valid);
    scene.place.write("empty.pem", "");
    let cut = scene.place.read("authority.pem").replace("MII", "AAA");
    scene.place.write("damaged.pem", cut);
    for (file, why) in [
        ("missing.pem", "the file does not exist"),
        ("empty.pem", "it holds no certificate"),
        ("damaged.pem", "cannot use the certificates of authorities"),
        ("step_1", "cannot use the certificates of authorities"),
    ] {
        let outcome = scene.push(&format!("&ca-file={file}")).run();
        outcome.expect_code(2).expect_stderr(&[why, file, "PEM file"]);
    }
}

#[test]
fn a_server_that_asks_for_a_certificate_gets_it() {
    let place = Place::new();
    let server = StrictS3::start();
    server.create_bucket("bucket");
    let authority = Authority::new();
    authority.write(&place.path("authority.pem"));
    authority.write_client(&place.path("node.pem"), &place.path("node.key"));
    let stranger = Authority::new();
    stranger.write_client(&place.path("stranger.pem"), &place.path("stranger.key"));
    let address = server.endpoint();
    let address = address.strip_prefix("http://").unwrap().trim_end_matches('/');
    let front = authority.serve_to_its_clients(address.parse().unwrap());
    place.write("step_1/weights.bin", "weights");
    let scene = Scene { place, server, front };
    let why = ["refuses this client's certificate, or requires one"];
    refused(&scene, scene.push("&ca-file=authority.pem").run(), &why);
    let with = |name: &str| {
        let options = format!("&ca-file=authority.pem&client-certificate={name}.pem&client-key={name}.key");
        scene.push(&options).run()
    };
    refused(&scene, with("stranger"), &why);
    let missing = with("missing");
    missing.expect_code(2).expect_stderr(&["cannot use the client certificate", "missing.pem"]);
    let without_key = scene.push("&ca-file=authority.pem&client-certificate=node.pem").run();
    without_key.expect_code(2).expect_stderr(&["client-certificate", "it has no effect without client-key"]);
    with("node").expect_code(0);
    assert!(scene.is_stored());
}

#[test]
fn googles_store_is_reached_in_the_same_way_through_its_json_api() {
    let place = Place::new();
    let server = StrictGcs::start();
    server.create_bucket("bucket");
    let authority = Authority::new();
    authority.write(&place.path("authority.pem"));
    authority.write_client(&place.path("node.pem"), &place.path("node.key"));
    let address = server.endpoint();
    let address = address.strip_prefix("http://").unwrap().trim_end_matches('/');
    let front = authority.serve_to_its_clients(address.parse().unwrap());
    place.write("step_1/weights.bin", "weights");
    let endpoint = front.endpoint().replace("http://", "https://");
    let push = |options: &str| {
        let remote = format!("main=gs://bucket/p?endpoint={endpoint}{options}");
        let arguments = ["push", "step_1", "--run", "demo/a", "--local", "vault", "--remote"];
        let mut command = place.command(arguments);
        command.arg(remote).run()
    };
    let json = "&transport=json";
    push(json).expect_code(12).expect_stderr(&["UnknownIssuer"]);
    let json = "&transport=json&ca-file=authority.pem";
    push(json).expect_code(12).expect_stderr(&["refuses this client's certificate, or requires one"]);
    push(&format!("{json}&client-certificate=node.pem&client-key=node.key")).expect_code(0);
    assert!(!server.objects().keys().is_empty());
    push("&ca-file=authority.pem").expect_code(2).expect_stderr(&["set transport = \"json\""]);
}

/// Starts a proxy that connects to `server` for any host, if it is given its password.
fn proxy(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || tunnel(client, server));
        }
    });
    address
}

fn tunnel(mut client: TcpStream, server: SocketAddr) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|length| length == 1) {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    // user:secret
    if !head.contains("proxy-authorization: basic dxnlcjpzzwnyzxq=") {
        let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
        let _ = client.write_all(refusal);
        return;
    }
    let mut server = TcpStream::connect(server).unwrap();
    let _ = client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n");
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    let _ = std::io::copy(&mut server, &mut client);
}

#[test]
fn a_proxy_carries_what_it_may_and_is_named_when_it_refuses() {
    let scene = Scene::new(Validity::OtherHost);
    let address = scene.front.endpoint();
    let address = address.strip_prefix("http://").unwrap().trim_end_matches('/');
    let proxy = proxy(address.parse().unwrap());
    // Nobody but the proxy knows that name.
    let push = || scene.push_to("https://other.example", "&ca-file=authority.pem");
    let mut without_password = push();
    without_password.env("HTTPS_PROXY", format!("http://{proxy}"));
    let why = format!("the proxy {proxy} refuses the connection");
    refused(&scene, without_password.run(), &["proxy authorization required", &why]);
    let mut wrong_password = push();
    wrong_password.env("HTTPS_PROXY", format!("http://user:wrong@{proxy}"));
    let outcome = wrong_password.run();
    assert!(!outcome.stderr.contains("wrong"), "{}", outcome.stderr);
    refused(&scene, outcome, &[&why]);
    let mut with_password = push();
    with_password.env("HTTPS_PROXY", format!("http://user:secret@{proxy}"));
    with_password.run().expect_code(0);
    assert!(scene.is_stored());
}

/// Files of the step, each a request of its own.
const FILES: u64 = 100;
/// Requests that the push has under way at once.
const MAX_CONCURRENT_REQUESTS: u64 = 8;

/// The SDK opens a connection for each request that finds none idle, also where one becomes idle before the handshake
/// is over. That is why there may be more connections than concurrent requests, and why the server answers late. Each
/// TLS 1.3 handshake leaves two tickets, which the SDK's rustls keeps (eight for each server) and uses once. The first
/// connection has answered before the others are opened, so at least two of these resume its session.
#[test]
fn connections_are_reused_and_later_ones_resume_a_session() {
    let (place, authority) = (Place::new(), Authority::new());
    authority.write(&place.path("authority.pem"));
    let delays = Delays { latency: Duration::from_millis(20), ..Delays::default() };
    let server = DiscardS3::start_with(authority.acceptor(Validity::Valid), delays);
    for number in 0..FILES {
        place.write(&format!("step_1/part-{number:03}.bin"), format!("part {number}"));
    }
    let endpoint = server.endpoint();
    let remote = format!(
        "s3://bucket/p?endpoint={endpoint}&region=us-east-1&ca-file=authority.pem\
         &max-concurrent-requests={MAX_CONCURRENT_REQUESTS}"
    );
    let mut push = place.command(["push", "step_1", "--run", "demo/a", "--local", "vault"]);
    push.option("--remote", remote).envs(ANY_KEYS);
    push.run().expect_code(0);
    let (requests, counts) = (server.store().take_requests(), server.take_connections());
    assert!(requests >= FILES, "{requests} requests");
    assert!(counts.connections <= 2 * MAX_CONCURRENT_REQUESTS, "{counts:?}");
    assert!(counts.resumed >= 2, "{counts:?}");
}
