module netclaim.dev/tests/libcni

go 1.24.0

tool (
	github.com/containernetworking/cni/cnitool
	github.com/containernetworking/cni/plugins/test/noop
	github.com/containernetworking/cni/plugins/test/sleep
)

require (
	github.com/containernetworking/cni v1.3.0
	github.com/vishvananda/netlink v1.3.1
)

require (
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.23.0 // indirect
)
