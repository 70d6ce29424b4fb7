#!/bin/bash
# Prolog of slurm.conf: makes a directory of the job's own on the node's disk, for job.sbatch to keep the vault and the
# checkpoints in. Install it with epilog.sh under /etc/slurm, and set in slurm.conf:
#
#   Prolog=/etc/slurm/prolog.sh
#   Epilog=/etc/slurm/epilog.sh
#   PrologFlags=Alloc
#
# Change `scratch`, here, in epilog.sh and in job.sbatch alike: a directory of root's on the fast disk, mode 0755.
#
# Who runs as whom: slurmd runs this as root. The job's directory belongs to the job's user, and everything in it is
# written by that user's processes, the trainer and the agent alike, or the agent could not link what the trainer writes.
#
# Slurm drains the node of a prolog that fails and holds up the job meanwhile. A node without a disk for checkpoints can
# still run the job, so this one always ends with 0, asks no store, and waits five seconds at most.

# slurmd sets no search path.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
scratch=${JOB_SCRATCH:-/mnt/nvme/jobs}

say() { logger -t stepvault-prolog -- "job $SLURM_JOB_ID: $*" 2>/dev/null || true; }

# The epilog of an earlier start of this job on this node may still be uploading what that one left, and has the vault.
# The agent of this start goes on with it; a killed one leaves nothing half done.
take_over() {
  local process
  [ -e "$1.lock" ] || return 0
  flock --nonblock "$1.lock" true && return 0
  # Written by whoever holds the lock, and the leader of its own process group.
  process=$(cat "$1.pid") || return 1
  [[ $process =~ ^[1-9][0-9]*$ ]] || return 1
  kill -KILL -- "-$process" 2>/dev/null
  flock --wait 5 "$1.lock" true
}

main() {
  local place group
  if [[ ! $SLURM_JOB_ID =~ ^[0-9]+$ || ! $SLURM_JOB_UID =~ ^[0-9]+$ ]]; then
    say "SLURM_JOB_ID or SLURM_JOB_UID is not a number; no directory was made"
    return
  fi
  [ -d "$scratch" ] || { say "there is no $scratch on this node"; return; }
  place=$scratch/$SLURM_JOB_ID
  take_over "$place" || say "what an earlier start left is still being uploaded"
  group=$(id -g "$SLURM_JOB_UID") || { say "user $SLURM_JOB_UID has no group"; return; }
  install -d -m 0700 -o "$SLURM_JOB_UID" -g "$group" "$place" || say "cannot make $place"
}

main
exit 0
