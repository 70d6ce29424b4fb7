#!/bin/bash
# Prolog for slurm.conf: creates a directory for the job on the node's disk, in which job.sbatch keeps the vault and the
# checkpoints. Install it with epilog.sh under /etc/slurm, and set in slurm.conf:
#
#   Prolog=/etc/slurm/prolog.sh
#   Epilog=/etc/slurm/epilog.sh
#   PrologFlags=Alloc
#
# Install stepvault-reclaim.service and stepvault-reclaim.timer under /etc/systemd/system, and enable the timer.
#
# Set `scratch` here, in epilog.sh and in job.sbatch to the same directory on the fast disk, owned by root, mode 0755.
#
# Users: slurmd runs this as root. The job's user owns the job's directory, and only that user's processes write to it,
# both the trainer and the agent; otherwise the agent could not hard-link what the trainer writes.
#
# Slurm drains the node if its prolog fails, and delays the job while it runs. A node without a disk for checkpoints can
# still run the job, so this prolog always exits with 0, contacts no store, and waits five seconds at most.

# slurmd sets no PATH.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
scratch=${JOB_SCRATCH:-/mnt/nvme/jobs}

say() { logger -t stepvault-prolog -- "job $SLURM_JOB_ID: $*" 2>/dev/null || true; }

# The epilog of an earlier start of this job on this node may still be uploading, and holds the vault. Kill it: the
# agent of this start continues its uploads, and a killed agent leaves nothing inconsistent.
take_over() {
  local process
  [ -e "$1.lock" ] || return 0
  flock --nonblock "$1.lock" true && return 0
  # The holder of the lock wrote its process ID, and leads its own process group.
  process=$(cat "$1.pid") || return 1
  [[ $process =~ ^[1-9][0-9]*$ ]] || return 1
  kill -KILL -- "-$process" 2>/dev/null
  flock --wait 5 "$1.lock" true
}

main() {
  local place group
  if [[ ! $SLURM_JOB_ID =~ ^[0-9]+$ || ! $SLURM_JOB_UID =~ ^[0-9]+$ ]]; then
    say "SLURM_JOB_ID or SLURM_JOB_UID is not a number; no directory is created"
    return
  fi
  [ -d "$scratch" ] || { say "$scratch does not exist on this node"; return; }
  place=$scratch/$SLURM_JOB_ID
  rm -f -- "$place.uploaded"
  take_over "$place" || say "the epilog of an earlier start is still uploading"
  group=$(id -g "$SLURM_JOB_UID") || { say "user $SLURM_JOB_UID has no group"; return; }
  install -d -m 0700 -o "$SLURM_JOB_UID" -g "$group" "$place" || say "cannot create $place"
  # Upload and remove what jobs left that are not on this node any more.
  systemctl start --no-block stepvault-reclaim.service 2>/dev/null
}

main
exit 0
