#!/bin/bash
# Epilog of slurm.conf: uploads what a job left on the node's disk, then removes its directory. prolog.sh says how both
# are installed, and made the directory.
#
# Most jobs leave nothing to upload: `stepvault run` has drained before they ended. It is for those that were killed.
# The node stays in the state COMPLETING as long as an epilog runs, and goes down when one fails: this one hands the work
# to a process of its own and ends at once, always with 0. That process ends after two hours at the latest.
#
# Who runs as whom: slurmd runs this as root. The agent runs as the job's user, from the configuration that the job left
# in its directory; root only removes the directory, and only when the agent says that every step in it is safe. What is
# not safe stays, and the log says so. A save that was cut off goes with the directory: nothing could go on from it.
#
# Credentials: the job's environment is gone by now. They come from the node's own identity, or from files in the home
# of the job's user.

# slurmd sets no search path.
PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
scratch=${JOB_SCRATCH:-/mnt/nvme/jobs}

say() { logger -t stepvault-epilog -- "job ${1##*/}: ${*:2}" 2>/dev/null || true; }

# Runs a command as the owner of directory $1, with nothing of root's in its environment.
as_owner() {
  local place=$1 owner group home
  owner=$(stat -c %u "$place") && group=$(stat -c %g "$place") || return 1
  home=$(getent passwd "$owner" | cut -d: -f6)
  shift
  setpriv --reuid="$owner" --regid="$group" --init-groups --inh-caps=-all --no-new-privs \
    env -i PATH="$PATH" HOME="${home:-/}" "$@"
}

# What outlives the epilog: once every step is safe, the job's directory is no longer needed.
finish() {
  local place=$1 code
  exec 9>"$place.lock"
  flock --nonblock 9 || return 0
  echo "$BASHPID" >"$place.pid"
  # The job left its identity in a file of variables, which only a process of the job's user may read as a script. All of
  # this stays in one process group and keeps the lock, so that the prolog can end it and knows when it has ended.
  # shellcheck disable=SC2016 # $1 is the inner shell's
  as_owner "$place" timeout --foreground --kill-after=2m 2h sh -c '
    cd "$1" || exit 1
    if [ -f launch ]; then . ./launch; fi
    exec stepvault agent --once --config stepvault.toml
  ' sh "$place"
  code=$?
  rm -f -- "$place.pid"
  if [ "$code" -ne 0 ]; then
    say "$place" "some step is not safe; $place stays (exit code $code)"
    return
  fi
  # In one rename: a job that starts again finds the whole directory or none. What a killed one left goes too.
  mv -- "$place" "$scratch/.over-${place##*/}"
  rm -rf -- "$scratch"/.over-*
  rm -f -- "$place.lock"
}

main() {
  local place=$scratch/$SLURM_JOB_ID
  if [[ ! $SLURM_JOB_ID =~ ^[0-9]+$ ]]; then
    say unknown "SLURM_JOB_ID is not a number; nothing was done"
    return
  fi
  [ -d "$place" ] || return
  # Nobody used it.
  rmdir -- "$place" 2>/dev/null && return
  if [ ! -f "$place/stepvault.toml" ]; then
    say "$place" "$place holds files and no stepvault.toml; it stays"
    return
  fi
  # Of a process that is long gone, when the node went down under it.
  rm -f -- "$place.pid"
  # Out of slurmd's control group where there is systemd, which would end it with the epilog's.
  if [ -d /run/systemd/system ]; then
    systemd-run --quiet --collect --no-block --unit="stepvault-epilog-$SLURM_JOB_ID" --property=MemoryMax=512M \
      "$0" finish "$place" && return
  fi
  setsid --fork "$0" finish "$place" </dev/null >/dev/null 2>&1
}

if [ "${1:-}" = finish ]; then
  finish "$2"
else
  main
fi
exit 0
