//! Texts about timeouts and clocks.

use super::recogniser::{Recogniser, text};
use crate::explain::Cause;

pub(super) const TEXTS: &[Recogniser] = &[
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
];
