//! The file-system S3 server of another project for comparison, run in-process.

use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tempfile::TempDir;

use super::{ACCESS_KEY, SECRET_KEY, connections};
use crate::serve::ServerHandle;
use crate::tls::Acceptor;

/// `s3s-fs` over a temporary directory. It enforces preconditions, and supports few multipart checksums.
#[derive(Debug)]
pub struct EmbeddedS3Fs {
    handle: ServerHandle,
    root: TempDir,
}

impl EmbeddedS3Fs {
    /// Starts the server on a free loopback port.
    pub fn start() -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let files = FileSystem::new(root.path()).expect("a file system server");
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = builder.build();
        let handle =
            ServerHandle::start(move |listener| connections::serve(listener, Acceptor::default(), service))
                .expect("a server");
        Self { handle, root }
    }

    /// Returns `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.handle.endpoint()
    }

    /// Returns the only access key that it accepts.
    pub fn access_key(&self) -> &'static str {
        ACCESS_KEY
    }

    /// Returns the secret of [`access_key`](Self::access_key).
    pub fn secret_key(&self) -> &'static str {
        SECRET_KEY
    }

    /// Creates a bucket; does nothing when it exists.
    pub fn create_bucket(&self, name: &str) {
        std::fs::create_dir_all(self.root.path().join(name)).expect("a bucket directory");
    }
}
