module netclaim.dev/tests/bench/libcni

go 1.22

require github.com/containernetworking/cni v1.3.0
