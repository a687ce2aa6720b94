#!/bin/sh
# The shell of virtctl guestfs, with the claim at /disk or /dev/vda.
export PS1='libguestfs:\w\$ '
[ -n "${LIBGUESTFS_TMPDIR:-}" ] && export TMPDIR=$LIBGUESTFS_TMPDIR
exec /bin/bash --norc "$@"
