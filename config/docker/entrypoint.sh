#!/bin/sh
# Entrypoint of the image, and of a trainer's image that has stepvault in it.
#
#   docker run IMAGE agent                   a command of stepvault, with its flags
#   docker run IMAGE torchrun train.py       anything else is a trainer: `stepvault run` restores the newest step into
#                                            $CHECKPOINTS, starts it, uploads what it saves, and ends with its code
#
# A program that has the name of a command is told apart by its path: ./list. stepvault is process 1: it is sent the
# signals, and `stepvault run` collects what a trainer leaves behind.
set -eu

: "${CHECKPOINTS:=/checkpoints}"

if [ "$#" -eq 0 ]; then
  exec stepvault --help
fi
case $1 in
  -*) exec stepvault "$@" ;;
esac
# Commands have a help; nothing else does.
if stepvault "$1" --help >/dev/null 2>&1; then
  exec stepvault "$@"
fi
if [ -e "$CHECKPOINTS" ] && [ ! -w "$CHECKPOINTS" ]; then
  echo "stepvault-entrypoint: user $(id -u) may not write to $CHECKPOINTS;" \
    "start the container with the uid that owns it: docker run --user $(stat -c %u:%g "$CHECKPOINTS")" >&2
  exit 1
fi
exec stepvault run --into "$CHECKPOINTS" -- "$@"
