//! What each member of a JSON document means. A member without a line here fails the test.

/// Members whose meaning depends on the document, or on what they are a member of.
const EXACT: &[(&str, &str, &str)] = &[
    ("push", "bytes", "bytes of all files of the step"),
    ("push", "files", "number of files of the step"),
    (
        "push",
        "newly_sealed",
        "whether this push sealed the step, or found it sealed or durable already",
    ),
    (
        "push",
        "faults",
        "what is broken in its files by the rules of their formats, each with its path; it was pushed as it is",
    ),
    ("push", "remotes", "one entry for each remote"),
    ("push", "source", "SRC"),
    ("list", "steps", "the newest first"),
    ("show", "files", "number of files of the step"),
    ("show", "entries", "every file"),
    ("show", "entries[].bytes", "the file's length"),
    ("show", "entries[].path", "path inside the checkpoint"),
    ("show", "remotes", "the remotes that have committed the step"),
    ("status", "bytes", "bytes of the sealed steps"),
    (
        "status",
        "remotes",
        "one entry for each remote, as far as this node knows",
    ),
    ("status", "steps", "number of sealed steps"),
    (
        "status",
        "remotes[].required",
        "whether a step is safe only once it is durable there",
    ),
    (
        "status",
        "starts",
        "the latest 8 starts that this vault remembers, the latest first",
    ),
    ("status", "starts[].who", "`agent`, or `trainer` through `run`"),
    ("status", "starts[].started_at", "when, by that node's clock"),
    (
        "status",
        "starts[].lasted_seconds",
        "how long; null while it runs, and where nobody noted its end",
    ),
    (
        "status",
        "starts[].ending",
        "how it ended, in words: `running`, `did not say`, `exit 1`, `signal 11`, `stopped by …` or `stepvault failed: …`",
    ),
    (
        "status",
        "starts[].restored_step",
        "the step that the trainer went on from; null when there was none",
    ),
    (
        "status",
        "restart_loops",
        "who was started too often in too short a time on this node; mostly empty",
    ),
    ("status", "restart_loops[].who", "`agent` or `trainer`"),
    ("status", "restart_loops[].starts", "how many starts"),
    (
        "status",
        "demoted",
        "steps that restores pass over because the trainer does not survive them",
    ),
    ("inspect", "path", "PATH"),
    ("inspect", "why", "what shows that it is this framework"),
    ("inspect", "steps", "every step, in the order of their numbers"),
    ("inspect", "steps[].bytes", "bytes of all files of the step"),
    ("inspect", "steps[].files", "number of files of the step"),
    ("inspect", "steps[].path", "where it is, from PATH"),
    (
        "inspect",
        "steps[].step",
        "the step's number; null where its name says none",
    ),
    (
        "inspect",
        "steps[].sound",
        "whether its files obey the rules of their formats; null where only a digest could tell",
    ),
    (
        "inspect",
        "steps[].reasons",
        "why it is not complete, or not sound; empty when nothing speaks against it",
    ),
    ("inspect", "pointer.path", "where it is, from PATH"),
    (
        "inspect",
        "pointer.step",
        "the number of the step that it names; null when that cannot be told",
    ),
    ("verify", "steps", "the steps that were checked, the newest first"),
    (
        "verify",
        "steps[].tiers",
        "one entry for each tier that has the step",
    ),
    (
        "verify",
        "steps[].tiers[].faults",
        "what is wrong, in words; empty when nothing is",
    ),
    ("prune", "tiers", "one entry for each tier, remotes first"),
    (
        "prune",
        "tiers[].plan",
        "what was decided; null when no plan could be made",
    ),
    (
        "prune",
        "tiers[].plan.decisions[].bytes",
        "bytes that the step takes on the tier",
    ),
    ("prune", "tiers[].plan.tier", "the tier"),
    (
        "prune",
        "tiers[].plan.refusal.kind",
        "`listing-failed`, `listing-empty`, `unreadable-record`, `contradiction` or `none-verified`",
    ),
    ("prune", "tiers[].plan.refusal.reason", "the same in words"),
    (
        "prune",
        "tiers[].removed",
        "the steps that were removed; empty in a dry run",
    ),
    ("gc", "remotes", "one entry for each remote"),
    (
        "gc",
        "remotes[].report",
        "what the sweep found and did, or would do in a dry run; null when it failed",
    ),
    (
        "gc",
        "remotes[].report.removed",
        "keys of the orphans that were removed",
    ),
    ("restore", "bytes", "bytes of the files that were asked for"),
    ("restore", "files", "number of the files that were asked for"),
    (
        "restore",
        "path",
        "where the step stands now, or would stand; the directory of its paths for a step of several",
    ),
    (
        "restore",
        "paths",
        "the step's own paths: `path`, or those of a step of several in the order in which they appear",
    ),
    (
        "restore",
        "skipped",
        "newer steps that were passed over, the newest first",
    ),
    (
        "restore",
        "skipped[].reasons",
        "why, one reason a tier or damaged slice of bytes",
    ),
    (
        "restore",
        "sources[].bytes",
        "bytes that came from there; null in a plan",
    ),
    (
        "restore",
        "framework",
        "the profile that the trainer's directory was taken for; null with `--include`",
    ),
    (
        "restore",
        "kept",
        "a complete step in the directory that is newer than any tier's, which the trainer goes on from; mostly null",
    ),
    (
        "restore",
        "moved_aside",
        "what the trainer would have failed over or gone on from instead, and where it is now",
    ),
    ("restore", "moved_aside[].path", "where it was"),
    ("restore", "moved_aside[].to", "where it is; null in a plan"),
    ("restore", "pointers", "what the trainer reads to find the step"),
    (
        "restore",
        "pointers[].says",
        "its text, its target, or the step that it is a copy of",
    ),
    ("stage", "path", "the directory to write to"),
    ("stage", "target", "where it is going to be"),
    (
        "commit",
        "already_there",
        "whether another process had committed it, or the same step was there before",
    ),
    (
        "commit",
        "bytes",
        "bytes of its files; null when it was there already",
    ),
    (
        "commit",
        "files",
        "how many files; null when it was there already",
    ),
    ("commit", "latest", "the link to the step committed last"),
    ("commit", "path", "where the step stands now"),
    ("config show", "values[].source.path", "the file"),
    ("config check", "faults[].source.path", "the file"),
    ("init", "path", "the file that was written"),
    (
        "agent",
        "cleaned",
        "steps of the trainer's own that were removed from a watched directory",
    ),
    ("agent", "evicted", "local copies that retention removed"),
    ("agent", "pruned", "steps that retention removed from a remote"),
    ("agent", "sealed", "steps that were taken over into the vault"),
    (
        "agent",
        "skipped",
        "entries of watched directories that were not taken over",
    ),
    ("agent", "skipped.latest[].path", "the entry"),
    ("agent", "uploaded", "steps that became durable on a remote"),
    (
        "agent",
        "not_durable",
        "sealed steps that are not durable on one of their remotes",
    ),
    (
        "agent",
        "not_durable[].failed",
        "whether it is given up on this remote until the agent is started again",
    ),
    (
        "agent",
        "not_durable[].required",
        "whether a step is safe only once it is durable there",
    ),
    ("agent", "not_durable[].reason", "why it is not there"),
    (
        "list",
        "drains",
        "drains of nodes that left something which the remote has not, nor a newer step",
    ),
    (
        "status",
        "last_drain",
        "what this node's last drain left and is not durable yet; null when there is nothing",
    ),
];

