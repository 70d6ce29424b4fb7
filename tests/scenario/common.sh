# What the scenarios have in common. Each runs in an empty directory of its own, with `stepvault` on the PATH, and ends
# with 0 when everything was found as its story says, with 77 when this machine does not let it happen.
set -euo pipefail

scenarios=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fixtures="$scenarios/../fixtures"
mounted=()

# Nothing of this machine's own set-up is in sight.
export HOME="$PWD" TMPDIR="$PWD/tmp"
mkdir -p "$TMPDIR"
unset STEPVAULT_CONFIG STEPVAULT_RUN STEPVAULT_REMOTE STEPVAULT_LOCAL STEPVAULT_NODE STEPVAULT_NODES

say() { printf -- '-- %s\n' "$*"; }

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

skip() {
  printf 'skipped: %s\n' "$*" >&2
  exit 77
}

clean_up() {
  local place
  for place in "${mounted[@]}"; do umount -l "$place" || true; done
}
trap clean_up EXIT

# small_disk DIR OPTIONS: a small filesystem at DIR.
small_disk() {
  mkdir -p "$1"
  mount -t tmpfs -o "$2" tmpfs "$1" 2>/dev/null || skip "this process may not mount a small filesystem"
  mounted+=("$1")
}

# fixture NAME DIR: unpacks an archive of real checkpoints and names its directory DIR.
fixture() {
  local archive
  for archive in "$fixtures/$1.tar" "$fixtures/$1.tar.gz"; do
    if [ -e "$archive" ]; then
      tar --extract --preserve-permissions --no-same-owner --file "$archive"
      mkdir -p "$(dirname "$2")"
      mv -- "$1" "$2"
      return
    fi
  done
  fail "there is no fixture $1"
}

# explain ARGUMENTS: what stepvault says, kept for the expectations below and shown.
explain() {
  said=$(stepvault explain "$@") || fail "explain $* ended with $?"
  printf '%s\n' "$said"
}

# doctor CODE ARGUMENTS: what a look before training says, and that it ends with CODE.
doctor() {
  local wanted="$1" code=0
  shift
  said=$(stepvault doctor --no-remotes "$@") || code=$?
  printf '%s\n' "$said"
  [ "$code" = "$wanted" ] || fail "doctor $* ended with $code, not $wanted"
}

# expect_line OUTCOME TEXT...: a line of doctor with all these texts.
expect_line() {
  local outcome="$1" lines text
  shift
  lines=$(grep -i "^$outcome " <<<"$said") || fail "no line is $outcome"
  for text in "$@"; do
    lines=$(grep -F -- "$text" <<<"$lines") || fail "no $outcome line says: $text"
  done
}

# The likeliest cause.
expect_first() {
  [[ "$said" == "1. $1, "* ]] || fail "the first cause is not $1"
}

# Any of the causes.
expect_cause() {
  grep -q "^[0-9]*\. $1, " <<<"$said" || fail "$1 is not among the causes"
}

expect_no_cause() {
  if grep -q "^[0-9]*\. $1, " <<<"$said"; then fail "$1 is among the causes"; fi
}

expect_text() {
  grep -qF -- "$1" <<<"$said" || fail "nothing says: $1"
}

# The commands to resume from a step, run as they are printed. Other lines are instructions for the trainer.
obey() {
  local command
  while IFS= read -r command; do
    case "$command" in
      "  mv "* | "  printf "* | "  ln "* | "  cp "* | "  stepvault "*) bash -c "$command" || fail "$command" ;;
    esac
  done < <(sed -n '/^to resume from /,$p' <<<"$said")
}
