#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# demo.sh up: starts a local cluster with Vireo, and a VM from a KubeVirt manifest.
# demo.sh down: removes both. GUEST is small or debian.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
guest=${GUEST:-small}
case $guest in
small | debian) ;;
*)
	echo "demo: GUEST is small or debian, not $guest" >&2
	exit 1
	;;
esac

# The VM's name: "demo" for the default guest.
vm=demo
[ "$guest" = small ] || vm=$guest

if [ "${1:-up}" = down ]; then
	exec make cluster-down
fi

step_logs=$PWD/.build/demo
mkdir -p "$step_logs"
. hack/steps.sh
. hack/deploy-local.sh
steps=$((local_steps + 3))

# boot_guest: creates the VM and waits until it is ready.
boot_guest() {
	sed "s/^  name: $guest\$/  name: $vm/" "config/samples/vm-$guest.yaml" | $kubectl apply -f -
	$kubectl wait --for=condition=Ready "vm/$vm" --timeout=5m
}

# wait_for_console TEXT: waits until the guest's console contains a text.
wait_for_console() {
	local text=$1 deadline=$((SECONDS + 900))
	until console | grep -q "$text"; do
		[ $SECONDS -lt $deadline ] || {
			echo "the console did not show \"$text\" in 15 minutes"
			return 1
		}
		sleep 1
	done
}

console() {
	$kubectl logs -l "vm.kubevirt.io/name=$vm" -c guest-console-log --tail=-1 2>/dev/null || true
}

# plain: removes control characters, which a terminal would interpret.
plain() {
	tr -d '\r' | sed -E 's/\x1b(\[[0-9;?!]*[A-Za-z]|[^[])//g' | tr -cd '\11\12\40-\176'
}

bring_up 1 virt-controller virt-api virt-handler virt-broker virt-launcher virt-exportproxy virt-exportserver guest-small guest-small-kernel test-tools $([ "$guest" = small ] || echo guest-debian)
step "building virtctl" make virtctl
step "starting the VM \"$vm\" from config/samples/vm-$guest.yaml" boot_guest
case $guest in
small) step "booting the guest" wait_for_console VIREO-GUEST-READY ;;
debian) step "booting the guest (a whole Debian under software emulation: minutes)" wait_for_console VIREO-GUEST-READY ;;
esac

echo
echo "The guest's console, as kubectl logs shows it:"
console | plain | tail -15 | sed 's/^/    /'
echo
$kubectl get vm,vmi -o wide
cat <<END

Next steps:
    export KUBECONFIG=$KUBECONFIG PATH=\$PATH:$PWD/bin
    kubectl get vm,vmi,pods
    virtctl console $vm                                            # log in at the guest's serial console; Ctrl+] leaves it
    virtctl explain $vm                                            # its state, or why it does not run
    kubectl logs -f -l vm.kubevirt.io/name=$vm -c guest-console-log # the console's output so far
    kubectl describe vmi $vm
    virtctl stop $vm                                               # an orderly shutdown
    make demo-down                                                 # remove everything
END
