#!/bin/bash
# lane.sh: runs tests in a virtual machine that need optional parts of the kernel (ipvlan, VLANs, VRFs, bonds, dummies), a
# network card with virtual functions, or a clock that they may set; then nodes.sh and power.sh. Run tests/node/build.sh first.
# Fails on a machine that cannot run a virtual machine, unless NETCLAIM_SKIP_QEMU=1 asks to skip them there.
set -euo pipefail
# shellcheck source=../node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../node/lib.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The test programs: PACKAGE TEST [VARIABLE=VALUE...] [FILTER...]. The guest has no network and is slow, so that everything
# a program needs is built here, below $work, and named by a variable.
programs="
netclaim-driver links_kernel
netclaim-driver links_uplinks
netclaim-driver bond_uplink NETCLAIM_CNI_BIN=$plugins_bin
netclaim-driver host_links NETCLAIM_CNI_BIN=$plugins_bin vlan
netclaim-driver host_namespace NETCLAIM_CNI_BIN=$plugins_bin vlan
netclaim-cni real_plugins NETCLAIM_CNI_BIN=$plugins_bin
netclaim-cni plugin_links NETCLAIM_CNI_BIN=$plugins_bin
netclaim-driver composite NETCLAIM_CNI_BIN=$plugins_bin
netclaim-bandwidth traffic NETCLAIM_CNI_BIN=$plugins_bin ipvlan
netclaim-link host NETCLAIM_CNI_BIN=$plugins_bin
netclaim-driver libcni_conformance NETCLAIM_CNI_BIN=$plugins_bin NETCLAIM_LIBCNI=$work/libcni rare_links
netclaim-driver clock NETCLAIM_CNI_BIN=$plugins_bin NETCLAIM_OWN_CLOCK=1
netclaim-driver sriov NETCLAIM_CNI_BIN=$plugins_bin NETCLAIM_OWN_CARDS=1
"

# The tests skip what cannot be installed.
(packages nft:nftables iptables:iptables) || true
(
  cd "$root/driver/tests/libcni"
  mkdir "$work/libcni"
  # shellcheck disable=SC2086 # a list of words
  CGO_ENABLED=0 GOWORK=off go build $go_flags -o "$work/libcni/" . ./recorder ./links tool
)
cd "$root"
echo 'failed=0' >"$work/job"
while read -r package test words; do
  [[ -n $package ]] || continue
  variables=() filters=()
  for word in $words; do
    if [[ $word == *=* ]]; then variables+=("$word"); else filters+=("$word"); fi
  done
  program=$(test_program "$package" "$test")
  folder=$(cargo metadata --locked --no-deps --format-version=1 |
    jq -r --arg package "$package" '.packages[] | select(.name == $package).manifest_path | rtrimstr("/Cargo.toml")')
  printf '(cd %q; echo %q; exec %s) || failed=1\n' "$folder" "     Running $test, in the virtual machine" \
    "$(printf ' %q' env "${variables[@]}" "$program" --include-ignored "${filters[@]}")" >>"$work/job"
done <<<"$programs"
echo "exit \$failed" >>"$work/job"

status=0
"$root/tests/qemu/vm.sh" bash "$work/job" | tee "$work/output" || status=$?
((status != 77)) || no_machine "the tests in a virtual machine"
if grep -E '^SKIPPED( CASE)?: .* kernel has no' "$work/output"; then
  die "the guest's kernel lacks a part that this lane is for"
fi
if grep '^test result: ok. 0 passed; 0 failed; 0 ignored' "$work/output"; then
  die "a filter in the list of programs matches no test"
fi
"$root/tests/qemu/nodes.sh" || status=$?
"$root/tests/qemu/power.sh" || status=$?
exit "$status"
