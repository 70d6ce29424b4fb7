#!/bin/bash
# Epilog for slurm.conf: uploads the steps that a job left on the node's disk, then removes its directory. prolog.sh
# creates the directory and describes the installation of both.
#
# Most jobs leave nothing to upload, because `stepvault run` drains before they end. This is for killed jobs. The node
# stays in the state COMPLETING while an epilog runs, and goes down if one fails: this one starts a separate process for
# the work and exits at once, always with 0. That process ends after two hours at the latest.
#
# Users: slurmd runs this as root. The agent runs as the job's user, with the configuration that the job left in its
# directory. Root only removes the directory, and only if the agent reports that every finished step in it is durable:
# in every vault in the directory and for every run in each, including steps that could not be sealed and runs that the
# configuration does not (or no longer) name. Otherwise the directory is kept, and the log reports it. An interrupted
# save is removed with the directory, because no trainer could resume from it.
#
# Credentials: the job's environment no longer exists. They come from the node's identity, or from files in the home
# directory of the job's user.

# slurmd sets no PATH.
PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
scratch=${JOB_SCRATCH:-/mnt/nvme/jobs}

say() { logger -t stepvault-epilog -- "job ${1##*/}: ${*:2}" 2>/dev/null || true; }

# Runs a command as the owner of directory $1, without root's environment.
as_owner() {
  local place=$1 owner group home
  owner=$(stat -c %u "$place") && group=$(stat -c %g "$place") || return 1
  home=$(getent passwd "$owner" | cut -d: -f6)
  shift
  setpriv --reuid="$owner" --regid="$group" --init-groups --inh-caps=-all --no-new-privs \
    env -i PATH="$PATH" HOME="${home:-/}" "$@"
}

# The process that outlives the epilog: removes the job's directory once every step is durable.
finish() {
  local place=$1 code
  exec 9>"$place.lock"
  flock --nonblock 9 || return 0
  echo "$BASHPID" >"$place.pid"
  # The job left its identity in a file of variables, which only a process of the job's user may source. All processes
  # stay in one process group and hold the lock, so that the prolog can kill them and detect their end.
  # shellcheck disable=SC2016 # $1 is the inner shell's
  as_owner "$place" timeout --foreground --kill-after=2m 2h sh -c '
    cd "$1" || exit 1
    if [ -f launch ]; then . ./launch; fi
    stepvault agent --once --config stepvault.toml || exit
    # The directory may also hold vaults that the configuration does not name, from a manual push or a changed
    # configuration.
    find . -name vault.json -type f | while IFS= read -r marker; do
      stepvault agent --once --config stepvault.toml --local "${marker%/vault.json}" </dev/null || exit
    done
  ' sh "$place"
  code=$?
  rm -f -- "$place.pid"
  if [ "$code" -ne 0 ]; then
    say "$place" "some steps are not durable; keeping $place (exit code $code)"
    return
  fi
  # Rename first, so that a restarted job finds the complete directory or none. Also remove what a killed epilog left.
  mv -- "$place" "$scratch/.over-${place##*/}"
  rm -rf -- "$scratch"/.over-*
  rm -f -- "$place.lock"
}

main() {
  local place=$scratch/$SLURM_JOB_ID
  if [[ ! $SLURM_JOB_ID =~ ^[0-9]+$ ]]; then
    say unknown "SLURM_JOB_ID is not a number; doing nothing"
    return
  fi
  [ -d "$place" ] || return
  # An unused directory.
  rmdir -- "$place" 2>/dev/null && return
  if [ ! -f "$place/stepvault.toml" ]; then
    say "$place" "$place has files but no stepvault.toml; keeping it"
    return
  fi
  # The file is stale if the node went down while the process ran.
  rm -f -- "$place.pid"
  # With systemd, run outside of slurmd's control group, whose processes are killed with the epilog.
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
