//! The texts that are recognized in logs and records, each with the cause that it points to, its weight and its
//! source.
//!
//! Patterns are matched against bytes, line by line. Each has an example: the text as its source prints it. The tests
//! match every example against the whole table.

use super::Cause;

/// What a text leaves undetermined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Open {
    /// Nothing.
    Nothing,
    /// Which disk, and whether bytes or inodes ran out.
    WhichSpace,
    /// Why a write failed.
    WhyWrite,
}

/// Recognizes one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recogniser {
    /// The cause it points to.
    pub cause: Cause,
    /// How strong it is by itself, from 1 to 100.
    pub weight: u32,
    /// What it leaves undetermined.
    pub open: Open,
    /// A regular expression over bytes.
    pub pattern: &'static str,
    /// The program or library that prints it.
    pub source: &'static str,
    /// An example line.
    pub example: &'static str,
}

/// Returns a recognizer of a text that `source` prints, which determines the cause. It needs a pattern and an example.
const fn text(cause: Cause, weight: u32, source: &'static str) -> Recogniser {
    Recogniser { cause, weight, open: Open::Nothing, pattern: "", source, example: "" }
}

impl Recogniser {
    const fn pattern(self, pattern: &'static str) -> Self {
        Self { pattern, ..self }
    }

    const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    /// For a text that leaves something undetermined.
    const fn leaves_open(self, open: Open) -> Self {
        Self { open, ..self }
    }
}

