# shellcheck shell=bash disable=SC2154 # hack/images/guest.sh sets the variables and runs make_guest
# The small guest with the full Debian kernel, for tests of emulated network cards and USB.

. "$base/recipe.sh"
