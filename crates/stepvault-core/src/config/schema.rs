//! Every key, its type and its default.

use super::key::KeyPath;

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole number from this minimum to `i64::MAX`.
    Integer(i64),
    /// `true` or `false`.
    Boolean,
    /// Any non-empty string.
    Text,
    /// A local path. A relative path in the file starts at the file's directory.
    Path,
    /// A path inside a checkpoint.
    InnerPath,
    /// A number of nodes, or their names.
    Nodes,
    /// A number of bytes with a unit.
    Size,
    /// A duration with a unit.
    Duration,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of strings.
    Texts,
    /// A table of strings under names of the user's choice.
    TextMap,
    /// A list of rules for keeping the best.
    Best,
}

/// What a name stands for.
#[derive(Debug)]
pub(super) enum Shape {
    /// A value, and the text of its default, if it has one.
    Value(Kind, Option<&'static str>),
    /// A table with these members.
    Table(&'static [Member]),
    /// A table of tables, each under a name of the user's choice.
    Named(&'static [Member]),
    /// Tables that another crate reads.
    Foreign,
}

/// A name and its shape.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
}

const fn unset(name: &'static str, kind: Kind) -> Member {
    Member {
        name,
        shape: Shape::Value(kind, None),
    }
}

const fn default(name: &'static str, kind: Kind, default: &'static str) -> Member {
    Member {
        name,
        shape: Shape::Value(kind, Some(default)),
    }
}

const fn table(name: &'static str, members: &'static [Member]) -> Member {
    Member {
        name,
        shape: Shape::Table(members),
    }
}

const fn named(name: &'static str, members: &'static [Member]) -> Member {
    Member {
        name,
        shape: Shape::Named(members),
    }
}

const COUNT: Kind = Kind::Integer(0);
const POSITIVE: Kind = Kind::Integer(1);

/// The whole file.
pub(super) static ROOT: &[Member] = &[
    default("format", POSITIVE, "1"),
    unset("run-name", Kind::Text),
    unset("node", Kind::Text),
    unset("nodes", Kind::Nodes),
    table("local", LOCAL),
    table("upload", UPLOAD),
    table("agent", AGENT),
    table("restart", RESTART),
    table("doctor", DOCTOR),
    named("remote", REMOTE),
    table("keep", TIERS),
    named("run", RUN),
    Member {
        name: "profile",
        shape: Shape::Foreign,
    },
];

static LOCAL: &[Member] = &[
    unset("directory", Kind::Path),
    unset("maximum-size", Kind::Size),
    unset("free-space-low", Kind::Size),
    unset("free-space-high", Kind::Size),
    default("give-up-undurable", Kind::Boolean, "true"),
    default(
        "links",
        Kind::Choice(&["auto", "reflink-or-copy", "copy"]),
        "auto",
    ),
    default("allow-shared-parents", Kind::Boolean, "false"),
];

static UPLOAD: &[Member] = &[
    default("memory-budget", Kind::Size, "128 MiB"),
    default("maximum-backlog-steps", POSITIVE, "16"),
    default("incomplete-after", Kind::Duration, "30m"),
];

static AGENT: &[Member] = &[
    default("poll-interval", Kind::Duration, "5s"),
    default("retention-interval", Kind::Duration, "10m"),
    default("drain-deadline", Kind::Duration, "90s"),
    default("nice", COUNT, "10"),
    unset("cpu-share-percent", POSITIVE),
    default("notices", Kind::Texts, "auto"),
    default("rebalance", Kind::Choice(&["warn", "drain"]), "warn"),
    unset("drain-file", Kind::Path),
    unset("control-socket", Kind::Path),
    unset("metrics-listen", Kind::Text),
];

static RESTART: &[Member] = &[
    default("loop-starts", Kind::Integer(2), "5"),
    default("loop-within", Kind::Duration, "10m"),
    default("crash-within", Kind::Duration, "5m"),
    default("demote-after", COUNT, "3"),
    unset("wait-for-uploads", Kind::Duration),
];

static DOCTOR: &[Member] = &[unset("required-environment", Kind::Texts)];

/// All of these except `url` are also options of the URL's query.
pub(super) static REMOTE: &[Member] = &[
    unset("url", Kind::Text),
    default("required", Kind::Boolean, "true"),
    unset("endpoint", Kind::Text),
    unset("region", Kind::Text),
    unset("profile", Kind::Text),
    unset("path-style", Kind::Boolean),
    default("allow-http", Kind::Boolean, "false"),
    unset("ca-file", Kind::Path),
    unset("client-certificate", Kind::Path),
    unset("client-key", Kind::Path),
    default("send-token", Kind::Boolean, "false"),
    default("transport", Kind::Choice(&["xml", "json"]), "xml"),
    unset("storage-class", Kind::Text),
    unset(
        "server-side-encryption",
        Kind::Choice(&["AES256", "aws:kms", "aws:kms:dsse"]),
    ),
    unset("kms-key", Kind::Text),
    unset("tags", Kind::TextMap),
    unset("expected-bucket-owner", Kind::Text),
    default(
        "attributes",
        Kind::Choice(&["required", "if-supported"]),
        "required",
    ),
    default("requester-pays", Kind::Boolean, "false"),
    default("max-concurrent-requests", POSITIVE, "256"),
    unset("bandwidth-limit", Kind::Size),
    default("stall-timeout", Kind::Duration, "30s"),
    default("retry-deadline", Kind::Duration, "2m"),
    default("read-back", Kind::Choice(&["auto", "always"]), "auto"),
    default("copy-unchanged", Kind::Boolean, "true"),
];

static TIERS: &[Member] = &[table("local", KEEP), table("remote", KEEP)];

pub(super) static KEEP: &[Member] = &[
    unset("last", COUNT),
    unset("every-steps", COUNT),
    unset("within", Kind::Duration),
    unset("hourly", COUNT),
    unset("daily", COUNT),
    unset("weekly", COUNT),
    unset("best", Kind::Best),
];

static RUN: &[Member] = &[
    unset("run-name", Kind::Text),
    unset("watch", Kind::Path),
    default(
        "complete",
        Kind::Choice(&["auto", "rename", "marker", "quiet"]),
        "auto",
    ),
    default("quiet-time", Kind::Duration, "60s"),
    unset("profile", Kind::Text),
    unset("series", Kind::Texts),
    unset("pattern", Kind::Text),
    unset("ignore", Kind::Texts),
    unset("marker", Kind::InnerPath),
    default("clean-source", Kind::Boolean, "false"),
    default("shared", Kind::Boolean, "false"),
    default("exclusive", Kind::Boolean, "false"),
    default("announced", Kind::Boolean, "false"),
    default("digest", Kind::Choice(&["sha256", "blake3"]), "sha256"),
    unset("metrics-file", Kind::InnerPath),
    unset("metrics", Kind::TextMap),
    unset("remotes", Kind::Texts),
    table("keep", TIERS),
];

/// Returns the member that a key names.
pub(super) fn find(path: &KeyPath) -> Option<&'static Member> {
    let mut members = ROOT;
    let mut segments = path.segments().iter();
    loop {
        let segment = segments.next()?;
        let member = members.iter().find(|member| member.name == segment)?;
        members = match member.shape {
            Shape::Named(inner) => {
                // The user's name, then a member of the table under it.
                segments.next()?;
                inner
            }
            Shape::Table(inner) => inner,
            Shape::Foreign => return None,
            Shape::Value(..) => return segments.next().is_none().then_some(member),
        };
    }
}

/// Returns every key that takes a value, in the order of the schema; `names` gives the users' names in a named table.
pub(super) fn keys(names: &dyn Fn(&str) -> Vec<String>) -> Vec<(KeyPath, Kind, Option<&'static str>)> {
    let mut found = Vec::new();
    collect(&KeyPath::of(&[]), ROOT, names, &mut found);
    found
}

fn collect(
    above: &KeyPath,
    members: &'static [Member],
    names: &dyn Fn(&str) -> Vec<String>,
    found: &mut Vec<(KeyPath, Kind, Option<&'static str>)>,
) {
    for member in members {
        let path = above.join(member.name);
        match member.shape {
            Shape::Value(kind, default) => found.push((path, kind, default)),
            Shape::Table(inner) => collect(&path, inner, names, found),
            Shape::Named(inner) => {
                for name in names(member.name) {
                    collect(&path.join(&name), inner, names, found);
                }
            }
            Shape::Foreign => {}
        }
    }
}
