//! A strict S3 server, and what all tests of stores share.

use std::sync::Arc;

use stepvault_core::remote_settings::RemoteSettings;
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::RemoteStore;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::recorder::Recorder;
use stepvault_testkit::s3::{StrictS3, StrictS3Options};
pub(crate) use stepvault_testkit::stores::{
    File, bytes, create, listed, read, send_part, settings, shown, written,
};

/// A strict server with a bucket, and settings that lead to it.
pub(crate) struct Strict {
    pub(crate) server: StrictS3,
    pub(crate) settings: RemoteSettings,
    pub(crate) listener: Arc<Recorder>,
}

pub(crate) const BUCKET: &str = "checkpoints";

impl Strict {
    pub(crate) fn start() -> Self {
        Self::start_with(StrictS3Options::default())
    }

    pub(crate) fn start_with(options: StrictS3Options) -> Self {
        let server = StrictS3::start_with(options);
        server.create_bucket(BUCKET);
        let mut settings = settings(&format!("s3://{BUCKET}/vault"));
        settings.endpoint = Some(server.endpoint());
        settings.region = Some("us-east-1".to_owned());
        Self { server, settings, listener: Arc::default() }
    }

    /// Makes the next `times` requests of a method to a path fail.
    pub(crate) fn inject(&self, method: &str, path_contains: &str, times: u64, action: FaultAction) {
        self.server.faults().inject(method, path_contains, times, action);
    }

    pub(crate) fn keys(&self) -> StaticKeys {
        StaticKeys {
            access_key: self.server.access_key().to_owned(),
            secret_key: self.server.secret_key().to_owned(),
        }
    }

    /// With all decorators.
    pub(crate) async fn open(&self) -> Arc<dyn RemoteStore> {
        let options = OpenOptions { s3_keys: Some(self.keys()), ..OpenOptions::default() };
        open_with(&self.settings, Arc::clone(&self.listener) as _, options).await.unwrap()
    }

    /// Without any.
    pub(crate) async fn open_bare(&self) -> Arc<dyn RemoteStore> {
        stepvault_remote::s3::open(&self.settings, Some(self.keys())).await.unwrap()
    }
}
