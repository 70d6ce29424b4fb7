//! What `inspect` inspects: a directory of this machine, or a prefix of a bucket.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::{RelativePath, RemoteUrl, Result, Timestamp};
use stepvault_engine::inspect::{
    InspectRequest, Inspection, ReadGuard, RemoteDirectory, RemoteReads, inspect, inspect_remote,
};
use stepvault_remote::open::open_with;

use crate::context::{Settings, check_presence};
use crate::output::human;
use crate::progress::Progress;
use crate::session::Session;

/// A place to inspect, listed if it is a remote one. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// A directory or a file.
    Local(PathBuf),
    /// Objects.
    Remote(RemoteDirectory),
}

/// What was read of a bucket.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReadsDocument {
    /// Objects below the URL.
    objects: u64,
    /// Their bytes.
    object_bytes: u64,
    /// Requests that listed them.
    list_requests: u64,
    /// Requests for ranges of objects, or for the size of one; those that were repeated are not counted.
    read_requests: u64,
    /// Bytes that were requested of objects.
    read_bytes: u64,
    /// Whether all data of the steps was read. Otherwise what takes all bytes was not checked, such as the checksums that
    /// formats carry.
    all_data: bool,
    /// Objects whose check was not made, or not to its end.
    unread: Vec<UnreadObject>,
    /// Listed names that no file can have; they are left out.
    ignored: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct UnreadObject {
    /// Its path, relative to PATH.
    path: String,
    /// Why it was not read.
    reason: String,
}

/// A run of stepvault.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StepvaultRun {
    /// The run's name.
    run: String,
    /// The URL of the remote that it is on.
    remote: String,
}

/// Returns whether a path is the URL of a place.
pub(super) fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains("://") || text.starts_with("arn:"))
}

impl Place {
    /// Finds a directory, or lists what lies below a URL. The reads of the objects end when the guard is dropped.
    pub(super) async fn find(
        session: &Session,
        path: &Path,
        reads_all: bool,
        progress: &Progress,
    ) -> Result<(Self, Option<ReadGuard>)> {
        let local = |path: PathBuf| {
            check_presence("cannot inspect", &path)?;
            Ok((Self::Local(path), None))
        };
        let Some(text) = path.to_str().filter(|_| is_url(path)) else {
            return local(path.to_owned());
        };
        // Before the configuration is read, whose errors name a key.
        RemoteUrl::parse(text)?;
        let settings = Settings::load_of_remotes(session, vec![text.to_owned()])?;
        let mut remotes = settings.all_remotes();
        let Some(mut remote) = remotes.pop() else {
            return local(path.to_owned());
        };
        if remote.url.scheme.is_directory() {
            return local(PathBuf::from(remote.url.prefix));
        }
        let url = remote.url.clone();
        remote.url.prefix = String::new();
        let store = open_with(&remote, progress.observer(), settings.open_options()).await?;
        let (directory, guard) = RemoteDirectory::list(store, &url, reads_all).await?;
        Ok((Self::Remote(directory), Some(guard)))
    }

    /// Inspects it. Blocks.
    pub(super) fn inspect(&self, request: &InspectRequest<'_>, now: Timestamp) -> Result<Inspection> {
        match self {
            Self::Local(path) => inspect(path, request, now),
            Self::Remote(directory) => inspect_remote(directory, request, now),
        }
    }

    /// Returns what it took to inspect; `None` for a directory of this machine.
    pub(super) fn reads(&self, all_data: bool) -> Option<ReadsDocument> {
        let Self::Remote(directory) = self else { return None };
        let RemoteReads { objects, object_bytes, list_requests, read_requests, read_bytes, unread, ignored } =
            directory.reads();
        let unread = unread.into_iter().map(|(path, reason)| UnreadObject { path, reason }).collect();
        Some(ReadsDocument {
            objects,
            object_bytes,
            list_requests,
            read_requests,
            read_bytes,
            all_data,
            unread,
            ignored,
        })
    }
}

/// Returns what a path is called in results: a URL without its query, which may hold a secret.
pub(super) fn shown(path: &Path) -> PathBuf {
    let url = path.to_str().filter(|_| is_url(path)).and_then(|text| text.parse::<RemoteUrl>().ok());
    url.map_or_else(|| path.to_owned(), |url| PathBuf::from(url.to_string()))
}

impl StepvaultRun {
    /// Returns the runs at these paths below the inspected place.
    pub(super) fn all(place: &Path, runs: &[String]) -> Vec<Self> {
        let text = place.to_str().unwrap_or_default();
        let remote = if is_url(place) {
            text.trim_end_matches('/').to_owned()
        } else {
            let absolute = std::path::absolute(place).unwrap_or_default();
            format!("file://{}", absolute.display())
        };
        let of = |run: &String| {
            if !run.is_empty() {
                return Some(Self { run: run.clone(), remote: remote.clone() });
            }
            let (above, name) = remote.rsplit_once('/')?;
            let is_name = RelativePath::new(name).is_ok() && !above.ends_with("//");
            is_name.then(|| Self { run: name.to_owned(), remote: above.to_owned() })
        };
        runs.iter().filter_map(of).collect()
    }

    /// Returns the sentence that names it.
    pub(super) fn line(&self) -> String {
        let Self { run, remote } = self;
        format!("{run} is a run of stepvault: 'stepvault list --remote {remote} --run {run}' shows its steps")
    }
}

impl ReadsDocument {
    /// Returns the lines about what was read, and what was not.
    pub(super) fn lines(&self) -> Vec<String> {
        let unread = self.unread.iter();
        let mut lines: Vec<String> =
            unread.map(|UnreadObject { path, reason }| format!("{path}: not checked: {reason}")).collect();
        if self.ignored > 0 {
            lines.push(format!("warning: {} objects have names that no file can have", self.ignored));
        }
        let Self { objects, object_bytes, list_requests, read_requests, read_bytes, .. } = self;
        let (all, read) = (human::bytes(*object_bytes), human::bytes(*read_bytes));
        let requests = list_requests + read_requests;
        let bounds = if self.all_data {
            ""
        } else {
            "; only headers: checks that need all bytes, such as checksums in the files, were not made (--deep does)"
        };
        lines.push(format!("{objects} objects of {all}: {requests} requests, {read} read{bounds}"));
        lines
    }
}
