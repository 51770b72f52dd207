#!/bin/bash
# demo.sh: builds netclaim and Kubernetes, starts a cluster of two nodes, installs netclaim as a user would, and shows a pod
# on each node; they reach each other over a claimed network. On a running demo it installs what has changed. Needs Debian, root, Rust and Go.
# NETCLAIM_DEMO_DIR: the cluster's folder (default /var/tmp/netclaim-demo); NETCLAIM_CACHE: see build.sh.
set -euo pipefail
# shellcheck source=../node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../node/lib.sh"
dir=${NETCLAIM_DEMO_DIR:-/var/tmp/netclaim-demo}
image=$cache/demo/netclaim.tar
begin=$SECONDS
((EUID == 0)) || die "run me as root: the demo starts a Kubernetes node"
for tool in cargo go; do
  command -v "$tool" >/dev/null || die "no $tool: the demo needs Rust (https://rustup.rs) and Go (https://go.dev/dl)"
done

workloads=(daemonset/netclaim-agent deployment/netclaim-controller)

title() { printf '\n--- %s\n' "$*"; }

# broken TEXT: reports a failure with the state of the cluster, and exits.
broken() {
  {
    echo "demo: FAILED: $*"
    kubectl get pods --all-namespaces -o wide || true
    kubectl get events --all-namespaces --field-selector type=Warning --sort-by=.lastTimestamp | tail -n 10 || true
    for workload in "${workloads[@]}"; do
      echo "    $workload, the end of its log:"
      kubectl logs -n netclaim-system "$workload" --tail=15 2>&1 | sed 's/^/    | /' || true
    done
    echo "demo: FAILED: $*"
    echo "logs: $dir/log (pods: $dir/log/node*/pods); the cluster is left running: . $dir/env; make demo-down ends it"
  } >&2
  exit 1
}

packages cc:build-essential
"$here/build.sh"
mkdir -p "$(dirname "$image")"
NETCLAIM_PROFILE=${NETCLAIM_PROFILE:-quick} step "building netclaim (first time: about 5 minutes on two cores)" \
  "$cache/log/netclaim.log" "$root/deploy/image/build.sh" "$image"
NETCLAIM_NODES=2 "$here/up.sh" "$dir" >/dev/null
# shellcheck source=/dev/null
. "$dir/env"
use_kubernetes "$(<"$dir/kubernetes")"

echo "==> installing netclaim: kubectl apply -k deploy/manifests" >&2
sum=$(sha256sum <"$image")
if [[ $sum != "$(cat "$dir/image.sha256" 2>/dev/null)" ]]; then
  "$here/image.sh" "$dir" "$image"
  # The image has the tag of the one before: running pods must be restarted.
  ! kubectl get -n netclaim-system "${workloads[@]}" &>/dev/null || restart=yes
fi
kubectl apply -k "$root/deploy/manifests" >"$dir/log/install.log" 2>&1 ||
  { cat "$dir/log/install.log" >&2; broken "kubectl apply -k deploy/manifests"; }
[[ -z ${restart:-} ]] || kubectl rollout restart -n netclaim-system "${workloads[@]}" >>"$dir/log/install.log"
echo "$sum" >"$dir/image.sha256"
for workload in "${workloads[@]}"; do
  kubectl rollout status -n netclaim-system "$workload" --timeout=60s >>"$dir/log/install.log" 2>&1 ||
    broken "$workload does not become ready"
done

echo "==> a network and two pods: kubectl apply -k tests/demo" >&2
kubectl apply -k "$root/tests/demo" >>"$dir/log/install.log" 2>&1 ||
  { tail -n 5 "$dir/log/install.log" >&2; broken "kubectl apply -k tests/demo"; }
kubectl wait --for=condition=Ready pod/storage-a pod/storage-b --timeout=90s >>"$dir/log/install.log" 2>&1 ||
  { kubectl describe pod storage-a storage-b | grep -A10 '^Events' >&2; broken "the pods storage-a and storage-b do not run"; }

claim_of() { kubectl get pod "$1" -o jsonpath='{.status.extendedResourceClaimStatus.resourceClaimName}'; }
# attached CLAIM: whether the driver has reported the attachment.
attached() {
  kubectl get resourceclaim "$1" -o json |
    jq -e '.status.devices[0] | .networkData.ips[0] and any(.conditions[]; .type == "Ready" and .status == "True")'
}

