#!/bin/sh
# The page on port 80: which guest answered, and who asked.
printf 'Content-Type: text/plain\r\n\r\nhello from %s to %s\n' "$(hostname)" "$REMOTE_ADDR"
