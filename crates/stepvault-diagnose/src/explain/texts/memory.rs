//! Texts about the memory of a machine, a cgroup or a device, and about shared memory.

use super::recogniser::{Recogniser, text};
use crate::explain::Cause;

pub(super) const TEXTS: &[Recogniser] = &[
    text(
        Cause::OutOfMemory,
        65,
        r"[Oo]ut of memory: Kill(ed)? process|oom-kill:constraint=|invoked oom-killer|oom_reaper: reaped process",
        "the kernel's OOM killer",
        "Memory cgroup out of memory: Killed process 4321 (python) total-vm:104857600kB, anon-rss:66060288kB",
    ),
    text(
        Cause::OutOfMemory,
        60,
        r"(?i)oom[-_ ]?kill(ed)? event|have been OOM Killed|\bOOMKilled\b|result 'oom-kill'",
        "Slurm, Kubernetes and systemd",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
    ),
    text(
        Cause::OutOfMemory,
        55,
        r"node running low on memory|ray\.exceptions\.OutOfMemoryError",
        "Ray's memory monitor",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    ),
    text(
        Cause::OutOfMemory,
        45,
        r"is killed by signal: Killed",
        "torch, DataLoader: a worker",
        "RuntimeError: DataLoader worker (pid 1234) is killed by signal: Killed.",
    ),
    text(
        Cause::OutOfMemory,
        45,
        r"Cannot allocate memory|DefaultCPUAllocator: (can't|not enough)|std::bad_alloc|^MemoryError|numpy\S*ArrayMemoryError",
        "the C library, ENOMEM; torch, C++ and Python",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes.",
    ),
    text(
        Cause::OutOfMemory,
        40,
        r"Signal 9 \(SIGKILL\)|exitcode *: -9\b|died with <Signals\.SIGKILL",
        "torchrun; sent by the OOM killer, or when a container is stopped",
        "traceback : Signal 9 (SIGKILL) received by PID 4321",
    ),
    text(
        Cause::OutOfMemory,
        40,
        r"(?i)exit(ed)?( with)?( code| status)?[ :=]+137\b|returned? (code|non-zero exit status) 137\b|the trainer ended: signal 9\b",
        "shells, Docker, Kubernetes and stepvault: 128 and SIGKILL",
        "container trainer exited with code 137",
    ),
    text(
        Cause::OutOfMemory,
        35,
        r"\d+ Killed +\S",
        "bash",
        "start.sh: line 12:  4321 Killed                  python train.py",
    ),
    text(
        Cause::OutOfGpuMemory,
        55,
        r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "torch",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
    ),
    text(
        Cause::OutOfGpuMemory,
        55,
        r"RESOURCE_EXHAUSTED: (Out of memory|Attempting to (reserve|allocate))",
        "XLA",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
    ),
    text(
        Cause::SharedMemoryFull,
        55,
        r"is killed by signal: Bus error|out of shared memory|insufficient shared memory \(shm\)",
        "torch, DataLoader",
        "RuntimeError: DataLoader worker (pid 88) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
    ),
    text(
        Cause::SharedMemoryFull,
        45,
        r"unable to (write to|mmap|open shared memory object|allocate shared memory)",
        "torch, shared memory between processes",
        "RuntimeError: unable to write to file </torch_1234_5678>",
    ),
];
