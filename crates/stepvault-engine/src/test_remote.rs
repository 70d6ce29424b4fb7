//! Connects unit tests to a server of the test kit.

use stepvault_core::ids::RemoteName;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_remote::open::OpenOptions;
use stepvault_remote::s3::StaticKeys;
use stepvault_testkit::s3::StrictS3;

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
    };
    (settings, options)
}