/// Every text, by what it is about.
pub const TEXTS: &[Recogniser] = &[
    // Disks that are full, read-only, unreachable or faulty.
    text(Cause::DiskFull, 60, "the C library, ENOSPC")
        .leaves_open(Open::WhichSpace)
        .pattern(r"No space left on device")
        .example("OSError: [Errno 28] No space left on device: '/data/out/step_200/model.safetensors'"),
    text(Cause::DiskFull, 60, "stepvault")
        .leaves_open(Open::WhichSpace)
        .pattern(r"no space is left on its filesystem")
        .example("cannot write: /vault/staging/x: no space is left on its filesystem"),
    text(Cause::DiskFull, 55, "Hugging Face Hub, tensorstore, databases")
        .leaves_open(Open::WhichSpace)
        .pattern(r"(?i)not enough (free )?disk space|insufficient (free )?disk space|disk (is )?full")
        .example("UserWarning: Not enough free disk space to download the file. The expected file size is: 4976.70 MB."),
    text(Cause::DiskFull, 45, "torch, inline_container.cc, when the archive cannot be finished")
        .leaves_open(Open::WhyWrite)
        .pattern(r"unexpected pos \d+ vs \d+")
        .example("RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0"),
    text(Cause::DiskFull, 45, "torch, inline_container.cc")
        .leaves_open(Open::WhyWrite)
        .pattern(r"PytorchStreamWriter failed writing|file write failed")
        .example("RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing file data/3: file write failed"),
    text(Cause::DiskFull, 20, "torch, a traceback through torch.save; a full disk is its most common reason")
        .leaves_open(Open::WhyWrite)
        .pattern(r"_open_zipfile_writer\(")
        .example("    with _open_zipfile_writer(f) as opened_zipfile:"),
    text(Cause::DiskFull, 30, "torch, PyTorchFileWriter")
        .leaves_open(Open::WhyWrite)
        .pattern(r"File \S+ cannot be opened")
        .example("RuntimeError: File /home/code/checkpoint/a.pth cannot be opened."),
    text(Cause::DiskFull, 30, "trainers that catch the error of a save")
        .leaves_open(Open::WhyWrite)
        .pattern(r"(?i)failed to (save|write) (the )?(training )?checkpoint")
        .example("Failed to save checkpoint: [Errno 5] disk"),
    text(Cause::TemporaryDirectoryFull, 60, "TensorFlow's gs:// and s3:// filesystems, which write to TMPDIR first")
        .pattern(r"Could not append to the internal temporary file")
        .example("INTERNAL: Could not append to the internal temporary file."),
    text(Cause::TemporaryDirectoryFull, 55, "Python, tempfile")
        .pattern(r"No usable temporary directory found")
        .example("FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/app']"),
    text(Cause::InodesFull, 65, "stepvault")
        .pattern(r"its filesystem has no inode left")
        .example("cannot create: /vault/runs/a/steps: its filesystem has no inode left"),
    text(Cause::QuotaReached, 60, "the C library, EDQUOT; stepvault")
        .pattern(r"Disk quota exceeded|disk quota is used up")
        .example("OSError: [Errno 122] Disk quota exceeded: '/home/user/run/step_100'"),
    text(Cause::ReadOnly, 60, "the C library, EROFS; stepvault")
        .pattern(r"Read-only file system|its filesystem is read-only")
        .example("OSError: [Errno 30] Read-only file system: '/mnt/checkpoints/step_100'"),
    text(Cause::ReadOnly, 65, "the kernel, ext4")
        .pattern(r"[Rr]emounting filesystem read-only|Aborting journal on device")
        .example("EXT4-fs (nvme1n1): Remounting filesystem read-only"),
    text(Cause::PermissionDenied, 55, "the C library, EACCES; stepvault")
        .pattern(r"Permission denied(: ?'|: ?/|$| \(os error)|this user may not do that")
        .example("PermissionError: [Errno 13] Permission denied: '/mnt/checkpoints/checkpoint_2000.pth'"),
    text(Cause::PermissionDenied, 45, "the C library, EPERM")
        .pattern(r"\[Errno 1\] Operation not permitted|Operation not permitted \(os error 1\)")
        .example("PermissionError: [Errno 1] Operation not permitted: '/mnt/checkpoints/step_1'"),
    text(Cause::PermissionDenied, 45, "trainers that check before they save")
        .pattern(r"(?i)(directory|path) is not writ(e)?able")
        .example("ERROR: checkpoint directory is not writable: /mnt/checkpoints"),
    text(Cause::DirectoryMissing, 55, "torch, torch.save")
        .pattern(r"Parent directory \S+ does not exist")
        .example("RuntimeError: Parent directory /mnt/checkpoints does not exist."),
    text(Cause::DirectoryMissing, 50, "trainers on clusters whose directories come from variables")
        .pattern(r"(CHECKPOINT_ARTIFACT_PATH|LOSSY_ARTIFACT_PATH|OUTPUT_PATH)\S* (is )?(not set|missing|unset|does not exist|not found)")
        .example("ValueError: CHECKPOINT_ARTIFACT_PATH is not set"),
    text(Cause::DirectoryMissing, 45, "Python, os.environ")
        .pattern(r"KeyError: '(CHECKPOINT_ARTIFACT_PATH|LOSSY_ARTIFACT_PATH|OUTPUT_PATH)'")
        .example("KeyError: 'CHECKPOINT_ARTIFACT_PATH'"),
    text(Cause::FilesystemUnreachable, 55, "the C library, ENOTCONN and ESTALE, on FUSE and NFS")
        .pattern(r"Transport endpoint is not connected|Stale file handle|the network filesystem has lost the file")
        .example("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/gcs/checkpoints'"),
    text(Cause::FilesystemUnreachable, 50, "the kernel, NFS and Lustre")
        .pattern(r"nfs: server \S+ not responding|lost connection with server .* Lustre|LustreError: .*timed out")
        .example("nfs: server 10.0.0.7 not responding, still trying"),
    text(Cause::DiskFault, 55, "the C library, EIO; stepvault")
        .pattern(r"Input/output error|reports an input/output error")
        .example("RuntimeError: write(): fd 29 failed with Input/output error"),
    text(Cause::DiskFault, 55, "the kernel's block layer and filesystems")
        .pattern(r"I/O error, dev \w+|Buffer I/O error on dev|EXT4-fs error|XFS \(\S+\): .*(Corruption|I/O [Ee]rror)|critical medium error")
        .example("blk_update_request: I/O error, dev nvme1n1, sector 1048576 op 0x1:(WRITE)"),
    text(Cause::TooManyOpenFiles, 55, "the C library, EMFILE; stepvault")
        .pattern(r"Too many open files|too many files are open")
        .example("OSError: [Errno 24] Too many open files: '/out/step_9/rank_3.pt'"),
    text(Cause::TooManyOpenFiles, 40, "Python, multiprocessing in torch's data loader")
        .pattern(r"received \d+ items of ancdata")
        .example("RuntimeError: received 0 items of ancdata"),
    // The memory of a machine, a cgroup or a device, and about shared memory.
    text(Cause::OutOfMemory, 65, "the kernel's OOM killer")
        .pattern(r"[Oo]ut of memory: Kill(ed)? process|oom-kill:constraint=|invoked oom-killer|oom_reaper: reaped process")
        .example("Memory cgroup out of memory: Killed process 4321 (python) total-vm:104857600kB, anon-rss:66060288kB"),
    text(Cause::OutOfMemory, 60, "Slurm, Kubernetes and systemd")
        .pattern(r"(?i)oom[-_ ]?kill(ed)? event|have been OOM Killed|\bOOMKilled\b|result 'oom-kill'")
        .example("slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed."),
    text(Cause::OutOfMemory, 55, "Ray's memory monitor")
        .pattern(r"node running low on memory|ray\.exceptions\.OutOfMemoryError")
        .example("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    text(Cause::OutOfMemory, 45, "torch, DataLoader: a worker")
        .pattern(r"is killed by signal: Killed")
        .example("RuntimeError: DataLoader worker (pid 1234) is killed by signal: Killed."),
    text(Cause::OutOfMemory, 45, "the C library, ENOMEM; torch, C++ and Python")
        .pattern(r"Cannot allocate memory|DefaultCPUAllocator: (can't|not enough)|std::bad_alloc|^MemoryError|numpy\S*ArrayMemoryError")
        .example("RuntimeError: [enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes."),
    text(Cause::OutOfMemory, 40, "torchrun; sent by the OOM killer, or when a container is stopped")
        .pattern(r"Signal 9 \(SIGKILL\)|exitcode *: -9\b|died with <Signals\.SIGKILL")
        .example("traceback : Signal 9 (SIGKILL) received by PID 4321"),
    text(Cause::OutOfMemory, 40, "shells, Docker, Kubernetes and stepvault: 128 and SIGKILL")
        .pattern(r"(?i)exit(ed)?( with)?( code| status)?[ :=]+137\b|returned? (code|non-zero exit status) 137\b|the trainer ended: signal 9\b")
        .example("container trainer exited with code 137"),
    text(Cause::OutOfMemory, 35, "bash")
        .pattern(r"\d+ Killed +\S")
        .example("start.sh: line 12:  4321 Killed                  python train.py"),
    text(Cause::OutOfGpuMemory, 55, "torch")
        .pattern(r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")
        .example("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"),
    text(Cause::OutOfGpuMemory, 55, "XLA")
        .pattern(r"RESOURCE_EXHAUSTED: (Out of memory|Attempting to (reserve|allocate))")
        .example("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."),
    text(Cause::SharedMemoryFull, 55, "torch, DataLoader")
        .pattern(r"is killed by signal: Bus error|out of shared memory|insufficient shared memory \(shm\)")
        .example("RuntimeError: DataLoader worker (pid 88) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."),
    text(Cause::SharedMemoryFull, 45, "torch, shared memory between processes")
        .pattern(r"unable to (write to|mmap|open shared memory object|allocate shared memory)")
        .example("RuntimeError: unable to write to file </torch_1234_5678>"),
    // Starts and ends: commands that fail at once, loops, and jobs that are stopped.
    text(Cause::PathExists, 55, "git clone")
        .pattern(r"destination path '[^']*' already exists and is not an empty directory")
        .example("fatal: destination path 'AReaL' already exists and is not an empty directory."),
    text(Cause::PathExists, 35, "mkdir and ln")
        .pattern(r"cannot create (directory|symbolic link) .*File exists|failed to create symbolic link .*File exists")
        .example("mkdir: cannot create directory '/workspace/outputs': File exists"),
    text(Cause::PathExists, 40, "Python, EEXIST")
        .pattern(r"\[Errno 17\] File exists")
        .example("FileExistsError: [Errno 17] File exists: '/out/exp/30000.orbax-checkpoint-tmp-0'"),
    text(Cause::PathExists, 45, "Orbax")
        .pattern(r"StepAlreadyExistsError|Destination \S+ already exists\.|Checkpoint for step \d+ already exists")
        .example("ValueError: Destination /out/exp/30000 already exists."),
    text(Cause::RestartLoop, 55, "stepvault")
        .pattern(r"restart loop: the (trainer|agent) (of '[^']+' )?was started")
        .example("warning: restart loop: the trainer of 'grpo' was started 5 times within 10 min on node-0; the last starts ended with: exit 128"),
    text(Cause::RestartLoop, 55, "Kubernetes and systemd")
        .pattern(r"CrashLoopBackOff|Back-off restarting failed container|[Ss]tart request repeated too quickly")
        .example("Back-off restarting failed container trainer in pod trainer-0_default"),
    text(Cause::RestartLoop, 25, "systemd and torchrun")
        .pattern(r"Scheduled restart job, restart counter is at \d+|\d+/\d+ attempts left; will restart worker group")
        .example("[default] Worker group FAILED. 3/3 attempts left; will restart worker group"),
    text(Cause::TakenAway, 60, "Slurm")
        .pattern(r"CANCELLED AT \S+ DUE TO (PREEMPTION|TIME LIMIT|NODE FAILURE)|DUE TO TIME LIMIT")
        .example("slurmstepd: error: *** JOB 4711 ON node-3 CANCELLED AT 2026-11-21T10:16:00 DUE TO PREEMPTION ***"),
    text(Cause::TakenAway, 35, "torchrun")
        .pattern(r"Received (15|Signals\.SIGTERM|SIGTERM) death signal|Signal 15 \(SIGTERM\)|died with <Signals\.SIGTERM")
        .example("W1121 10:16:00 torch/distributed/elastic/agent/server/api.py:741] Received 15 death signal, shutting down workers"),
    text(Cause::TakenAway, 50, "stepvault, EC2 and Compute Engine")
        .pattern(r"an? (EC2 spot|Compute Engine preemption) notice|Spot interruption notice|instance is being preempted")
        .example("stepvault: told to stop by an EC2 spot notice"),
    // Timeouts and clocks.
    text(Cause::TimeOut, 45, "torch, ProcessGroupNCCL.cpp")
        .pattern(r"Watchdog caught collective operation timeout")
        .example("[rank3]:[E321 02:07:08 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=28956, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600058 milliseconds before timing out."),
    text(Cause::TimeOut, 35, "torch, ProcessGroupNCCL.cpp")
        .pattern(r"Some NCCL operations have failed or timed out|Timeout at NCCL work")
        .example("[rank1]:[E ProcessGroupNCCL.cpp:577] [Rank 1] Some NCCL operations have failed or timed out."),
    text(Cause::TimeOut, 45, "gloo")
        .pattern(r"Timed out waiting \d+ms for (recv|send) operation to complete")
        .example("RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"),
    text(Cause::TimeOut, 45, "torch, gloo's monitored barrier")
        .pattern(r"failed to pass monitoredBarrier in \d+ ms")
        .example("RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 120000 ms"),
    text(Cause::TimeOut, 40, "JAX's coordination service, and trainers with a barrier after a save")
        .pattern(r"(?i)barrier (has )?timed? ?-?out")
        .example("Checkpoint barrier timeout on rank 3: Timed out after 120 s"),
    text(Cause::TimeOut, 40, "torch, TCPStore")
        .pattern(r"Timed out after \d+ seconds waiting for clients|wait timeout after \d+ms, keys:|The client socket has timed out after")
        .example("torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 3/4 clients joined."),
    text(Cause::TimeOut, 50, "AReaL, name_resolve.py; it waits 120 s for a weight update through the disk")
        .pattern(r"Timeout waiting for key '")
        .example("TimeoutError: Timeout waiting for key 'root/exp/trial/update_weights_from_disk/57' (NfsNameRecordRepository)"),
    text(Cause::TimeOut, 40, "Orbax, futures of an asynchronous save")
        .pattern(r"futures but timed out after [\d.]+ seconds")
        .example("ChainedFuture completed 0/1 futures but timed out after 1199.96 seconds"),
    text(Cause::TimeOut, 35, "gRPC: JAX, TensorStore, Google Cloud")
        .pattern(r"DEADLINE_EXCEEDED")
        .example("jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: rank 2 did not arrive"),
    text(Cause::TimeOut, 30, "the kernel: a process that waits for a disk")
        .pattern(r"blocked for more than \d+ seconds")
        .example("INFO: task python:4321 blocked for more than 120 seconds."),
    text(Cause::TimeOut, 20, "Python")
        .pattern(r"^(\S*\.)?Timeout(Error)?(: |$)|asyncio\.exceptions\.TimeoutError|concurrent\.futures\._base\.TimeoutError")
        .example("asyncio.exceptions.TimeoutError"),
    text(Cause::ClockWrong, 60, "S3")
        .pattern(r"RequestTimeTooSkewed|difference between the request time and the current time is too large")
        .example("An error occurred (RequestTimeTooSkewed) when calling the PutObject operation: The difference between the request time and the current time is too large."),
    text(Cause::ClockWrong, 60, "stepvault")
        .pattern(r"this machine's clock is too far from the store's")
        .example("cannot write: s3://bucket/x: this machine's clock is too far from the store's"),
    text(Cause::ClockWrong, 55, "AWS")
        .pattern(r"Signature not yet current|Signature expired: \S+ is now earlier than")
        .example("InvalidSignatureException: Signature expired: 20261121T101600Z is now earlier than 20261121T111600Z"),
    text(Cause::ClockWrong, 55, "Google's token service, and TLS")
        .pattern(r"must be a short-lived token|Token used too early|certificate is not yet valid")
        .example("google.auth.exceptions.RefreshError: ('Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe.',)"),
    // Stores: credentials, permissions, uploads without progress.
    text(Cause::CredentialsExpired, 60, "AWS")
        .pattern(r"ExpiredToken|TokenRefreshRequired|[Tt]he provided token has expired|security token included in the request is expired")
        .example("botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the UploadPart operation: The provided token has expired."),
    text(Cause::CredentialsExpired, 60, "AWS, single sign-on")
        .pattern(r"SSO session associated with this profile has expired|Token has expired and refresh failed")
        .example("Error when retrieving token from sso: Token has expired and refresh failed"),
    text(Cause::CredentialsExpired, 55, "Google")
        .pattern(r"Reauthentication is needed|Token has been expired or revoked|invalid_grant")
        .example("google.auth.exceptions.RefreshError: Reauthentication is needed. Please run `gcloud auth application-default login` to reauthenticate."),
    text(Cause::CredentialsExpired, 60, "stepvault")
        .pattern(r"the credentials have expired")
        .example("cannot write: s3://bucket/x: the credentials have expired"),
    text(Cause::AccessRefused, 50, "S3")
        .pattern(r"\(AccessDenied\)|<Code>AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|\(403\) when calling")
        .example("botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the PutObject operation: Access Denied"),
    text(Cause::AccessRefused, 50, "Google Cloud Storage")
        .pattern(r"does not have storage\.\S+ access|Anonymous caller does not have")
        .example("google.api_core.exceptions.Forbidden: 403 trainer@project.iam.gserviceaccount.com does not have storage.objects.create access to the Google Cloud Storage object."),
    text(Cause::AccessRefused, 50, "AWS and Google SDKs")
        .pattern(r"Unable to locate credentials|NoCredentialsError|DefaultCredentialsError|default credentials were not found")
        .example("botocore.exceptions.NoCredentialsError: Unable to locate credentials"),
    text(Cause::AccessRefused, 50, "stepvault")
        .pattern(r"the credentials do not allow this|does not know this access key|secret key does not (fit|match)|session token is not valid")
        .example("cannot write: s3://bucket/x: the credentials do not allow this"),
    text(Cause::UploadStalled, 40, "AWS SDKs")
        .pattern(r"Could not connect to the endpoint URL|Read timeout on endpoint URL|Connect timeout on endpoint URL")
        .example("botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: \"https://bucket.s3.amazonaws.com/x\""),
    text(Cause::UploadStalled, 35, "S3, Google Cloud Storage and stepvault")
        .pattern(r"\(SlowDown\)|Please reduce your request rate|rateLimitExceeded|the store asks to slow down")
        .example("An error occurred (SlowDown) when calling the UploadPart operation: Please reduce your request rate."),
    text(Cause::UploadStalled, 45, "stepvault")
        .pattern(r"is not durable on \S+:")
        .example("warning: step 5 (attempt 1) of 'demo/a' is not durable on main: connection refused"),
    // Incomplete checkpoints, printed when they are loaded.
    text(Cause::InterruptedSave, 55, "torch, loading a truncated archive")
        .pattern(r"failed finding central directory")
        .example("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
    text(Cause::InterruptedSave, 50, "torch, loading a damaged archive")
        .pattern(r"PytorchStreamReader failed|invalid header or archive is corrupted|file not found: archive/data")
        .example("RuntimeError: PytorchStreamReader failed locating file data/39: file not found"),
    text(Cause::InterruptedSave, 55, "torch, loading a truncated file of the legacy format")
        .pattern(r"unexpected EOF, expected \d+ more bytes")
        .example("RuntimeError: unexpected EOF, expected 1234 more bytes. The file might be corrupted."),
    text(Cause::InterruptedSave, 45, "Python, pickle")
        .pattern(r"EOFError: Ran out of input|pickle data was truncated|UnpicklingError: (invalid load key|unexpected end)")
        .example("_pickle.UnpicklingError: pickle data was truncated"),
    text(Cause::InterruptedSave, 50, "safetensors")
        .pattern(r"Error while deserializing header|MetadataIncompleteBuffer|InvalidHeaderDeserialization|HeaderTooLarge|HeaderTooSmall|InvalidHeaderLength")
        .example("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"),
    text(Cause::InterruptedSave, 45, "Python, zipfile and numpy")
        .pattern(r"BadZipFile")
        .example("zipfile.BadZipFile: File is not a zip file"),
    text(Cause::InterruptedSave, 45, "prime-rl, Megatron and torchtune, on the name of an unfinished save")
        .pattern(r"invalid literal for int\(\) with base 10: '[^']*(tmp|partial|incomplete|unfinished)")
        .example("ValueError: invalid literal for int() with base 10: '5.partial'"),
    text(Cause::InterruptedSave, 45, "trainers that catch the error of a load")
        .pattern(r"Failed to load checkpoint .*(truncated|corrupt)|(?i)checkpoint (file )?(is |may be |might be )?(corrupt(ed)?|truncated)")
        .example("ERROR Checkpoint is corrupted: /out/step_12.pt"),
    text(Cause::PartialStep, 50, "Python, on a file of a step: Hugging Face Trainer, torch DCP, prime-rl")
        .pattern(r"No such file or directory: '[^']*(trainer_state\.json|/\.metadata|optimizer\.pt|progress\.pt|rng_state\w*\.pth)'")
        .example("FileNotFoundError: [Errno 2] No such file or directory: '/out/checkpoint-15/trainer_state.json'"),
    text(Cause::PartialStep, 50, "DeepSpeed")
        .pattern(r"zero checkpoints paths are missing|Expect \d+ .*checkpoint files|Empty ds_version")
        .example("[WARNING] The following zero checkpoints paths are missing: ['/out/global_step20/zero_pp_rank_1_mp_rank_00_optim_states.pt']"),
    text(Cause::PartialStep, 45, "Hugging Face Trainer and Orbax")
        .pattern(r"Can't find a valid checkpoint at|No checkpoint path found|No structure could be identified for the checkpoint|is not a valid checkpoint")
        .example("ValueError: Can't find a valid checkpoint at /out/checkpoint-15"),
    text(Cause::PartialStep, 50, "torch DCP and stepvault")
        .pattern(r"(?i)missing (key|file|shard)s? in (the )?checkpoint|lacks the parts? of")
        .example("RuntimeError: Missing key in checkpoint state_dict: optimizer.state.layers.0.weight.exp_avg."),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::Scanner;
    use super::*;

    #[test]
    fn every_text_is_recognised_for_what_it_speaks_for_and_nothing_else() {
        let scanner = Scanner::default();
        for text in TEXTS {
            let scan = scanner.scan(text.example.as_bytes()).unwrap();
            let found: Vec<_> = scan.sightings.iter().map(|found| found.recogniser).collect();
            assert!(found.contains(&text), "{:?} does not match {:?}", text.pattern, text.example);
            let causes: BTreeSet<Cause> = found.iter().map(|found| found.cause).collect();
            assert_eq!(causes.len(), 1, "{:?} speaks for {causes:?}", text.example);
        }
    }

    #[test]
    fn every_text_has_a_source_and_a_weight() {
        let mut patterns = BTreeSet::new();
        for text in TEXTS {
            assert!(patterns.insert(text.pattern), "twice: {}", text.pattern);
            assert!((1..=100).contains(&text.weight), "{}", text.pattern);
            assert!(!text.source.is_empty() && !text.example.contains('\n'), "{}", text.pattern);
        }
        let spoken_for: BTreeSet<Cause> = TEXTS.iter().map(|text| text.cause).collect();
        for cause in Cause::ALL {
            assert!(spoken_for.contains(&cause), "no text speaks for {cause:?}");
        }
    }

    /// What trainers print when all is well.
    const HARMLESS: &[&str] = &[
        "INFO Saving checkpoint to /out/checkpoints/step_100",
        "  3%|###       | 300/10000 [01:12<38:11,  4.23it/s, loss=2.31]",
        "2025-06-29 09:30:17,120 - checkpoint_utils - INFO - tr /mnt/checkpoints/checkpoint_20250629-093015_2000.pth",
        "Loading weights from disk done",
        "Rank 0: Final synchronization completed",
        "dist.init_process_group(backend='nccl', timeout=datetime.timedelta(seconds=1800))",
        "Checkpoint saved successfully: ./work_dir/checkpoints/checkpoint_step_1000.pt",
        "git@github.com: Permission denied (publickey).",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.jsonl'",
        "the trainer ended: exit 0",
        "exit code 0, memory 12 GB, disk 40% full",
    ];

    #[test]
    fn what_is_harmless_speaks_for_nothing() {
        let scanner = Scanner::default();
        for line in HARMLESS {
            let scan = scanner.scan(line.as_bytes()).unwrap();
            let found: Vec<_> = scan.sightings.iter().map(|found| found.recogniser.pattern).collect();
            assert!(found.is_empty(), "{line}: {found:?}");
        }
    }
}