title "the pods' interfaces: kubectl exec POD -- ip addr"
for pod in storage-a storage-b; do
  echo "$pod on $(kubectl get pod "$pod" -o jsonpath='{.spec.nodeName}'):"
  kubectl exec "$pod" -- ip addr | sed 's/^/  /' || broken "kubectl exec $pod"
done

title "what the claims say: kubectl get resourceclaim -o yaml"
for pod in storage-a storage-b; do
  claim=$(claim_of "$pod")
  wait_for 15 attached "$claim" || { kubectl get resourceclaim "$claim" -o yaml >&2; broken "the claim $claim of $pod has no status of the driver"; }
  kubectl get resourceclaim "$claim" -o json | jq -r --arg pod "$pod" '
    "\(.metadata.name), reserved for \(.status.reservedFor | map(.name) | join(", "))",
    (.status.devices[] |
      "  device      \(.driver)/\(.pool)/\(.device)",
      (.conditions[] | "  condition   \(.type)=\(.status) (\(.reason))\(if (.message // "") == "" then "" else " " + .message end)"),
      (.networkData | "  network     \(.interfaceName) \(.hardwareAddress // "") \(.ips | join(" "))"),
      "  CNI result  \(.data | tojson)")'
done

title "from pod to pod over the claimed network"
address() { kubectl get resourceclaim "$(claim_of "$1")" -o jsonpath='{.status.devices[0].networkData.ips[0]}' | cut -d/ -f1; }
interface() { kubectl get resourceclaim "$(claim_of "$1")" -o jsonpath='{.status.devices[0].networkData.interfaceName}'; }
[[ $(address storage-a) != "$(address storage-b)" ]] || broken "both pods have the address $(address storage-a)"
for pair in storage-a:storage-b storage-b:storage-a; do
  from=${pair%:*} to=${pair#*:}
  echo "$from -> $to: ping -I $(interface "$from") $(address "$to")"
  kubectl exec "$from" -- ping -c 3 -i 0.2 -W 2 -I "$(interface "$from")" "$(address "$to")" | sed 's/^/  /' ||
    broken "$from does not reach $to on $(address "$to")"
done

title "which addresses the nodes have: kubectl get addressblocks.netclaim.dev"
kubectl get addressblocks.netclaim.dev | sed 's/^/  /'

title "what the nodes offer to the scheduler: kubectl get resourceslices -o yaml"
kubectl get resourceslices -o json | jq -r '
  def attribute($device; $name): $device.attributes[$name] // $device.attributes["netclaim.dev/" + $name] // {} | (.string // .int // .bool // .version // "") | tostring | if . == "" then "-" else . end;
  ["NODE", "DEVICE", "NETWORK", "UPLINK", "MODE", "SHARED", "CAPACITY", "TAINTS"],
  (.items[] | select(.spec.driver == "netclaim.dev") | .spec.nodeName as $node | .spec.devices[]? | . as $device | [
    $node // "(all)", .name, attribute($device; "network"), attribute($device; "uplink"), attribute($device; "mode"),
    (if .allowMultipleAllocations then "yes" else "no" end),
    ([.capacity // {} | to_entries[] | "\(.key | sub("^netclaim.dev/"; ""))=\(.value.value)"] | join(",") | if . == "" then "-" else . end),
    ([.taints // [] | .[] | "\(.key):\(.effect)"] | join(",") | if . == "" then "-" else . end)])
  | @tsv' | awk -F'\t' '
  { for (i = 1; i <= NF; i++) { cell[NR, i] = $i; if (length($i) > width[i]) width[i] = length($i) } }
  END { for (r = 1; r <= NR; r++) { line = ""; for (i = 1; i <= NF; i++) line = line sprintf("%-" (width[i] + 2) "s", cell[r, i]); sub(/ +$/, "", line); print "  " line } }'

cat <<X

The cluster goes on running. To use it:
  export KUBECONFIG=$dir/kubeconfig
  export PATH=$kubernetes_bin:\$PATH
  kubectl get pods,resourceclaims                             # then: kubectl describe resourceclaim
  kubectl exec storage-a -- ip addr
  kubectl delete pod storage-a && kubectl apply -k tests/demo
  kubectl logs -n netclaim-system daemonset/netclaim-agent -f
  tests/node/node.sh $dir --node node1 ip addr             # on a node itself
Again after a change: make demo. Its logs: $dir/log. To end it and leave nothing: make demo-down

took $(elapsed $((SECONDS - begin)))
demo: ok
X
