//! Texts about the memory of a machine, a cgroup or a device, and about shared memory.

use super::recogniser::{Recogniser, text};
use crate::explain::Cause;

pub(super) const TEXTS: &[Recogniser] = &[
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
];
