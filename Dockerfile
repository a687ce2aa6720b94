# One target per component. hack/images/build.sh prepares the files to add: root file systems from Debian packages in .build/rootfs
# (hack/images/rootfs.sh), guest disks in .build/guests, and the binaries in bin/. There are no base images and no RUN commands: docker
# build, buildah and hack/images/build.sh result in the same image.
#
#   hack/images/build.sh --prepare virt-launcher && docker build --target virt-launcher -t virt-launcher .

FROM scratch AS virt-controller
COPY images/virt-controller/rootfs/ /
COPY bin/virt-controller /usr/bin/virt-controller
USER 65532:65532
ENTRYPOINT ["/usr/bin/virt-controller"]

FROM scratch AS virt-api
COPY images/virt-api/rootfs/ /
COPY bin/virt-api /usr/bin/virt-api
USER 65532:65532
ENTRYPOINT ["/usr/bin/virt-api"]

FROM scratch AS virt-exportproxy
COPY images/virt-exportproxy/rootfs/ /
COPY bin/virt-exportproxy /usr/bin/virt-exportproxy
USER 65532:65532
ENTRYPOINT ["/usr/bin/virt-exportproxy"]

# The Pods of exports run it as QEMU's user, who owns the disks of VMs.
FROM scratch AS virt-exportserver
COPY images/virt-exportserver/rootfs/ /
COPY bin/virt-exportserver /usr/bin/virt-exportserver
USER 107:107
ENTRYPOINT ["/usr/bin/virt-exportserver"]

FROM scratch AS virt-handler-rootfs
ADD .build/rootfs/virt-handler.tar /

FROM virt-handler-rootfs AS virt-handler
COPY bin/virt-handler /usr/bin/virt-handler
ENV PATH=/usr/sbin:/usr/bin
USER 65527:65527
ENTRYPOINT ["/usr/bin/virt-handler"]

# The privileged half of the node agent runs as root: it opens other Pods' sockets and creates their network devices. Each of its programs
# runs in a container of its own.
FROM scratch AS virt-broker
COPY images/virt-broker/rootfs/ /
COPY bin/virt-broker bin/virt-network-broker bin/virt-device-plugin /usr/bin/
USER 0:0
ENTRYPOINT ["/usr/bin/virt-broker"]

FROM scratch AS virt-launcher-rootfs
ADD .build/rootfs/virt-launcher.tar /

FROM virt-launcher-rootfs AS virt-launcher
COPY bin/virt-launcher bin/virt-tail bin/virt-freezer /usr/bin/
# virsh, as in kubectl exec, uses the Pod's libvirtd. It would start another one without a domain, and print an empty list.
ENV PATH=/usr/sbin:/usr/bin LIBVIRT_AUTOSTART=0 LIBVIRT_DEFAULT_URI=qemu+unix:///session?socket=/var/run/kubevirt/sockets/libvirt-sock
USER 107:107
ENTRYPOINT ["/usr/bin/virt-launcher"]

# The previous version of the launcher, for upgrades in the end-to-end suite (hack/images/previous.sh).
FROM scratch AS virt-launcher-previous-rootfs
ADD .build/rootfs/virt-launcher-previous.tar /

FROM virt-launcher-previous-rootfs AS virt-launcher-previous
COPY .build/previous/ /
ENV PATH=/usr/sbin:/usr/bin
USER 107:107
ENTRYPOINT ["/usr/bin/virt-launcher"]

# The image of virtctl guestfs: a shell with libguestfs's tools and its appliance (hack/images/guestfs.sh).
FROM scratch AS libguestfs-tools
ADD .build/rootfs/libguestfs-tools.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin LIBGUESTFS_BACKEND=direct LIBGUESTFS_PATH=/usr/local/lib/guestfs/appliance
USER 107:107
ENTRYPOINT ["/entrypoint.sh"]

# Guests. A containerDisk contains one disk image in /disk, owned by QEMU's user.
FROM scratch AS guest-small
COPY --chown=107:107 .build/guests/guest-small/disk/ /disk/

# The small guest's kernel and initrd, for firmware.kernelBoot.container.
FROM scratch AS guest-small-kernel
COPY --chown=107:107 .build/guests/guest-small/boot/ /boot/

# The guest without an operating system, also for firmware.kernelBoot.container.
FROM scratch AS guest-bare
COPY --chown=107:107 .build/guests/guest-bare/boot/ /boot/

FROM scratch AS guest-devices
COPY --chown=107:107 .build/guests/guest-devices/disk/ /disk/

FROM scratch AS guest-debian
COPY --chown=107:107 .build/guests/guest-debian/disk/ /disk/

# The peer of guests in the end-to-end suite.
FROM scratch AS test-tools
COPY bin/test-tools /tools
USER 1000:1000
ENTRYPOINT ["/tools"]

# The Containerized Data Importer of the local cluster (hack/tools/cdi). Its Pods do not name the commands that they run.
FROM scratch AS cdi-operator
COPY .build/cdi/cdi-operator /usr/bin/
USER 1001:1001
ENTRYPOINT ["/usr/bin/cdi-operator"]

FROM scratch AS cdi-apiserver
COPY .build/cdi/cdi-apiserver /usr/bin/
USER 1001:1001
ENTRYPOINT ["/usr/bin/cdi-apiserver", "-alsologtostderr"]

FROM scratch AS cdi-uploadproxy
COPY .build/cdi/cdi-uploadproxy /usr/bin/
USER 1001:1001
ENTRYPOINT ["/usr/bin/cdi-uploadproxy", "-alsologtostderr"]

# Those that read and write disks have the programs for it. The controller needs cat, for its probe.
FROM scratch AS cdi-rootfs
ADD .build/rootfs/cdi.tar /

FROM cdi-rootfs AS cdi-controller
COPY .build/cdi/cdi-controller /usr/bin/
ENV PATH=/usr/sbin:/usr/bin
USER 1001:1001
ENTRYPOINT ["/usr/bin/cdi-controller", "-alsologtostderr"]

FROM cdi-rootfs AS cdi-importer
COPY .build/cdi/cdi-importer .build/cdi/cdi-containerimage-server .build/cdi/cdi-image-size-detection .build/cdi/cdi-source-update-poller /usr/bin/
ENV PATH=/usr/sbin:/usr/bin
USER 107:107
ENTRYPOINT ["/usr/bin/cdi-importer", "-alsologtostderr"]

FROM cdi-rootfs AS cdi-uploadserver
COPY .build/cdi/cdi-uploadserver /usr/bin/
ENV PATH=/usr/sbin:/usr/bin
USER 107:107
ENTRYPOINT ["/usr/bin/cdi-uploadserver", "-alsologtostderr"]

FROM cdi-rootfs AS cdi-cloner
COPY .build/cdi/cdi-cloner .build/cdi/cloner_startup.sh /usr/bin/
ENV PATH=/usr/sbin:/usr/bin
USER 107:107
ENTRYPOINT ["/usr/bin/cloner_startup.sh"]
