//! Remotes for unit tests: in a directory, and on a server of the test kit.

use std::path::Path;
use std::sync::Arc;

use stepvault_core::ids::{RemoteName, RunName};
use stepvault_core::observe::SilentObserver;
use stepvault_core::remote_settings::{RemoteSettings, RemoteUrl};
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::s3::StaticKeys;
use stepvault_testkit::s3::StrictS3;

use crate::tier::run_remote::RunRemote;

/// Opens the run `run` on a remote in an existing directory.
pub(crate) async fn in_directory(directory: &Path) -> RunRemote {
    let (url, _) = RemoteUrl::parse(&format!("file://{}", directory.display())).unwrap();
    let settings = RemoteSettings::new(RemoteName::new("disk").unwrap(), url);
    let store = open_with(&settings, Arc::new(SilentObserver), OpenOptions::default()).await.unwrap();
    RunRemote::new(store, Arc::new(settings), RunName::new("run").unwrap())
}

/// Returns the settings of a remote in a new bucket of the server, and the options to open it.
pub(crate) fn on(server: &StrictS3) -> (RemoteSettings, OpenOptions) {
    server.create_bucket("bucket");
    let name = RemoteName::new("main").unwrap();
    let mut settings = RemoteSettings::new(name, "s3://bucket/prefix".parse().unwrap());
    settings.endpoint = Some(server.endpoint());
    let options = OpenOptions {
        s3_keys: Some(StaticKeys {
            access_key: server.access_key().to_owned(),
            secret_key: server.secret_key().to_owned(),
        }),
        ..OpenOptions::default()
    };
    (settings, options)
}
