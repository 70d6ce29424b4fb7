#!/bin/sh
# Entrypoint of this image, and of a trainer's image that includes stepvault.
#
#   docker run IMAGE agent                   a command of stepvault, with its flags
#   docker run IMAGE torchrun train.py       anything else is a trainer: `stepvault run` restores the newest step into
#                                            $CHECKPOINTS, starts it, uploads its steps, and exits with its exit code
#
# To start a program that has the name of a command, give its path: ./list. stepvault is process 1: it receives the
# signals, and `stepvault run` reaps the processes that a trainer leaves behind.
set -eu

: "${CHECKPOINTS:=/checkpoints}"

if [ "$#" -eq 0 ]; then
  exec stepvault --help
fi
case $1 in
  -*) exec stepvault "$@" ;;
esac
# Only a stepvault command has a help page.
if stepvault "$1" --help >/dev/null 2>&1; then
  exec stepvault "$@"
fi
if [ -e "$CHECKPOINTS" ] && [ ! -w "$CHECKPOINTS" ]; then
  echo "stepvault-entrypoint: user $(id -u) cannot write to $CHECKPOINTS;" \
    "start the container with the uid that owns it: docker run --user $(stat -c %u:%g "$CHECKPOINTS")" >&2
  exit 1
fi
exec stepvault run --into "$CHECKPOINTS" -- "$@"