/// Members that mean the same wherever they stand, by their own name.
const ANYWHERE: &[(&str, &str)] = &[
    ("NAME", "a metric's value"),
    (
        "abandoned",
        "whether a later attempt began at or before the step: such steps go first",
    ),
    ("aborted_uploads", "unfinished uploads that were dropped"),
    ("already_durable", "whether it was durable there before"),
    (
        "incomplete",
        "remotes on which the step was begun and is not whole",
    ),
    (
        "missing_nodes",
        "the nodes whose parts are not there; this node's is",
    ),
    ("already_there", "whether the target held just this before"),
    ("attempt", "the attempt"),
    (
        "bytes",
        "bytes of all files of the step; null when no record of it can be read",
    ),
    ("changed", "tiers whose state changed"),
    (
        "crc32c",
        "CRC-32C of the bytes in hexadecimal digits; null until it has been hashed",
    ),
    ("damaged_steps", "steps with at least one damaged copy"),
    ("decisions", "every step once, oldest first"),
    (
        "digest",
        "SHA-256 over the digests of the file's parts (see the format); null until it has been hashed",
    ),
    ("disk_free_bytes", "free bytes of the vault's file system"),
    ("disk_total_bytes", "its size"),
    (
        "dry_run",
        "whether nothing was done because only the plan was wanted",
    ),
    ("durable", "whether the step is durable there now"),
    ("durable_steps", "steps that were seen durable there"),
    ("endings", "how the last of them ended, the latest last"),
    ("error", "why it failed; null when it did not"),
    ("failed", "tiers that could not be asked, and may hold more"),
    (
        "faults",
        "what is wrong, in words or findings; empty when nothing is",
    ),
    ("file", "the configuration file; null when there is none"),
    (
        "files",
        "number of files of the step; null when no record of it can be read",
    ),
    ("flag", "the flag, or the variable that stands for it"),
    ("foreign", "objects that stepvault did not write; never touched"),
    ("format", "version of the shape of the document"),
    ("freed_bytes", "bytes of the steps that go"),
    ("from", "`default`, `file`, `environment`, `url` or `flag`"),
    ("guarded", "whether a guard holds it: then nothing may drop it"),
    ("hint", "what to do about it; null when there is nothing to say"),
    ("kept_bytes", "bytes of the steps that stay"),
    ("key", "the key, dotted"),
    (
        "kind",
        "`failed`, `usage`, `not-found`, `none-valid`, `unreachable`, `held`, `damaged`, `conflict`, `source-changed`, `denied`, `no-space`, `newer-format`, `refused` or `interrupted`",
    ),
    ("latest", "the latest 1,000 of them"),
    ("line", "the line in it, from 1; null for the file as a whole"),
    ("local", "`staged` or `durable`; null without a local copy"),
    (
        "locked",
        "whether a process holds the vault's lock: an agent, or a push",
    ),
    ("marked", "keys of orphans that go at the next sweep"),
    ("message", "what failed, on what, why"),
    ("metrics", "metrics by name"),
    ("mode", "permission bits in octal"),
    ("modified_at", "modification time"),
    (
        "name",
        "name of the step's directory or file; null when no record of it can be read",
    ),
    (
        "newest_durable_step",
        "the newest of them; null when there is none",
    ),
    ("newest_step", "the newest sealed step; null when there is none"),
    ("node", "the node"),
    (
        "not_durable_bytes",
        "bytes of the sealed steps that are not durable there",
    ),
    (
        "pending_uploads_listed",
        "whether the store can list unfinished uploads",
    ),
    ("pinned", "whether the step is pinned"),
    ("planned", "whether nothing was done because of `--plan`"),
    (
        "proved_files",
        "files proved by their bytes or by the store's checksum",
    ),
    ("quarantined_steps", "steps that were found damaged and put aside"),
    ("read_bytes", "bytes that were read back"),
    ("left", "what is missing where"),
    (
        "missing_bytes",
        "bytes that were not sent there; with 0 only records were missing",
    ),
    ("node", "the node"),
    ("ended_at", "when it had ended, by that node's clock"),
    ("reason", "why, in words"),
    ("reasons", "why, in words; never empty"),
    (
        "refusal",
        "why nothing is removed at all; null when steps may be removed",
    ),
    ("remote", "the remote's name"),
    ("remotes", "the remotes that have committed the step"),
    ("removed_bytes", "their bytes"),
    (
        "restart_loop",
        "that the agent was started too often in too short a time, as in `status`; null mostly",
    ),
    ("required", "whether the step has to be durable there to be safe"),
    (
        "resume",
        "how to start the trainer so that it goes on from the step; null with `--include`",
    ),
    (
        "resumed_bytes",
        "bytes that an interrupted restore had left, and that were right",
    ),
    ("run", "the run"),
    (
        "safe",
        "whether every sealed step is durable on every remote that it has to be on",
    ),
    ("seconds", "how long it took"),
    (
        "sha256",
        "SHA-256 of the bytes; null until it has been hashed, and for a file of several parts",
    ),
    ("complete", "whether its framework had finished writing it"),
    (
        "dangling",
        "whether it names a step that is not there, or nothing that can be understood",
    ),
    ("framework", "the name of the profile"),
    (
        "pointer",
        "what the trainer reads to find the step to go on from; null where there is none",
    ),
    ("ranks", "how many ranks wrote it; null when that cannot be told"),
    (
        "resumable",
        "whether the trainer can go on from it; false for weights alone",
    ),
    ("says", "what it says"),
    ("temporary", "paths with a name that is only given while writing"),
    ("sound", "whether nothing was found wrong"),
    ("sound_steps", "steps without a damaged copy"),
    ("source", "where the value came from"),
    (
        "sources",
        "the tiers that the bytes came from, or would come from, in order",
    ),
    (
        "spared",
        "steps that the plan drops and that stayed in the end: `step`, `attempt`, `reason`",
    ),
    ("staged_steps", "sealed steps that are not wholly there"),
    ("step", "the step's number"),
    ("tier", "`local` or the remote's name"),
    ("total", "how many in all"),
    ("unchanged", "tiers that were so before"),
    (
        "unproved_files",
        "files of which only presence and size are known",
    ),
    (
        "unreachable",
        "tiers that could not be asked, and may hold newer steps",
    ),
    (
        "unreadable_steps",
        "directories in the vault that are no readable step",
    ),
    (
        "uploaded_steps",
        "steps whose files are verified there and whose commit is not yet",
    ),
    ("url", "its URL, without options"),
    ("value", "the value as TOML, with secrets masked"),
    ("values", "every value in force, in the order of the reference"),
    ("vault", "the vault's directory"),
    ("verdict", "`keep` or `drop`"),
    ("warnings", "what stopped nothing and should be looked at"),
    ("why", "what is wrong with it"),
    ("within_seconds", "within how long"),
    (
        "written_at",
        "the newest modification time of its files; null when no record of it can be read",
    ),
    ("young", "orphans younger than the grace period"),
    ("path", "where it is"),
];

/// The meaning of the member at `path` of the document called `document`.
pub(crate) fn meaning(document: &str, path: &str) -> &'static str {
    let exact = EXACT
        .iter()
        .find(|(its_document, its_path, _)| *its_document == document && *its_path == path);
    let name = path.rsplit('.').next().unwrap_or(path);
    let anywhere = || ANYWHERE.iter().find(|(its_name, _)| *its_name == name);
    exact
        .map(|(.., meaning)| *meaning)
        .or_else(|| anywhere().map(|(_, meaning)| *meaning))
        .unwrap_or_else(|| panic!("nothing says what {path} means in the document of '{document}'"))
}
