//! One remote's settings, from its table.

use super::merge::Merged;
use super::section::Section;
use crate::ids::RemoteName;
use crate::remote_settings::{ReadBack, RemoteSettings, RemoteUrl, Transport};

/// Builds the remote called `name`; returns `None` if its name or its URL is missing or invalid.
pub(super) fn build_remote(merged: &mut Merged, name: &str) -> Option<RemoteSettings> {
    let mut section = Section::new(merged, &["remote", name]);
    let remote_name = section.take("", RemoteName::new(name));
    let Some(text) = section.text("url") else {
        let url = section.above.join("url");
        if !section
            .merged
            .faults
            .iter()
            .any(|fault| fault.key == url.to_string())
        {
            section.fault(
                "url",
                "the remote has no URL",
                "write url = \"s3://bucket/prefix\"",
            );
        }
        return None;
    };
    // A URL that does not parse has already become a fault.
    let (url, _) = RemoteUrl::parse(&text).ok()?;
    let fallback = RemoteSettings::new(remote_name?, url);
    let seconds = |section: &mut Section<'_>, key: &str, fallback: u64| {
        let Some(duration) = section.duration(key) else {
            return fallback;
        };
        if duration.as_secs() == 0 || duration.subsec_nanos() != 0 {
            section.fault(
                key,
                "it must be a whole number of seconds, at least one",
                "write \"30s\"",
            );
        }
        duration.as_secs()
    };
    Some(RemoteSettings {
        required: section.boolean("required").unwrap_or(fallback.required),
        endpoint: section.text("endpoint"),
        region: section.text("region"),
        profile: section.text("profile"),
        path_style: section.boolean("path-style"),
        allow_http: section.boolean("allow-http").unwrap_or(fallback.allow_http),
        ca_file: section.path("ca-file"),
        client_certificate: section.path("client-certificate"),
        client_key: section.path("client-key"),
        send_token: section.boolean("send-token").unwrap_or(fallback.send_token),
        transport: match section.text("transport").as_deref() {
            Some("json") => Transport::Json,
            _ => Transport::Xml,
        },
        storage_class: section.text("storage-class"),
        server_side_encryption: section.text("server-side-encryption"),
        kms_key: section.text("kms-key"),
        tags: section.text_map("tags"),
        expected_bucket_owner: section.text("expected-bucket-owner"),
        attributes_required: section.text("attributes").as_deref() != Some("if-supported"),
        requester_pays: section
            .boolean("requester-pays")
            .unwrap_or(fallback.requester_pays),
        max_concurrent_requests: section
            .number("max-concurrent-requests")
            .unwrap_or(fallback.max_concurrent_requests),
        bandwidth_limit_bytes_per_second: section.size("bandwidth-limit"),
        stall_timeout_seconds: seconds(&mut section, "stall-timeout", fallback.stall_timeout_seconds),
        retry_deadline_seconds: seconds(&mut section, "retry-deadline", fallback.retry_deadline_seconds),
        read_back: match section.text("read-back").as_deref() {
            Some("always") => ReadBack::Always,
            _ => ReadBack::Auto,
        },
        copy_unchanged: section
            .boolean("copy-unchanged")
            .unwrap_or(fallback.copy_unchanged),
        name: fallback.name,
        url: fallback.url,
    })
}
