# shellcheck shell=bash
# Debian's kernel of today, ready to boot: $kernel/{vmlinuz,initramfs,modules}. Sourced by vm.sh.
# shellcheck disable=SC2154,SC2317 # what vm.sh and lib.sh set; functions that are called by name

# What it takes to see the machine's files: 9p over virtio, and an overlay of memory.
needed=(virtio_pci virtio_console 9pnet_virtio 9p overlay)

# kernel_package: what Debian's linux-image-amd64 stands for today, and its version.
kernel_package() {
  local name
  name=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" { print $2; exit }')
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
  # Nine tenths are drivers of hardware.
  find "$dir"/modules/*/kernel/{drivers,drivers/net} -mindepth 1 -maxdepth 1 -type d \
    ! -name net ! -name virtio ! -name char ! -name bonding ! -name ipvlan ! -name 'v*' -exec rm -r {} +
  rm -r "$dir"/modules/*/kernel/sound
  release=$(ls "$dir/modules")
  mkdir -p "$dir"/{lib,init/bin,init/modules}
  ln -s ../modules "$dir/lib/modules"
  depmod -b "$dir" "$release"
  cp "$(command -v busybox)" "$dir/init/bin/busybox"
  cp "$qemu_dir/init" "$dir/init/init"
  for module in "${needed[@]}"; do
    modprobe -d "$dir" -S "$release" --show-depends "$module"
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r from; do
    case $from in
      *.xz) xz -dc "$from" ;;
      *.zst) zstd -dc "$from" ;;
      *) cat "$from" ;;
    esac >"$dir/init/modules/$((number++))"
  done
  (cd "$dir/init" && find . | cpio --quiet -o -H newc) >"$dir/initramfs"
  rm -r "$dir/init"
}

if ! read -r package version < <(kernel_package); then
  step "asking Debian for its kernel" "$cache/log/packages.log" apt-get update -q || true
  read -r package version < <(kernel_package) || cannot "apt-get knows no package linux-image-amd64"
fi
kernel=$(artifact "kernel-$package" "$qemu_dir"/{kernel.sh,init} -- "$version")
(make_once "$kernel" "fetching $package $version" build_kernel) || cannot "no kernel: $package $version cannot be fetched"
