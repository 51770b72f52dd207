#!/bin/bash
# kernel.sh: fetches Debian's present kernel. Prints the path of a folder with vmlinuz, initramfs and modules. Fails if
# apt-get does not know or find the package.
# shellcheck disable=SC2317 # functions that are called by name
set -euo pipefail
# shellcheck source=../node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../node/lib.sh"

# Modules for the root file system: the machine's files by 9p over virtio, and an overlay in memory.
needed=(virtio_pci virtio_console 9pnet_virtio 9p overlay)

# kernel_package: prints the package that linux-image-amd64 depends on, and its version.
kernel_package() {
  local name
  name=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" && !seen++ { print $2 }')
  [[ -n $name ]] || return 1
  apt-cache policy "$name" | awk -v name="$name" '$1 == "Candidate:" { print name, $2 }'
}

build_kernel() {
  local dir=$1 release module from number=10
  (cd "$dir" && apt-get download -q "$package=$version")
  dpkg -x "$dir"/*.deb "$dir/deb"
  mv "$dir"/deb/boot/vmlinuz-* "$dir/vmlinuz"
  mv "$(find "$dir/deb" -type d -path '*lib/modules')" "$dir/modules"
  rm -r "$dir"/*.deb "$dir/deb"
  # Nine tenths of the modules are drivers, of which the guest needs disks, and igb, a network card, with dca and i2c.
  find "$dir"/modules/*/kernel/drivers{,/net,/net/ethernet,/net/ethernet/intel} -mindepth 1 -maxdepth 1 -type d \
    ! -name net ! -name ethernet ! -name intel ! -name 'igb*' ! -name dca ! -name i2c \
    ! -name virtio ! -name block ! -name char ! -name bonding ! -name ipvlan ! -name 'v*' -exec rm -r {} +
  rm -r "$dir"/modules/*/kernel/sound
  release=$(ls "$dir/modules")
  mkdir -p "$dir"/{lib,init/bin,init/modules}
  ln -s ../modules "$dir/lib/modules"
  depmod -b "$dir" "$release"
  cp "$(command -v busybox)" "$dir/init/bin/busybox"
  cp "$root/tests/qemu/init" "$dir/init/init"
  for module in "${needed[@]}"; do
    modprobe -d "$dir" -S "$release" --show-depends "$module"
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r from; do
    # Newer kernels have compressed modules.
    if [[ $from == *.xz ]]; then xz -dc "$from"; else cat "$from"; fi >"$dir/init/modules/$((number++))"
  done
  (cd "$dir/init" && find . | cpio --quiet -o -H newc) >"$dir/initramfs"
  rm -r "$dir/init"
}

read -r package version < <(kernel_package) || die "apt-get knows no package linux-image-amd64"
kernel=$(artifact "kernel-$package" "$root"/tests/qemu/{kernel.sh,init} -- "$version")
make_once "$kernel" "fetching $package $version" build_kernel
echo "    kernel: $package $version" >&2
echo "$kernel"
