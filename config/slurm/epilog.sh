#!/bin/bash
# Epilog for slurm.conf: uploads the steps that a job left on the node's disk, then removes its directory. prolog.sh
# creates the directory and describes the installation of both.
#
# Most jobs leave nothing to upload, because `stepvault run` drains before they end. This is for killed jobs. The node
# stays in the state COMPLETING while an epilog runs, and goes down if one fails: this one starts a separate process for
# the work and exits at once, always with 0. That process ends after two hours at the latest.
#
# Users: slurmd runs this as root. The agent runs as the job's user, with the configuration that the job left in its
# directory, stepvault.toml, or else with that of each vault's last agent, as one that a script started with
# `stepvault.watch`. Root only removes the directory, and only if the agent reports that every finished step in it is
# durable: in every vault in the directory and for every run in each, including steps that could not be sealed and runs
# that the configuration does not (or no longer) name. Otherwise the directory is kept, and the log reports it. An
# interrupted save is removed with the directory, because no trainer could resume from it.
#
# A directory without stepvault.toml may hold other results of the job. It is removed only if the job has put an empty
# file `remove-when-durable` into it.
#
# `epilog.sh reclaim` does the same for every directory whose job is not on this node any more: a node that went down
# with its job runs no epilog for it, and an upload may have failed earlier. The prolog starts it with each job, and
# stepvault-reclaim.timer with the node and every hour; without systemd, run it from cron.
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

# Returns whether Slurm has job $1 on this node, or cannot tell. $2 is one more state that counts, after a comma.
is_here() {
  local jobs
  jobs=$(squeue --noheader --nodelist="${SLURMD_NODENAME:-$(hostname -s)}" --format=%A \
    --states="CONFIGURING,RUNNING,SUSPENDED,STOPPED,RESIZING,SIGNALING,STAGE_OUT${2:-}") || return 0
  grep -qwx "$1" <<<"${jobs// /}"
}

# Returns whether there is anything for the agent in directory $1, not too deep: a job may have left very many files.
is_used() {
  [ -f "$1/stepvault.toml" ] ||
    [ -n "$(find "$1" -xdev -maxdepth 4 -name vault.json -type f -print -quit 2>/dev/null)" ]
}

# The process that outlives the epilog: removes the job's directory once every step is durable. With `left`, only if the
# job is not on this node.
finish() {
  local place=$1 code
  exec 9>"$place.lock"
  if ! flock --nonblock 9; then
    # `reclaim` may only be looking whether the job is still here. Meanwhile the job may have started again.
    flock --wait 60 9 || return 0
    if [ ! -d "$place" ] || is_here "${place##*/}"; then
      return
    fi
  fi
  echo "$BASHPID" >"$place.pid"
  # A job that comes to this node from now on ends this process: its prolog looks for the lock.
  if [ "${2:-}" = left ] && is_here "${place##*/}" ,COMPLETING; then
    rm -f -- "$place.pid"
    return
  fi
  if rmdir -- "$place" 2>/dev/null; then
    rm -f -- "$place.pid" "$place.lock"
    return
  fi
  # The job left its identity in a file of variables, which only a process of the job's user may source. All processes
  # stay in one process group and hold the lock, so that the prolog can kill them and detect their end.
  # shellcheck disable=SC2016 # $1 is the inner shell's
  as_owner "$place" timeout --foreground --kill-after=2m 2h sh -c '
    cd "$1" || exit 1
    if [ -f launch ]; then . ./launch; fi
    if [ -f stepvault.toml ]; then
      stepvault agent --once --trainer-ended --config stepvault.toml || exit
    fi
    # The directory may also hold vaults that the configuration does not name, from a manual push or a changed
    # configuration.
    find . -name vault.json -type f | while IFS= read -r marker; do
      vault=${marker%/vault.json}
      if [ -f stepvault.toml ]; then
        stepvault agent --once --trainer-ended --config stepvault.toml --local "$vault" </dev/null || exit
      else
        stepvault agent --once --trainer-ended --like-last --local "$vault" </dev/null || exit
      fi
    done
  ' sh "$place"
  code=$?
  rm -f -- "$place.pid"
  if [ "$code" -ne 0 ]; then
    say "$place" "some steps are not durable; keeping $place (exit code $code)"
    return
  fi
  if [ ! -f "$place/stepvault.toml" ] && [ ! -f "$place/remove-when-durable" ]; then
    : >"$place.uploaded"
    say "$place" "every step is durable; keeping $place, which has neither stepvault.toml nor remove-when-durable"
    return
  fi
  # Rename first, so that a restarted job finds the complete directory or none. Also remove what a killed epilog left.
  mv -- "$place" "$scratch/.over-${place##*/}"
  rm -rf -- "$scratch"/.over-*
  rm -f -- "$place.lock" "$place.uploaded"
}

# Finishes what jobs left that are not on this node any more, one directory after the other.
reclaim() {
  local place
  # A node that has just started may not know its jobs yet.
  scontrol ping >/dev/null 2>&1 || return 0
  for place in "$scratch"/*/; do
    place=${place%/}
    if [[ ! ${place##*/} =~ ^[0-9]+$ ]] || [ -e "$place.uploaded" ] || is_here "${place##*/}" ,COMPLETING; then
      continue
    fi
    # What a job left, or a directory that it never used.
    if is_used "$place" || [ -z "$(ls -A "$place")" ]; then
      finish_outside --wait "$place" left
    fi
  done
}

# Runs `finish` as a process of its own, which slurmd does not end: with systemd outside of its control group, whose
# processes are killed with the epilog.
finish_outside() {
  local wait=$1 place=$2
  if [ -d /run/systemd/system ]; then
    systemd-run --quiet --collect "$wait" --unit="stepvault-${3:-epilog}-${place##*/}" --property=MemoryMax=512M \
      "$0" finish "${@:2}" && return
    # The unit exists, or ended with an error.
    [ "$wait" = --wait ] && return
  fi
  setsid "${wait/#--no-block/--fork}" "$0" finish "${@:2}" </dev/null >/dev/null 2>&1
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
  if ! is_used "$place"; then
    say "$place" "$place has files, but no stepvault.toml and no vault; keeping it"
    return
  fi
  # The file is stale if the node went down while the process ran.
  rm -f -- "$place.pid"
  finish_outside --no-block "$place"
}

case ${1:-} in
  finish) finish "${@:2}" ;;
  reclaim) reclaim ;;
  *) main ;;
esac
exit 0
