#!/bin/sh
# Starts the shell of virtctl guestfs. The claim is at /disk or /dev/vda.
export PS1='libguestfs:\w\$ '
[ -n "${LIBGUESTFS_TMPDIR:-}" ] && export TMPDIR=$LIBGUESTFS_TMPDIR
exec /bin/bash --norc "$@"
