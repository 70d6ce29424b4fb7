//! A test directory with a remote on the test's own server.

use bytes::Bytes;
use stepvault_core::digest::{DigestAlgorithm, PartDigest};
use stepvault_core::ids::RemoteName;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::RemoteStore;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;

use crate::doctor::place;
use crate::support::{Outcome, Place, TestCommand};

pub(crate) const BUCKET: &str = "bucket";
pub(crate) const RUN: &str = "grpo";

/// A place, and how the remote `main` is reached from it.
pub(crate) struct RemotePlace {
    pub(crate) place: Place,
    /// `main=URL`, as `--remote` takes it.
    pub(crate) remote: String,
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
}

impl RemotePlace {
    pub(crate) fn of_s3(server: &StrictS3) -> Self {
        server.create_bucket(BUCKET);
        Self::at("s3", &server.endpoint(), server.access_key(), server.secret_key())
    }

    pub(crate) fn of_gcs(server: &StrictGcs) -> Self {
        server.create_bucket(BUCKET);
        Self::at("gs", &server.endpoint(), "", "")
    }

    pub(crate) fn at(scheme: &str, endpoint: &str, access_key: &str, secret_key: &str) -> Self {
        Self {
            place: place(),
            remote: format!("main={scheme}://{BUCKET}/team?endpoint={endpoint}"),
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
        }
    }

    /// Runs the program with the keys in its environment.
    pub(crate) fn stepvault(&self, arguments: &[&str]) -> Outcome {
        self.with_keys(self.place.command(arguments))
    }

    /// Runs a line as somebody pastes it into a shell.
    pub(crate) fn shell(&self, line: &str) -> Outcome {
        self.with_keys(self.place.shell(line))
    }

    fn with_keys(&self, mut command: TestCommand) -> Outcome {
        command
            .env("AWS_ACCESS_KEY_ID", &self.access_key)
            .env("AWS_SECRET_ACCESS_KEY", &self.secret_key)
            .env("AWS_REGION", "us-east-1")
            .run()
    }

    /// Looks at the remote.
    pub(crate) fn doctor(&self) -> Outcome {
        self.stepvault(&[
            "doctor",
            "run",
            "--local",
            "vault",
            "--run",
            RUN,
            "--remote",
            &self.remote,
            "--json",
        ])
    }

    /// Pushes a small step, with which the run is known there.
    pub(crate) fn push(&self) -> Outcome {
        self.place.save_in_run("step_1", 1000, 0);
        self.stepvault(&["push", "run/step_1", "--local", "vault", "--run", RUN, "--remote", &self.remote])
    }

    /// Leaves an upload with one part behind, as a node does that is lost.
    pub(crate) fn leave_upload(&self, key: &str, part_bytes: usize) {
        let body = Bytes::from(vec![7; part_bytes]);
        let digest = PartDigest::of(&body);
        runtime().block_on(async {
            let store = self.open().await;
            let upload = store.start_upload(key, part_bytes as u64, DigestAlgorithm::Sha256).await.unwrap();
            let sent = store.upload_part(key, &upload, 0, body.into(), &digest);
            sent.await.unwrap();
        });
    }

    /// Leaves an object behind, on S3 with the CRC-64/NVME that the AWS command line sends.
    pub(crate) fn leave_object(&self, key: &str) {
        let body = Bytes::from_static(b"left");
        let digest = PartDigest::by(DigestAlgorithm::Blake3, &body);
        runtime().block_on(async {
            let store = self.open().await;
            store.create(key, body.into(), &digest).await.unwrap();
        });
    }

    async fn open(&self) -> std::sync::Arc<dyn RemoteStore> {
        let (name, url) = self.remote.split_once('=').unwrap();
        let (url, endpoint) = url.split_once("?endpoint=").unwrap();
        let mut settings = RemoteSettings::new(RemoteName::new(name).unwrap(), url.parse().unwrap());
        settings.endpoint = Some(endpoint.to_owned());
        settings.region = Some("us-east-1".to_owned());
        if url.starts_with("gs:") {
            return stepvault_remote::gcs::open(&settings).await.unwrap();
        }
        let keys = StaticKeys { access_key: self.access_key.clone(), secret_key: self.secret_key.clone() };
        stepvault_remote::s3::open(&settings, Some(keys)).await.unwrap()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
