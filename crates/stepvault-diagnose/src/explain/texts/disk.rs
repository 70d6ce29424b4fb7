//! Texts about disks that are full, read-only, unreachable or faulty.

use super::recogniser::{Open, Recogniser, text};
use crate::explain::Cause;

pub(super) const TEXTS: &[Recogniser] = &[
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
];
