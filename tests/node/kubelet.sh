#!/bin/bash
# kubelet.sh KUBELET: runs the kubelet of a cluster of kubeadm, as its unit of systemd does: with what kubeadm has written, and again
# when it ends. Before kubeadm has configured the node, there is nothing to run.
arguments=/var/lib/kubelet/kubeadm-flags.env
trap 'kill -TERM "${kubelet:-}" 2>/dev/null; wait; exit' TERM
while true; do
  if [[ -e $arguments ]]; then
    # shellcheck source=/dev/null
    . "$arguments"
    # shellcheck disable=SC2086 # a list of words
    "$1" --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
      --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS &
    kubelet=$!
    wait "$kubelet"
  fi
  sleep 0.5
done
