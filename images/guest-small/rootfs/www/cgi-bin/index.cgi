#!/bin/sh
# The page on port 80 contains the guest's name and the client's address.
printf 'Content-Type: text/plain\r\n\r\nhello from %s to %s\n' "$(hostname)" "$REMOTE_ADDR"
